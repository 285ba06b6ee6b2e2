"""How far scores of rotated vectors are from the exact ones, and how far they may be.

Letters: h heads, g key-value heads, s positions, d head_dim. Scores are scaled, before softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.audits import judging
from ropeaudit.bounds import Bound
from ropeaudit.engine import kernel
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions

RMS_FACTOR = 1.5  # measured RMS drift is 0.8 to 1.3 times the predicted RMS: docs/method.md


class ExactScores(NamedTuple):
    """Exact scores (h, s, s) and their certified error."""

    values: Array
    error: float


class ScoreDrift(NamedTuple):
    """The largest difference of scores, their RMS difference, inf where one is not finite; where it is."""

    largest: float
    rms: float
    place: tuple[int, int, int]  # head, query, key

    def over_bound(self, limit: Bound, error: float) -> bool:
        """Return whether the largest is above the a-priori bound; error: of the reference."""
        return self.largest > limit.maximum + error

    def over_prediction(self, limit: Bound, error: float) -> bool:
        """Return whether the RMS is above `RMS_FACTOR` times the predicted one."""
        return self.rms > RMS_FACTOR * limit.rms + error


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """What was measured at an offset with so many tokens, and what is allowed.

    error: of the reference. part: of what the tokens are, where that is not all that was given.
    """

    length: int
    offset: int
    drift: ScoreDrift
    reference_rms: float
    error: float
    limit: Bound
    part: str = ""

    @property
    def tokens(self) -> str:
        """What was measured: `4096 tokens of one head`."""
        return f"{self.length} tokens{self.part}"

    @property
    def allowed(self) -> float:
        """The RMS drift that is allowed."""
        return RMS_FACTOR * self.limit.rms + self.error

    @property
    def fails(self) -> bool:
        """Whether it is more than allowed."""
        over = self.drift.over_bound(self.limit, self.error)
        return over or self.drift.over_prediction(self.limit, self.error)

    @property
    def relative(self) -> float:
        """The RMS drift over the RMS of the exact scores."""
        return judging.ratio(self.drift.rms, self.reference_rms)

    @property
    def finite(self) -> bool:
        """Whether every score is finite."""
        return math.isfinite(self.drift.rms)


def drift(results: FloatArray, reference: FloatArray) -> ScoreDrift:
    """Return how far scores are from others. Shapes: (h, s, s) twice."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = results.astype(np.float64) - reference
        sizes = np.where(np.isfinite(difference), np.abs(difference), np.inf)
        rms = float(np.sqrt(np.mean(sizes**2)))
    head, query, key = (int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
    return ScoreDrift(float(sizes.max()), rms, (head, query, key))


def exact(inputs: Inputs, setting: RopeSetting, fmt: Format, at: Positions | None = None) -> ExactScores:
    """Return the exact scores of q and k rounded to `fmt`.

    at: the positions of their rows, by default 0, 1, ...
    Shapes: q (h, s, d), k (g, s, d).
    """
    at = np.arange(inputs.seq_len) if at is None else at
    table = exact_scores.distance_table(at.astype(np.float64), setting)
    results, error = [], 0.0
    for head in range(inputs.heads):
        sides = inputs.q[head], inputs.k[head // inputs.group]
        q, k = kernel.exact_factors(sides, fmt, (table, table), setting, "extended")
        results.append(exact_scores.joined(*exact_scores.product(q, k)))
        error = max(error, exact_scores.certificate(q, k))
    largest = max(float(np.abs(one).max()) for one in results)
    return ExactScores(np.stack(results), error + inputs.q.shape[2] * 2.0**-52 * largest * 8)


def products(q: FloatArray, k: FloatArray, scale: float) -> FloatArray:
    """Return q·k of all pairs of positions, scaled, in float64. Shapes: (h, s, d) twice -> (h, s, s)."""
    left, right = q.astype(np.float64), k.astype(np.float64)
    formed: FloatArray = np.matmul(left, right.transpose(0, 2, 1)) * scale
    return formed
