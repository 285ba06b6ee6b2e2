"""Streaming statistics of the differences between two sets of scores.

A tile at a time goes in; sums are kept in float64 and merged in a fixed order, so that the result does not
depend on the number of threads. Letters: r and c rows and columns of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ropeaudit.formats import FloatArray

Place = tuple[int, int, int]  # head, query, key


@dataclass(slots=True)
class Size:
    """Count and sum of squares.

    One value that is not finite makes every statistic nan: a gate on them must not hold.
    """

    count: int = 0
    nonfinite: int = 0
    squares: float = 0.0

    def weigh(self, tile: FloatArray, visible: int) -> None:
        """Take in a float64 tile; hidden elements are 0 in it and not counted in `visible`."""
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

    def add(self, tile: FloatArray, visible: int, corner: Place) -> bool:
        """Take in a tile; return whether it is finite.

        Hidden elements are 0 in it and not counted in `visible`; corner: where tile[0, 0] stands.
        """
        return self._peak(tile, max(float(tile.max()), -float(tile.min())), visible, corner)

    def _peak(self, tile: FloatArray, peak: float, visible: int, corner: Place) -> bool:
        """Take in a tile whose largest absolute value, nan if it holds one, is `peak`."""
        self.count += visible
        if not math.isfinite(peak):
            self.nonfinite += int(tile.size - np.isfinite(tile).sum())
            return False
        if peak > self.largest:
            row, column = divmod(int(np.abs(tile).argmax()), tile.shape[1])
            self.largest = peak
            self.place = (corner[0], corner[1] + row, corner[2] + column)
        squares = _squares(tile)
        if tile.dtype == np.float32 and not 1e-25 < squares < 1e30:  # it may have over- or underflowed
            squares = _squares(tile.astype(np.float64) / (peak or 1.0)) * peak * peak
        self.squares += squares
        return True

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

    def gather(self, tile: FloatArray, scratch: FloatArray, visible: int, corner: Place) -> None:
        """Take in a tile of differences; `scratch`, an array like it, is overwritten."""
        sizes = np.abs(tile, out=scratch)
        if self._peak(tile, float(sizes.max()), visible, corner):
            ones = np.ones(tile.shape[1], tile.dtype)  # a product by rows is the fastest sum
            self.total += float((tile @ ones).sum(dtype=np.float64))
            self.absolute += float((sizes @ ones).sum(dtype=np.float64))

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


@dataclass(slots=True)
class Fourths(Differences):
    """`Differences` with the sum of fourth powers beside them: how sure a mean square is."""

    fourths: float = 0.0

    def gather(self, tile: FloatArray, scratch: FloatArray, visible: int, corner: Place) -> None:
        """Take in a tile of differences; `scratch`, an array like it, is overwritten."""
        Differences.gather(self, tile, scratch, visible, corner)
        squares = np.multiply(tile, tile, out=scratch).reshape(-1)
        self.fourths += float(np.dot(squares, squares))

    def merge(self, later: Self) -> None:
        """Take in what was gathered over later tiles."""
        Differences.merge(self, later)
        self.fourths += later.fourths

    @property
    def relative_error(self) -> float:
        """The standard error of the mean square, over it; nan below 2 differences, 0 if all are 0."""
        if self.nonfinite or self.count < 2:
            return math.nan
        if not self.squares:
            return 0.0
        spread = self.count * (self.fourths / self.squares / self.squares) - 1
        return math.sqrt(max(spread, 0.0) / (self.count - 1))


def _squares(tile: FloatArray) -> float:
    flat = tile.reshape(-1)
    return float(np.dot(flat, flat))


def hide(tile: FloatArray, hidden: NDArray[np.bool_] | None) -> None:
    """Set to 0, where it lies, what the mask hides."""
    if hidden is not None:
        np.copyto(tile, 0, where=hidden)
