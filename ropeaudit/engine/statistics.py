"""Streaming statistics of scores, or of the differences between two sets of scores.

A block at a time goes in; sums are formed in float64 and merged in a fixed order, so that the result does not
depend on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask

Place: TypeAlias = tuple[int, int, int]  # head, query, key
Values: TypeAlias = NDArray[Any]  # float32 or float64

NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


@dataclass(frozen=True, slots=True)
class Block:
    """Some scores of a head: a tile of them, or a list of pairs.

    corner: the place of the first score. visible: the number that count; the others are `hidden`, and 0 in
    the values. weights: of each score, if scores were sampled: 1 in the mean.
    Shapes: hidden (r, c), weights (n,).
    """

    shape: tuple[int, ...]
    visible: int
    corner: Place = (0, 0, 0)
    hidden: NDArray[np.bool_] | None = None
    weights: Values | None = None

    @classmethod
    def tile(cls, mask: Mask, head: int, rows: slice, cols: slice) -> Block:
        """Return the block of some queries with some keys."""
        shape = rows.stop - rows.start, cols.stop - cols.start
        hidden = masks.hidden(mask, rows, cols)
        visible = shape[0] * shape[1] - (0 if hidden is None else int(np.count_nonzero(hidden)))
        return cls(shape, visible, (head, rows.start, cols.start), hidden)

    @classmethod
    def pairs(cls, first: int, weights: Values) -> Block:
        """Return the block of sampled pairs. first: the number of the first."""
        return cls(weights.shape, weights.size, (0, 0, first), None, weights)

    def place(self, number: int) -> Place:
        """Return head, query and key of a score of the block."""
        row, column = divmod(number, self.shape[-1])
        return self.corner[0], self.corner[1] + row, self.corner[2] + column


class Moments(IntEnum):
    """Sets of statistics; each includes those before it."""

    SQUARES = 1  # count and mean square
    LARGEST = 2  # the largest absolute value, and where it stands
    MEANS = 3  # the signed and the absolute mean


@dataclass(slots=True)
class Statistics:
    """Count, mean square, largest absolute value and means, as far as requested.

    One value that is not finite makes every statistic nan, so that a gate on it fails.
    weighted: of sampled scores, of which each counts by its weight: 1/(N p) where it was drawn with
    probability p, N draws with replacement. So every sum is without bias, whatever the probabilities were
    (Hansen and Hurwitz, Ann. Math. Stat. 14, 1943). The largest value and the counts are those of the sample.
    squares, total, absolute: sums of squares, of values and of |values|. fourths: of the squares of the
    weighted squares, which says how sure their mean is; of weighted statistics alone.
    """

    moments: Moments = Moments.MEANS
    weighted: bool = False
    count: int = 0
    nonfinite: int = 0
    squares: float = 0.0
    largest: float = 0.0
    place: Place | None = None
    total: float = 0.0
    absolute: float = 0.0
    fourths: float = 0.0

    def add(self, values: Values, block: Block, scratch: Values | None = None) -> None:
        """Add the values of a block; if some are not finite, only their number.

        scratch: a float64 array like them, overwritten.
        """
        self.count += block.visible
        weights = block.weights if self.weighted else None
        sizes = np.abs(values, out=scratch) if self.moments >= Moments.MEANS else None
        if self.moments >= Moments.LARGEST:
            if sizes is None:
                low, high = float(values.min()), float(values.max())
                largest = high if high >= -low else -low
            else:
                largest = float(sizes.max())
            if not math.isfinite(largest):
                self.nonfinite += values.size - int(np.isfinite(values).sum())
                return
            if largest > self.largest:
                where = (np.abs(values) if sizes is None else sizes).argmax()
                self.largest, self.place = largest, block.place(int(where))
        if values.dtype != np.float64:
            if scratch is None:
                values = values.astype(np.float64)
            else:
                np.copyto(scratch, values, casting="same_kind")
                values = scratch
        if weights is None:
            squares = _dot(values, values)
            if sizes is not None:
                self.total += _total(values)
                self.absolute += _total(sizes)
        else:
            each = (weights * values) * values
            squares = _total(each)
            self.fourths += _dot(each, each)
            if sizes is not None:
                self.total += _dot(weights, values)
                self.absolute += _dot(weights, sizes)
        self.squares += squares
        if self.moments < Moments.LARGEST and not math.isfinite(squares):
            self.nonfinite += values.size - int(np.isfinite(values).sum())

    def add_nonfinite(self, count: int) -> None:
        """Add a number of values that are not finite."""
        self.count += count
        self.nonfinite += count

    def merge(self, later: Statistics) -> None:
        """Add the statistics of later blocks."""
        self.count += later.count
        self.nonfinite += later.nonfinite
        self.squares += later.squares
        if later.largest > self.largest:
            self.largest, self.place = later.largest, later.place
        self.total += later.total
        self.absolute += later.absolute
        self.fourths += later.fourths

    def _defined(self, value: float) -> float:
        return math.nan if self.nonfinite or not self.count else value

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return self._defined(math.sqrt(self.squares / max(self.count, 1)))

    @property
    def max(self) -> float:
        """The largest absolute value."""
        return self._defined(self.largest)

    @property
    def mean(self) -> float:
        """The signed mean."""
        return self._defined(self.total / max(self.count, 1))

    @property
    def mean_abs(self) -> float:
        """The mean absolute value."""
        return self._defined(self.absolute / max(self.count, 1))

    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval of the RMS of all scores; None where nothing was sampled.

        nan if undefined, 0 if all values are 0. The draws are independent, so their mean of squares is nearly
        normal; its standard error goes to the logarithm of the RMS by the delta method:
        rms * exp(+-1.96 * se / (2 * mean square)). How often it holds: tests/coverage_of_sample.py.
        """
        if not self.weighted:
            return None, None
        if self.nonfinite or self.count < 2 or not math.isfinite(self.fourths):
            return math.nan, math.nan
        if not self.squares:
            return 0.0, 0.0
        spread = self.count * (self.fourths / self.squares / self.squares) - 1
        error = math.sqrt(max(spread, 0.0) / (self.count - 1))
        factor = math.exp(min(NORMAL * error / 2, 700.0))
        return self.rms / factor, self.rms * factor


def _total(x: Values) -> float:
    rows = x @ np.ones(x.shape[1]) if x.ndim == 2 else x  # a product by rows is the fastest sum
    return float(rows.sum())


def _dot(a: Values, b: Values) -> float:
    return float(np.dot(a.reshape(-1), b.reshape(-1)))
