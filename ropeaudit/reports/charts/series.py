"""What is plotted: lines of points and the offsets to mark, computed once from the rows of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.errors import UnknownName
from ropeaudit.reports import Row, settings
from ropeaudit.reports.numbers import printable, setting


@dataclass(frozen=True, slots=True)
class DataPoint:
    """A value y at x: an offset, a distance or a wavelength, in tokens. row: what it was measured with."""

    x: float
    y: float
    row: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart; points: x ascending. style: number of its colour, dash and marker."""

    label: str
    points: Sequence[DataPoint]
    style: int = 0

    def nonfinite(self) -> list[float]:
        """Return the x of the values that are nan or infinite."""
        return [point.x for point in self.points if not math.isfinite(point.y)]

    def zeros(self) -> list[float]:
        """Return the x of the values that are 0, which have no place on a logarithmic axis."""
        return [point.x for point in self.points if point.y == 0]


@dataclass(frozen=True, slots=True)
class Mark:
    """The first position that a format cannot hold; offset: at which a sequence reaches it."""

    offset: int
    position: int
    format: str


def points(rows: Iterable[Row], x: str, y: str) -> list[DataPoint]:
    """Return a point a row, from its columns `x` and `y`, x ascending; what is undefined is nan."""
    return sorted((DataPoint(row[x], number(row.get(y)), row) for row in rows), key=lambda point: point.x)


def drift_series(rows: Iterable[Row], label_of: Callable[[Row], str], y: str) -> list[Series]:
    """Return a column over the offset, a line a label, styles in the order of the lines."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(label_of(row), []).append(row)
    return [
        Series(label, points(group, "offset", y), style)
        for style, (label, group) in enumerate(grouped.items())
    ]


def number(value: float | None) -> float:
    """Return a value as a float; what is undefined is nan."""
    return math.nan if value is None else float(value)


def label(row: Row, columns: Iterable[str]) -> str:
    """Return the name of a row's line: subject, dtype and the settings that tell it apart from others."""
    words = [str(row[name]) for name in ("implementation", "dtype") if row.get(name) is not None]
    for name in columns:
        value = setting(row.get(name))
        words.append(value if name == "model" else f"{name}={value}")
    return printable(" ".join(words)) or "exact"


def varying_settings(rows: Iterable[Row]) -> list[str]:
    """Return the setting columns that differ among rows: the model, and what does not follow from it."""
    return settings.independent(list(rows))


def position_format(row: Row) -> Format | None:
    """Return the format in which a row's positions are stored, the dtype where no stage says it."""
    stages: Mapping[str, str] = dict(
        word.partition("=")[::2] for word in str(row.get("stages") or "").split()
    )
    try:
        return parse(str(stages.get("position", row.get("dtype"))).rpartition("/")[2])
    except UnknownName:
        return None


def inexact_marks(rows: Sequence[Row]) -> list[Mark]:
    """Return where the longest sequence of the rows reaches the first position that each format cannot hold.

    A sequence of s positions reaches position p at offset p - s + 1.

    >>> inexact_marks([{"stages": "position=bfloat16", "seq_len": 64}])
    [Mark(offset=194, position=257, format='bfloat16')]
    """
    length = max((int(row.get("seq_len") or 1) for row in rows), default=1)
    distinct: dict[tuple[str, str], Row] = {}
    for row in rows:
        distinct.setdefault((str(row.get("stages")), str(row.get("dtype"))), row)
    formats = dict.fromkeys(map(position_format, distinct.values()))
    return [
        Mark(fmt.first_inexact_integer - length + 1, fmt.first_inexact_integer, fmt.name)
        for fmt in formats
        if fmt is not None
    ]
