"""Where the bits of q and k end: whether their products, and sums of these, are exact in an accumulator.

Letters: n numbers, e exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array

_LOWEST, _HIGHEST = -1100, 1100  # exponents of last bits of float64, and more


@dataclass(slots=True)
class Endings:
    """How many numbers of q and of k have their last bit at each exponent (2, e).

    numbers: how many there are (2,), those among them that are 0 and have no last bit.
    """

    counts: Array = field(default_factory=lambda: np.zeros((2, _HIGHEST - _LOWEST)))
    numbers: Array = field(default_factory=lambda: np.zeros(2))

    def add(self, side: int, x: Array) -> None:
        """Count numbers of q (side 0) or k (side 1)."""
        finite = x[np.isfinite(x)]
        mantissas, exponents = np.frexp(finite[finite != 0])
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        last_bits = exponents - 54 + np.frexp((whole & -whole).astype(np.float64))[1]
        self.counts[side] += np.bincount(last_bits - _LOWEST, minlength=self.counts.shape[1])
        self.numbers[side] += x.size

    @classmethod
    def joined(cls, parts: Sequence[Endings]) -> Endings:
        """Return what was counted in all the parts."""
        return cls(
            np.sum([part.counts for part in parts], axis=0), np.sum([part.numbers for part in parts], axis=0)
        )

    def share_below(self, exponent: int) -> float:
        """Return the share of products of a number of q and one of k whose last bit is below an exponent."""
        q, k = self.counts
        total, below = float(self.numbers.prod()), np.concatenate([[0.0], np.cumsum(k)])
        highest = np.clip(exponent - 2 * _LOWEST - np.arange(q.size), 0, q.size)
        return float(q @ below[highest]) / total if total else 0.0
