"""Streaming statistics of scores, or of the differences between two sets of scores.

A block at a time goes in; sums are formed in float64 and merged in a fixed order, so that the result does not
depend on the number of threads.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeAlias

from ropeaudit.engine.array_library import NUMPY, A, ArrayLibrary, NumPyArray
from ropeaudit.engine.summary import Summary, Wanted
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask

Place: TypeAlias = tuple[int, int, int]  # head, query, key

NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


@dataclass(frozen=True, slots=True)
class Block(Generic[A]):
    """Some scores of a head: a tile of them, or a list of pairs.

    corner: where the first one stands. visible: how many count; the others are `hidden`, and 0 in what is
    gathered. weights: of each score, where scores were sampled: 1 in the mean.
    Shapes: hidden (r, c), weights (n,).
    """

    library: ArrayLibrary[A]
    shape: tuple[int, ...]
    visible: int
    corner: Place = (0, 0, 0)
    hidden: A | None = None
    weights: A | None = None

    @classmethod
    def tile(
        cls, mask: Mask, head: int, rows: slice, cols: slice, library: ArrayLibrary[Any] = NUMPY
    ) -> Block[Any]:
        """Return the block of some queries with some keys."""
        shape = rows.stop - rows.start, cols.stop - cols.start
        hidden = masks.hidden(mask, rows, cols, library.arange)
        visible = shape[0] * shape[1]
        if hidden is not None:
            visible = masks.visible(mask, rows, cols)
        return Block(library, shape, visible, (head, rows.start, cols.start), hidden)

    @classmethod
    def pairs(cls, first: int, weights: NumPyArray) -> Block[NumPyArray]:
        """Return the block of sampled pairs; `first`, the number of the first one, stands for its key."""
        return Block(NUMPY, weights.shape, weights.size, (0, 0, first), None, weights)

    def place(self, number: int) -> Place:
        """Return where a score of the block stands."""
        row, column = divmod(number, self.shape[-1])
        return self.corner[0], self.corner[1] + row, self.corner[2] + column


class Moments(IntEnum):
    """What is gathered; each includes those before it."""

    SQUARES = 1  # count and mean square
    LARGEST = 2  # the largest absolute value, and where it stands
    MEANS = 3  # the signed and the absolute mean


@dataclass(slots=True)
class Statistics:
    """Count, mean square, largest absolute value and means, as far as they are requested.

    One value that is not finite makes every statistic nan: a gate on them must not hold.
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

    def add(self, values: A, block: Block[A], scratch: A | None = None) -> None:
        """Take in the values of a block. scratch: a float64 array like them, overwritten."""
        self.count += block.visible
        weights = block.weights if self.weighted else None
        largest, means = self.moments >= Moments.LARGEST, self.moments >= Moments.MEANS
        wanted = Wanted(largest, means, self.largest, weights, scratch)
        block.library.summarize(values, wanted, functools.partial(self._take, block))

    def _take(self, block: Block[A], seen: Summary) -> None:
        """Take in the numbers of a block."""
        if seen.number >= 0 and seen.largest > self.largest:
            self.largest, self.place = seen.largest, block.place(seen.number)
        self.nonfinite += seen.nonfinite
        self.squares += seen.squares
        self.fourths += seen.fourths
        self.total += seen.total
        self.absolute += seen.absolute

    def add_nonfinite(self, count: int) -> None:
        """Take in values none of which is finite."""
        self.count += count
        self.nonfinite += count

    def merge(self, later: Statistics) -> None:
        """Take in what was gathered over later blocks."""
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
