"""Where values stand on a chart: scales, ranges, ticks and their labels, the same for every kind of drawing.

x, in tokens, is logarithmic where its range is wide: sign(x) log10(1 + |x|), so that 0 and negative offsets
have a place. Drift is logarithmic; 0 stands on a shelf below the axis, nan and infinity on one above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.reports.charts.series import Series

_WIDE = 20  # largest over smallest from which on an axis is logarithmic
_TICKS = 7  # of powers of ten


def is_wide(first: int, last: int) -> bool:
    """Return whether distances from `first` to `last` need a logarithmic axis."""
    return last >= _WIDE * max(first, 1)


def linear_part(xs: Iterable[float]) -> float | None:
    """Return up to which |x| an axis with a logarithmic part is linear, None where all of it should be.

    >>> linear_part([0, 64, -4096]), linear_part([50, 1000])
    (64, None)
    """
    sizes = sorted({abs(x) for x in xs if x})
    return sizes[0] if sizes and sizes[-1] > _WIDE * sizes[0] else None


def signed_log(x: float) -> float:
    """Return sign(x) log10(1 + |x|)."""
    return math.copysign(math.log10(1 + abs(x)), x)


def signed_power(place: float) -> int:
    """Return the whole number nearest to where `signed_log` is `place`."""
    return round(math.copysign(10 ** min(abs(place), 300.0) - 1, place))


def round_values(first: int, last: int) -> list[int]:
    """Return a few round distances from `first` to `last`, both included: the rows of a table.

    1, 2, 5, 10, ... over a wide range, 17 evenly spaced ones over a narrow one.
    >>> round_values(0, 50)
    [0, 1, 2, 5, 10, 20, 50]
    """
    if is_wide(first, last):
        steps = [digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5)]
        values = [first, *(step for step in steps if first < step < last), last]
    else:
        values = [first + round((last - first) * part / 16) for part in range(17)]
    return list(dict.fromkeys(values))


def dense(first: int, last: int, count: int = 512) -> list[int]:
    """Return about `count` distances: those of a curve, and evenly spaced ones of the farther half."""
    parts = np.linspace(0.0, 1.0, count)
    if is_wide(first, last):
        low, high = math.log1p(first), math.log1p(last)
        curved = np.rint(np.expm1(low + (high - low) * parts))
    else:
        curved = np.rint(first + (last - first) * parts)
    far = np.rint(np.linspace((first + last) / 2, last, count // 4))
    inner = (min(max(int(x), first), last) for x in np.concatenate([curved, far]))
    return sorted({first, *inner, last})


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis, from `first` to `last` as `measure` returns them."""

    first: float
    last: float
    measure: Callable[[float], float] = float

    def share(self, value: float) -> float:
        """Return how far along the axis a value stands: 0 at its beginning, 1 at its end."""
        return (self.measure(value) - self.first) / (self.last - self.first)

    def holds(self, value: float) -> bool:
        """Return whether a value stands on the axis."""
        return self.first <= self.measure(value) <= self.last


@dataclass(frozen=True, slots=True)
class Box:
    """The place for a chart in units of its drawing, y downwards; shelf: height of what is off the scale."""

    left: float
    right: float
    top: float
    bottom: float
    shelf: float


@dataclass(frozen=True, slots=True)
class DriftAxes:
    """From offsets and drifts to places in a box.

    powers: the axis of log10(drift), from one whole number to another.
    zeros, nonfinite: whether there are values to put on the shelves.
    """

    box: Box
    offsets: Scale
    powers: Scale
    zeros: bool
    nonfinite: bool

    def x(self, offset: float) -> float:
        """Return how far to the right an offset stands."""
        return self.box.left + self.offsets.share(offset) * (self.box.right - self.box.left)

    def y(self, value: float) -> float:
        """Return how far down a drift stands."""
        if not math.isfinite(value):
            return self.box.top + self.box.shelf / 2
        if value <= 0:
            return self.box.bottom - self.box.shelf / 2
        return self.level(math.log10(value))

    def level(self, power: float) -> float:
        """Return how far down 10^power stands."""
        return self.bottom - self.powers.share(power) * (self.bottom - self.top)

    @property
    def top(self) -> float:
        """The upper end of the logarithmic part."""
        return self.box.top + self.box.shelf * self.nonfinite

    @property
    def bottom(self) -> float:
        """The lower end of the logarithmic part."""
        return self.box.bottom - self.box.shelf * self.zeros

    def y_ticks(self) -> list[tuple[float, str]]:
        """Return the levels that have a grid line, with their labels."""
        low, high = int(self.powers.first), int(self.powers.last)
        powers = range(low, high + 1, -(-(high - low) // _TICKS))
        ticks = [(self.level(power), f"1e{power}" if power else "1") for power in powers]
        return ticks + [(self.y(math.nan), "nan, inf")] * self.nonfinite + [(self.y(0), "0")] * self.zeros

    def x_ticks(self, gap: float) -> list[tuple[float, str]]:
        """Return places at least `gap` apart, with labels: 0 and powers of ten, or the ends."""
        first, last = self.offsets.first, self.offsets.last
        powers = range(int(max(abs(first), abs(last))) + 1)
        usual = [*(-(10**p) for p in reversed(powers)), 0, *(10**p for p in powers)]
        offsets = [offset for offset in usual if self.offsets.holds(offset)]
        if len(offsets) < 2:
            offsets = sorted({*offsets, signed_power(first), signed_power(last)})
        ticks: list[tuple[float, str]] = []
        for offset in offsets:
            if not ticks or self.x(offset) - ticks[-1][0] >= gap:
                ticks.append((self.x(offset), _label(offset)))
        return ticks


def drift_axes(lines: Iterable[Series], box: Box) -> DriftAxes:
    """Return the axes that hold every line, so that charts side by side can be compared."""
    lines = list(lines)
    points = [point for line in lines for point in line.points]
    offsets = [point.x for point in points] or [0]
    values = [point.y for point in points] + [line.floor for line in lines]
    logs = [math.log10(value) for value in values if math.isfinite(value) and value > 0] or [-1.0]
    first, last = signed_log(min(offsets)), signed_log(max(offsets))
    margin = 0.03 * (last - first) or 0.5
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return DriftAxes(
        box,
        Scale(first - margin, last + margin, signed_log),
        Scale(low, max(high, low + 1)),
        zeros=any(value <= 0 for value in values),
        nonfinite=any(not math.isfinite(point.y) for point in points),
    )


def _label(offset: int) -> str:
    """Return a power of ten from 10,000 on as 1e4, anything else in full."""
    digits = str(abs(offset))
    short = len(digits) > 4 and digits.rstrip("0") == "1"
    return f"{'-' * (offset < 0)}1e{len(digits) - 1}" if short else f"{offset:,}"


def spread(places: Sequence[float], gap: float, first: float, last: float) -> list[float]:
    """Return ascending places moved on until they are `gap` apart, and back where they pass `last`.

    The first one stands at `first` or behind it.

    >>> spread([1.0, 2.0, 50.0], 10.0, 0.0, 40.0)
    [1.0, 11.0, 40.0]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap if moved else first))
    if moved and moved[-1] > last:
        limit = last
        for i in reversed(range(len(moved))):
            moved[i] = min(moved[i], limit)
            limit = moved[i] - gap
    return moved
