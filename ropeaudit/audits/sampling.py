"""How much of q and k there is time to look at, for a number of variants of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions

MOST_POSITIONS = 256
_BUDGET = 5e9  # nanoseconds of one thread, at the rates below
_FEW_HEADS, _FEW_POSITIONS, _FEWEST_POSITIONS = 4, 64, 16
TABLE = ("position", "frequency", "angle", "trig", "table")  # the stages that q and k have no part in
ROTATION = ("rotation", "output")


@dataclass(frozen=True, slots=True)
class Sample:
    """Which positions (n,) and query heads are looked at."""

    positions: Positions
    heads: tuple[int, ...]

    def covers(self, inputs: Inputs) -> bool:
        """Return whether nothing is left out."""
        return (len(self.heads), self.positions.size) == inputs.q.shape[:2]


def sample(inputs: Inputs, setting: RopeSetting, variants: Sequence[Resolved]) -> Sample:
    """Return as many positions and heads as measuring the variants has time for, evenly spread.

    The choice depends on its arguments alone, not on the machine.
    """
    heads, size, _ = inputs.q.shape
    distinct = {tuple(getattr(v, name) for name in (*TABLE, *ROTATION, "accumulate")) for v in variants}
    slow = sum(1 for key in distinct if key[-1].precision < FP32.precision)  # sums step by step
    cost = (len(distinct) - slow) * (0.15 * setting.head_dim + 15.0) + slow * 45.0 * setting.head_dim
    allowed = max(1, int(_BUDGET / max(cost, 1.0)))
    count = min(size, MOST_POSITIONS)
    for fewest, some in ((_FEW_POSITIONS, _FEW_HEADS), (_FEWEST_POSITIONS, 1)):
        if allowed // count**2 < min(some, heads):
            count = min(count, max(fewest, math.isqrt(allowed // min(some, heads))))
    stored = max(1, min(heads, allowed // count**2))
    return Sample(_spread(size, count), tuple(_spread(heads, stored).tolist()))


def _spread(size: int, count: int) -> Positions:
    """Return `count` whole numbers from 0 to size - 1, evenly spread."""
    return np.linspace(0, size - 1, count).round().astype(np.int64)
