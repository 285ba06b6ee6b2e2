"""Streaming statistics of the differences between two sets of scores.

A tile at a time goes in, in float64; sums are formed in float64 and merged in a fixed order, so that the
result does not depend on the number of threads. Letters: r and c rows and columns of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray

Place = tuple[int, int, int]  # head, query, key


@dataclass(slots=True)
class Size:
    """Count and sum of squares.

    One value that is not finite makes every statistic nan: a gate on them must not hold.
    """

    count: int = 0
    nonfinite: int = 0
    squares: float = 0.0

    def weigh(self, tile: Array, visible: int) -> None:
        """Take in a tile; hidden elements are 0 in it and not counted in `visible`."""
        self.count += visible
        squares = _squares(tile)
        self.squares += squares
        if not math.isfinite(squares):
            self.nonfinite += int(tile.size - np.isfinite(tile).sum())

    def lose(self, count: int) -> None:
        """Take in values none of which is finite."""
        self.count += count
        self.nonfinite += count

    def merge(self, later: Self) -> None:
        """Take in what was gathered over later tiles."""
        self.count += later.count
        self.nonfinite += later.nonfinite
        self.squares += later.squares

    def _defined(self, value: float) -> float:
        return math.nan if self.nonfinite or not self.count else value

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return self._defined(math.sqrt(self.squares / max(self.count, 1)))


@dataclass(slots=True)
class Spread(Size):
    """A `Size` with the largest absolute value beside it, and where that stands."""

    largest: float = 0.0
    place: Place | None = None

    def add(self, tile: FloatArray, visible: int, corner: Place, scratch: Array | None = None) -> None:
        """Take in a tile; hidden elements are 0 in it and not counted in `visible`.

        corner: where tile[0, 0] stands. scratch: an array like it, overwritten where it is not float64.
        """
        low, high = float(tile.min()), float(tile.max())
        peak = high if high >= -low else -low  # nan where the tile holds one
        self.count += visible
        if not math.isfinite(peak):
            self.nonfinite += int(tile.size - np.isfinite(tile).sum())
            return
        if peak > self.largest:
            self._stand(peak, int(tile.argmax() if high >= -low else tile.argmin()), tile, corner)
        self.squares += _squares(_doubled(tile, scratch))

    def _stand(self, peak: float, at: int, tile: FloatArray, corner: Place) -> None:
        """Note that the largest value stands at element `at` of a tile."""
        row, column = divmod(at, tile.shape[1])
        self.largest = peak
        self.place = (corner[0], corner[1] + row, corner[2] + column)

    def merge(self, later: Self) -> None:
        """Take in what was gathered over later tiles."""
        Size.merge(self, later)
        if later.largest > self.largest:
            self.largest, self.place = later.largest, later.place

    @property
    def max(self) -> float:
        """The largest absolute value."""
        return self._defined(self.largest)


@dataclass(slots=True)
class Differences(Spread):
    """A `Spread` with the signed and the absolute mean beside it."""

    total: float = 0.0
    absolute: float = 0.0

    def gather(self, tile: Array, scratch: Array, visible: int, corner: Place) -> None:
        """Take in a tile of differences; `scratch`, an array like it, is overwritten."""
        sizes = np.abs(tile, out=scratch)
        peak = float(sizes.max())
        self.count += visible
        if not math.isfinite(peak):
            self.nonfinite += int(tile.size - np.isfinite(tile).sum())
            return
        if peak > self.largest:
            self._stand(peak, int(sizes.argmax()), tile, corner)
        ones = np.ones(tile.shape[1])  # a product by rows is the fastest sum
        self.squares += _squares(tile)
        self.total += float((tile @ ones).sum())
        self.absolute += float((sizes @ ones).sum())

    def merge(self, later: Self) -> None:
        """Take in what was gathered over later tiles."""
        Spread.merge(self, later)
        self.total += later.total
        self.absolute += later.absolute

    @property
    def mean(self) -> float:
        """The signed mean."""
        return self._defined(self.total / max(self.count, 1))

    @property
    def mean_abs(self) -> float:
        """The mean absolute value."""
        return self._defined(self.absolute / max(self.count, 1))


def _doubled(tile: FloatArray, scratch: Array | None) -> Array:
    """Return the tile in float64: itself, or a copy in `scratch`."""
    if tile.dtype == np.float64:
        return tile.view(np.float64)
    wide = np.empty(tile.shape) if scratch is None else scratch
    np.copyto(wide, tile)
    return wide


def _squares(tile: Array) -> float:
    flat = tile.reshape(-1)
    return float(np.dot(flat, flat))


def hide(tile: Array, hidden: NDArray[np.bool_] | None) -> None:
    """Set to 0, where it lies, what the mask hides."""
    if hidden is not None:
        np.copyto(tile, 0, where=hidden)
