"""Exact scores of another setting, as a subject: what a change of the setting itself does.

Its drift against the reference is structural: it is there in exact arithmetic. The error is that of
float64 rotations and sums, about 1e-13 of the scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropeaudit import __version__
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions


class Exact:
    """The reference at a setting of its own; implements `ropeaudit.subjects.Subject`."""

    name, backend, device = "exact", "numpy", "cpu"
    dtype = accumulate = score = softmax = output = FP64
    version = __version__
    scale_after_store = False
    narrowest = 24  # a float64 reference is what it can be compared with

    def __init__(self, setting: RopeSetting, input_format: Format) -> None:
        """Keep the setting; q and k are rounded to `input_format` like those of the subject beside it."""
        self.setting, self.input = setting, input_format

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return nothing: every position is taken."""
        return ""

    def table(self, positions: Positions, offset: int) -> Any:
        """Return cos and sin at positions + offset, in double-double."""
        return exact_scores.distance_table((positions + offset).astype(np.float64), self.setting)

    def rotate(self, x: FloatArray, table: Any) -> FloatArray:
        """Return x rotated exactly, rounded to float64. Shapes: (s, d) -> (s, d)."""
        factor: Factor = exact_scores.rotated(x.astype(np.float64, copy=False), table, self.setting, "double")
        return factor.whole

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions there are."""
        return int(positions.size)

    def stages(self) -> dict[str, str]:
        """Return nothing: no stage rounds."""
        return {}
