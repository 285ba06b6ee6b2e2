"""Rows of an audit as drawings: one a subject and setting, one line a dtype, the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.errors import UnknownName
from ropeaudit.reports import Row, settings
from ropeaudit.reports.html.svg import STYLES, Chart, Line, Point
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import bad, severity

MOST_CHARTS = 12
MOST_POINTS = 120  # of a line: more would lie on one another
_NEEDED = frozenset({"subject", "dtype", "offset", "drift_rms", "floor_rms", "verdict"})
_REPORTED = ("backend", "version", "device", "sample", "file")  # they tell rows apart as settings do
_MERGED = ("seed",)  # rows that differ in it alone are one line: the largest drift counts


def charts(rows: Sequence[Row]) -> tuple[list[Chart], int]:
    """Return the drawings, at most `MOST_CHARTS`, and how many there would be.

    Rows without the columns that a drawing needs make none; refused rows were not measured.
    """
    rows = [row for row in rows if row.keys() >= _NEEDED and row["verdict"] != "refused"]
    names = [name for name in settings.varying(_whole(rows)) if name not in _MERGED]
    names += [name for name in _REPORTED if len({repr(row.get(name)) for row in rows}) > 1]
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(
            (str(row["subject"]), *(_message(name, row.get(name)) for name in names)), []
        ).append(row)
    styles = {dtype: i % STYLES for i, dtype in enumerate(dict.fromkeys(str(row["dtype"]) for row in rows))}
    worst = sorted(grouped.items(), key=lambda item: max(map(severity, item[1])), reverse=True)
    return [_chart(", ".join(key), some, styles) for key, some in worst[:MOST_CHARTS]], len(grouped)


def first_inexact(row: Row) -> tuple[int, Format] | None:
    """Return the first position that the row's position stage cannot hold, and the format of that stage."""
    for part in str(row.get("stages") or "").split():
        stage, _, name = part.partition("=")
        if stage == "position":
            try:
                return parse(name).first_inexact_integer, parse(name)
            except UnknownName:
                return None
    return None


def _whole(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    """The rows with None for the settings that they lack."""
    return [dict.fromkeys(settings.NAMES) | dict(row) for row in rows]


def _message(name: str, value: Any) -> str:
    if name in ("model", "file"):
        return str(value)
    return f"{name} {f'{value:g}' if isinstance(value, float) else value}"


def _chart(title: str, rows: Sequence[Row], styles: Mapping[str, int]) -> Chart:
    by_dtype: dict[str, list[Row]] = {}
    for row in rows:
        by_dtype.setdefault(str(row["dtype"]), []).append(row)
    lines = [_line(dtype, some, styles[dtype]) for dtype, some in by_dtype.items()]
    marks: dict[int, list[str]] = {}
    for row in (some[0] for some in by_dtype.values()):
        if result := first_inexact(row):
            marks.setdefault(result[0], []).append(result[1].name)
    inexact = "; ".join(f"{at:,} in {', '.join(dict.fromkeys(names))}" for at, names in sorted(marks.items()))
    caption = f"First inexact position: {inexact}." if inexact else ""
    about = " ".join([*map(_words, lines), caption])
    return Chart(f"{title}: drift against offset", caption, about, lines, sorted(marks))


def _line(dtype: str, rows: Sequence[Row], style: int) -> Line:
    points: dict[int, Point] = {}
    for row in rows:
        offset, value = int(row["offset"]), _number(row["drift_rms"])
        if offset not in points or _size(value) > _size(points[offset].value):
            about = f"{dtype} at offset {offset:,}: drift {short(value)} RMS, {row['verdict']}"
            points[offset] = Point(offset, value, about, bad(row))
    floors = [floor for row in rows if math.isfinite(floor := _number(row["floor_rms"]))]
    return Line(
        dtype, style, _fewer(sorted(points.values(), key=lambda p: p.offset)), max(floors, default=math.nan)
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _size(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _fewer(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` points: of neighbours the largest drift stays, and so do both ends."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = len(points) / (MOST_POINTS - 2)
    parts = [points[round(i * step) : round((i + 1) * step)] for i in range(MOST_POINTS - 2)]
    stored = {points[0].offset: points[0], points[-1].offset: points[-1]}
    stored |= {p.offset: p for p in (max(part, key=lambda p: _size(p.value)) for part in parts if part)}
    return [stored[offset] for offset in sorted(stored)]


def _words(line: Line) -> str:
    """The line as a sentence, for those who do not see it."""
    if not line.points:
        return f"{line.name}: nothing was measured."
    first, last = line.points[0], line.points[-1]
    top = max(line.points, key=lambda point: _size(point.value))
    floor = f"; floor {short(line.floor)}" if math.isfinite(line.floor) else ""
    ends = f"{short(first.value)} at offset {first.offset:,}"
    if last is not first:
        ends += f", {short(last.value)} at {last.offset:,}, largest {short(top.value)} at {top.offset:,}"
    return f"{line.name}: drift {ends}{floor}."
