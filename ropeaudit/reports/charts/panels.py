"""Charts of a sweep: one a subject and setting, one line a dtype, the worst first; each in words too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropeaudit.reports import Row
from ropeaudit.reports.charts.series import (
    DataPoint,
    Mark,
    Series,
    drift_series,
    inexact_marks,
    varying_settings,
)
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import severity

MOST_CHARTS = 12
MOST_POINTS = 120  # of a line: more would lie on one another
STYLES = 7  # lines that look different, see report.css
_NEEDED = frozenset({"implementation", "dtype", "offset", "drift_rms", "floor_rms", "verdict"})
_REPORTED = ("backend", "version", "device", "sample", "file")  # they tell rows apart as settings do
_MERGED = ("seed",)  # rows that differ in it alone are one line: the largest drift counts


@dataclass(frozen=True, slots=True)
class Chart:
    """The lines of one subject, with the offsets to mark. caption, description: the chart in words."""

    title: str
    caption: str
    description: str
    lines: Sequence[Series]
    marks: Sequence[Mark]


def charts(rows: Sequence[Row]) -> tuple[list[Chart], int]:
    """Return the charts, at most `MOST_CHARTS`, and how many there would be.

    Rows without the columns that a chart needs make none; refused rows were not measured.
    """
    rows = [row for row in rows if row.keys() >= _NEEDED and row["verdict"] != "refused"]
    names = [name for name in varying_settings(rows) if name not in _MERGED]
    names += [name for name in _REPORTED if len({repr(row.get(name)) for row in rows}) > 1]
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (str(row["implementation"]), *(_setting(name, row.get(name)) for name in names))
        grouped.setdefault(key, []).append(row)
    styles = {dtype: i % STYLES for i, dtype in enumerate(dict.fromkeys(str(row["dtype"]) for row in rows))}
    worst = sorted(grouped.items(), key=lambda item: max(map(severity, item[1])), reverse=True)
    return [_chart(", ".join(key), group, styles) for key, group in worst[:MOST_CHARTS]], len(grouped)


def _setting(name: str, value: Any) -> str:
    if name in ("model", "file"):
        return str(value)
    return f"{name} {f'{value:g}' if isinstance(value, float) else value}"


def _chart(title: str, rows: Sequence[Row], styles: Mapping[str, int]) -> Chart:
    lines = [
        replace(line, style=styles[line.label], points=thinned(_largest(line.points)))
        for line in drift_series(rows, lambda row: str(row["dtype"]))
    ]
    marks = sorted(inexact_marks(rows), key=lambda mark: mark.position)
    caption = _caption(marks)
    description = " ".join([*map(_sentence, lines), caption])
    return Chart(f"{title}: drift against offset", caption, description, lines, marks)


def _caption(marks: Sequence[Mark]) -> str:
    """Return which positions are the first that formats cannot hold, and the offsets that reach them."""
    formats: dict[tuple[int, int], list[str]] = {}
    for mark in marks:
        formats.setdefault((mark.position, mark.offset), []).append(mark.format)
    parts = [
        f"{position:,} in {', '.join(names)} (offset {offset:,})"
        for (position, offset), names in formats.items()
    ]
    return f"First inexact position: {'; '.join(parts)}." if parts else ""


def _largest(points: Sequence[DataPoint]) -> list[DataPoint]:
    """Return the point of the largest drift at each offset."""
    largest: dict[float, DataPoint] = {}
    for point in points:
        if point.x not in largest or _size(point) > _size(largest[point.x]):
            largest[point.x] = point
    return list(largest.values())


def _size(point: DataPoint) -> float:
    return point.y if math.isfinite(point.y) else math.inf


def thinned(points: Sequence[DataPoint]) -> list[DataPoint]:
    """Return at most `MOST_POINTS` points: of neighbours the largest drift stays, and so do both ends."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = len(points) / (MOST_POINTS - 2)
    parts = [points[round(i * step) : round((i + 1) * step)] for i in range(MOST_POINTS - 2)]
    chosen = {point.x: point for point in (points[0], points[-1])}
    chosen |= {point.x: point for point in (max(part, key=_size) for part in parts if part)}
    return [chosen[x] for x in sorted(chosen)]


def _sentence(line: Series) -> str:
    """Return the line as a sentence, for those who do not see it."""
    if not line.points:
        return f"{line.label}: nothing was measured."
    first, last, top = line.points[0], line.points[-1], max(line.points, key=_size)
    floor = f"; floor {short(line.floor)}" if math.isfinite(line.floor) else ""
    ends = f"{short(first.y)} at offset {first.x:,}"
    if last is not first:
        ends += f", {short(last.y)} at {last.x:,}, largest {short(top.y)} at {top.x:,}"
    return f"{line.label}: drift {ends}{floor}."
