"""Charts of a sweep: one a subject and setting, one line a dtype, the worst first; each in words too.

They are SVG that needs no script and no colour to be read: every line has a colour, a dash and a marker of
its own. Lengths are in units of the view box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropeaudit.reports import Row
from ropeaudit.reports.charts.axes import Box, DriftAxes, drift_axes, spread
from ropeaudit.reports.charts.series import (
    DataPoint,
    Mark,
    Series,
    drift_series,
    inexact_marks,
    varying_settings,
)
from ropeaudit.reports.html import element, tag, text
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import bad, severity

MOST_CHARTS = 12
MOST_POINTS = 120  # of a line: more would lie on one another
STYLES = 7  # lines that look different, see report.css
_NEEDED = frozenset({"implementation", "dtype", "offset", "drift_rms", "floor_rms", "verdict"})
_REPORTED = ("backend", "version", "device", "sample", "file")  # they tell rows apart as settings do
_MERGED = ("seed",)  # rows that differ in it alone are one line: the largest drift counts
_WIDTH, _HEIGHT = 480, 314
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 370, 20, 268
_BOX = Box(_LEFT, _RIGHT, _TOP, _BOTTOM, shelf=18)
_NAMES, _TICKS = 15, 36  # least distance of two names of lines, of two ticks
_LONGEST = 12  # characters of a name
_MARKERS = (
    "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0z",
    "M-3.2,-3.2h6.4v6.4h-6.4z",
    "M0,-4.2L4,3.2H-4z",
    "M0,-4.6L4.2,0L0,4.6L-4.2,0z",
    "M0,4.2L4,-3.2H-4z",
    "M-1.2,-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
    "M-4,-2h8v4h-8z",
)
_CROSS = "M-3.5,-3.5L3.5,3.5M-3.5,3.5L3.5,-3.5"


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


def shared_axes(charts: Sequence[Chart]) -> DriftAxes:
    """Return the axes for drawings that stand side by side."""
    return drift_axes((line for chart in charts for line in chart.lines), _BOX)


def draw(chart: Chart, axes: DriftAxes, number: int) -> str:
    """Return the drawing; `number` tells its ids from those of others on the page."""
    inside = [
        element("title", text(chart.title), id=f"chart{number}-title"),
        element("desc", text(chart.description), id=f"chart{number}-desc"),
        *_frame(axes),
        *_marks(axes, chart.marks),
        *(_line(axes, line) for line in chart.lines),
        *_names(axes, [line for line in chart.lines if line.points]),
    ]
    return element(
        "svg",
        "\n".join(inside),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"chart{number}-title",
        aria_describedby=f"chart{number}-desc",
    )


def _frame(axes: DriftAxes) -> list[str]:
    """Return the grid, the ticks with their labels, the names of the axes."""
    box = tag("rect", class_="frame", x=_LEFT, y=_TOP, width=_RIGHT - _LEFT, height=_BOTTOM - _TOP)
    parts = [f"{box}</rect>"]
    for y, label in axes.y_ticks():
        parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f}H{_RIGHT}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for x, label in axes.x_ticks(_TICKS):
        parts.append(f'<path class="grid" d="M{x:.1f},{_TOP}V{_BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{label}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">offset, tokens</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(12,{(_TOP + _BOTTOM) / 2}) rotate(-90)" '
        'text-anchor="middle">drift, RMS</text>'
    )
    return parts


def _line(axes: DriftAxes, line: Series) -> str:
    """Return the floor, the line between finite points, a marker at each of them."""
    style, parts = line.style % STYLES, []
    if line.floor > 0 and math.isfinite(line.floor):
        parts.append(f'<path class="floor" d="M{_LEFT},{axes.y(line.floor):.1f}H{_RIGHT}"/>')
    path, joined = [], False
    for point in line.points:
        on_scale = math.isfinite(point.y) and point.y > 0
        if on_scale:
            path.append(f"{'L' if joined else 'M'}{axes.x(point.x):.1f},{axes.y(point.y):.1f}")
        joined = on_scale
    parts += [f'<path class="line" d="{"".join(path)}"/>'] if len(path) > 1 else []
    for point in line.points:
        finite = math.isfinite(point.y)
        shape = f'<path class="{"dot" if finite else "cross"}" d="{_MARKERS[style] if finite else _CROSS}"'
        at = f' transform="translate({axes.x(point.x):.1f},{axes.y(point.y):.1f})"'
        parts.append(f"{shape}{at}><title>{text(_about(line.label, point))}</title></path>")
        if bad(point.row):
            parts.append(f'<circle class="ring" r="7"{at}/>')
    return element("g", "".join(parts), class_=f"s{style}")


def _about(label: str, point: DataPoint) -> str:
    """Return what a pointer on a marker shows."""
    return f"{label} at offset {point.x:,}: drift {short(point.y)} RMS, {point.row['verdict']}"


def _names(axes: DriftAxes, lines: Sequence[Series]) -> list[str]:
    """Return the names of the lines to the right of their last points, moved apart where they would touch."""
    ends = sorted((axes.y(line.points[-1].y), i) for i, line in enumerate(lines))
    places = spread([y for y, _ in ends], _NAMES, _TOP + 4, _BOTTOM)
    parts = []
    for (y, i), place in zip(ends, places, strict=True):
        style, label = lines[i].style % STYLES, lines[i].label
        name = text(label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…")
        leader = f"M{axes.x(lines[i].points[-1].x) + 5:.1f},{y:.1f}L{_RIGHT + 6},{place:.1f}"
        inside = (
            f'<path class="leader" d="{leader}"/>'
            f'<path class="dot" d="{_MARKERS[style]}" transform="translate({_RIGHT + 12},{place:.1f})"/>'
            f'<text class="name" x="{_RIGHT + 20}" y="{place + 4:.1f}">{name}</text>'
        )
        parts.append(element("g", inside, class_=f"s{style}"))
    return parts


def _marks(axes: DriftAxes, marks: Sequence[Mark]) -> list[str]:
    """Return upright lines, each with its offset above it as far as there is room."""
    parts, free = [], 0.0
    for offset in sorted({mark.offset for mark in marks}):
        if not axes.offsets.holds(offset):
            continue
        x, label = axes.x(offset), f"{offset:,}"
        parts.append(f'<path class="mark" d="M{x:.1f},{_TOP}V{_BOTTOM}"/>')
        half = 3.6 * len(label)
        if x - half >= free:
            parts.append(f'<text class="said" x="{x:.1f}" y="{_TOP - 5}" text-anchor="middle">{label}</text>')
            free = x + half + 4
    return parts
