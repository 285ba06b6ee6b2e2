"""Drift against offset as a drawing: SVG that needs no script and no colour to be read.

Both axes are logarithmic; offset 0 stands where log10(1 + offset) is 0, negative offsets to its left. A drift
of 0 stands on a shelf of its own below the axis, and what is not finite on one above it.
Lengths are in units of the view box. Every line has a colour, a dash and a marker of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropeaudit.reports.html.text import element, tag, text

STYLES = 7  # lines that look different, see report.css
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 314, 58, 370, 20, 268
_SHELF, _LABEL = 18, 15  # height of a shelf, least distance of two labels
_TICKS = 7
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
class Point:
    """A drift at an offset; a value that is not finite is shown as such.

    about: what a pointer shows. bad: whether it is out of tolerance, which a ring says.
    """

    offset: int
    value: float
    about: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """The drift of one dtype; style: 0 to STYLES - 1. floor: its drift at offset 0, nan where unknown."""

    name: str
    style: int
    points: Sequence[Point]
    floor: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The lines of one subject; marks: offsets to point out. caption, about: the drawing in words."""

    title: str
    caption: str
    about: str
    lines: Sequence[Line]
    marks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Axes:
    """From offsets and drifts to places on the drawing; low and high are powers of ten."""

    first: float
    last: float
    low: int
    high: int
    zeros: bool
    broken: bool

    def x(self, offset: int) -> float:
        """Return how far to the right an offset stands."""
        return _LEFT + (_wide(offset) - self.first) / (self.last - self.first) * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        """Return how far down a drift stands."""
        if not math.isfinite(value):
            return _TOP + _SHELF / 2
        if value <= 0:
            return _BOTTOM - _SHELF / 2
        return self.level(math.log10(value))

    def level(self, power: float) -> float:
        """Return how far down 10^power stands."""
        return self.bottom - (power - self.low) / (self.high - self.low) * (self.bottom - self.top)

    @property
    def top(self) -> float:
        """The upper end of the logarithmic part."""
        return _TOP + _SHELF * self.broken

    @property
    def bottom(self) -> float:
        """The lower end of the logarithmic part."""
        return _BOTTOM - _SHELF * self.zeros


def axes(charts: Sequence[Chart]) -> Axes:
    """Return the axes that hold every line, so that drawings side by side can be compared."""
    points = [point for chart in charts for line in chart.lines for point in line.points]
    offsets = [point.offset for point in points] or [0]
    values = [point.value for point in points] + [line.floor for chart in charts for line in chart.lines]
    sized = [math.log10(value) for value in values if math.isfinite(value) and value > 0] or [-1.0]
    first, last = _wide(min(offsets)), _wide(max(offsets))
    room = 0.03 * (last - first) or 0.5
    low, high = math.floor(min(sized)), math.ceil(max(sized))
    return Axes(
        first - room,
        last + room,
        low,
        max(high, low + 1),
        zeros=any(value <= 0 for value in values),
        broken=any(not math.isfinite(point.value) for point in points),
    )


def draw(chart: Chart, scale: Axes, number: int) -> str:
    """Return the drawing; `number` tells its ids from those of others on the page."""
    inside = [
        element("title", text(chart.title), id=f"chart{number}-title"),
        element("desc", text(chart.about), id=f"chart{number}-desc"),
        *_frame(scale),
        *_marks(scale, chart.marks),
        *(_line(scale, line) for line in chart.lines),
        *_labels(scale, chart.lines),
    ]
    return element(
        "svg",
        "\n".join(inside),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"chart{number}-title",
        aria_describedby=f"chart{number}-desc",
    )


def _frame(scale: Axes) -> list[str]:
    """The grid, the ticks with their labels, the names of the axes."""
    box = tag("rect", class_="frame", x=_LEFT, y=_TOP, width=_RIGHT - _LEFT, height=_BOTTOM - _TOP)
    plotted = [f"{box}</rect>"]
    levels = [(scale.level(power), _power(power)) for power in _thinned(scale.low, scale.high)]
    levels += [(scale.y(math.nan), "nan, inf")] * scale.broken + [(scale.y(0), "0")] * scale.zeros
    for y, label in levels:
        plotted.append(f'<path class="grid" d="M{_LEFT},{y:.1f}H{_RIGHT}"/>')
        plotted.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for offset in _offsets(scale):
        x = scale.x(offset)
        plotted.append(f'<path class="grid" d="M{x:.1f},{_TOP}V{_BOTTOM}"/>')
        plotted.append(
            f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{_tick(offset)}</text>'
        )
    middle = (_LEFT + _RIGHT) / 2
    plotted.append(
        f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">offset, tokens</text>'
    )
    plotted.append(
        f'<text class="axis" transform="translate(12,{(_TOP + _BOTTOM) / 2}) rotate(-90)" '
        'text-anchor="middle">drift, RMS</text>'
    )
    return plotted


def _line(scale: Axes, line: Line) -> str:
    """The floor, the line between finite points, a marker at each of them."""
    style, plotted = line.style % STYLES, []
    if line.floor > 0 and math.isfinite(line.floor):
        plotted.append(f'<path class="floor" d="M{_LEFT},{scale.y(line.floor):.1f}H{_RIGHT}"/>')
    path, joined = [], False
    for point in line.points:
        sound = math.isfinite(point.value) and point.value > 0
        if sound:
            path.append(f"{'L' if joined else 'M'}{scale.x(point.offset):.1f},{scale.y(point.value):.1f}")
        joined = sound
    plotted += [f'<path class="line" d="{"".join(path)}"/>'] if len(path) > 1 else []
    for point in line.points:
        finite = math.isfinite(point.value)
        shape = f'<path class="{"dot" if finite else "cross"}" d="{_MARKERS[style] if finite else _CROSS}"'
        at = f' transform="translate({scale.x(point.offset):.1f},{scale.y(point.value):.1f})"'
        plotted.append(f"{shape}{at}><title>{text(point.about)}</title></path>")
        if point.bad:
            plotted.append(f'<circle class="ring" r="7"{at}/>')
    return element("g", "".join(plotted), class_=f"s{style}")


def _labels(scale: Axes, lines: Sequence[Line]) -> list[str]:
    """The names of the lines to the right of their last points, moved apart where they would touch."""
    ends = sorted((scale.y(line.points[-1].value), i) for i, line in enumerate(lines) if line.points)
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + _LABEL if places else _TOP + 4))
    over = max(0.0, places[-1] - _BOTTOM) if places else 0.0
    for i in reversed(range(len(places))):  # too low: move up as far as the next one asks for
        limit = places[i + 1] - _LABEL if i + 1 < len(places) else _BOTTOM
        places[i] = min(places[i], limit) if over else places[i]
    plotted = []
    for (y, i), place in zip(ends, places, strict=True):
        line, style = lines[i], lines[i].style % STYLES
        leader = f"M{scale.x(line.points[-1].offset) + 5:.1f},{y:.1f}L{_RIGHT + 6},{place:.1f}"
        inside = (
            f'<path class="leader" d="{leader}"/>'
            f'<path class="dot" d="{_MARKERS[style]}" transform="translate({_RIGHT + 12},{place:.1f})"/>'
            f'<text class="name" x="{_RIGHT + 20}" y="{place + 4:.1f}">{text(_cut(line.name, 12))}</text>'
        )
        plotted.append(element("g", inside, class_=f"s{style}"))
    return plotted


def _marks(scale: Axes, offsets: Sequence[int]) -> list[str]:
    """Upright lines, each with its offset above it as far as there is room."""
    plotted, free = [], 0.0
    for offset in sorted(offsets):
        x, message = scale.x(offset), f"{offset:,}"
        if not _within(scale, offset):
            continue
        plotted.append(f'<path class="mark" d="M{x:.1f},{_TOP}V{_BOTTOM}"/>')
        half = 3.6 * len(message)
        if x - half >= free:
            plotted.append(
                f'<text class="said" x="{x:.1f}" y="{_TOP - 5}" text-anchor="middle">{message}</text>'
            )
            free = x + half + 4
    return plotted


def _within(scale: Axes, at: int) -> bool:
    return scale.first <= _wide(at) <= scale.last


def _wide(offset: int) -> float:
    return math.copysign(math.log10(1 + abs(offset)), offset)


def _thinned(low: int, high: int) -> range:
    return range(low, high + 1, -(-(high - low) // _TICKS))


def _offsets(scale: Axes) -> list[int]:
    """The offsets with a label: 0 and powers of ten, or the ends where these are too few."""
    powers = range(int(max(abs(scale.first), abs(scale.last))) + 1)
    usual = [*(-(10**p) for p in reversed(powers)), 0, *(10**p for p in powers)]
    results = [offset for offset in usual if _within(scale, offset)]
    if len(results) < 2:
        results = sorted({*results, _back(scale.first), _back(scale.last)})
    stored: list[int] = []
    for offset in results:
        if not stored or scale.x(offset) - scale.x(stored[-1]) >= 36:
            stored.append(offset)
    return stored


def _back(place: float) -> int:
    return round(math.copysign(10 ** min(abs(place), 300.0) - 1, place))


def _tick(offset: int) -> str:
    """A power of ten from 10,000 on as 1e4, anything else in full."""
    digits = str(abs(offset))
    short_one = len(digits) > 4 and digits.rstrip("0") == "1"
    return f"{'-' * (offset < 0)}1e{len(digits) - 1}" if short_one else f"{offset:,}"


def _power(power: int) -> str:
    return f"1e{power}" if power else "1"


def _cut(label: str, most: int) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
