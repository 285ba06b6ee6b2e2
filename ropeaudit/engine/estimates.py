"""Statistics of all scores, estimated from some that were drawn with probabilities of their own.

A score drawn with probability p counts 1/(N p) times, N draws with replacement: Hansen and Hurwitz, Ann.
Math. Stat. 14 (1943). So every sum is without bias, whatever the probabilities were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.engine.statistics import Differences

NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


@dataclass(slots=True)
class Estimated(Differences):
    """`Differences` of all scores: every drawn value counts by its weight, which is 1 in the mean.

    fourths: the sum of squares of the weighted squares, which says how sure their mean is. The largest value
    is that of the sample, and so are the counts.
    """

    fourths: float = 0.0

    def take(self, values: Array, weights: Array, start: int) -> None:
        """Take in some values; `start` is the number of the first among all that were drawn. Shapes: (n,)."""
        sizes = np.abs(values)
        peak = float(sizes.max(initial=0.0))
        self.count += values.size
        if not math.isfinite(peak):
            self.nonfinite += int(values.size - np.isfinite(values).sum())
            return
        if peak > self.largest:
            self.largest, self.place = peak, (0, 0, start + int(sizes.argmax()))
        squares = weights * values * values
        self.total += float(weights @ values)
        self.absolute += float(weights @ sizes)
        self.squares += float(squares.sum())
        self.fourths += float(squares @ squares)

    def merge(self, later: Estimated) -> None:
        """Take in what was gathered over later blocks."""
        Differences.merge(self, later)
        self.fourths += later.fourths

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the RMS of all scores; nan if undefined, 0 if all values are 0.

        The draws are independent, so their mean of squares is nearly normal; its standard error goes to the
        logarithm of the RMS by the delta method: rms * exp(+-1.96 * se / (2 * mean square)). How often it
        holds the truth is measured: tests/coverage_of_sample.py.
        """
        if self.nonfinite or self.count < 2 or not math.isfinite(self.fourths):
            return math.nan, math.nan
        if not self.squares:
            return 0.0, 0.0
        spread = self.count * (self.fourths / self.squares / self.squares) - 1
        error = math.sqrt(max(spread, 0.0) / (self.count - 1))
        factor = math.exp(min(NORMAL * error / 2, 700.0))
        return self.rms / factor, self.rms * factor
