"""Drift of scores by the distance between query and key.

Shifts do not show an error of the frequencies, which turns near tokens alike and grows with their distance.
Pairs are measured with keys among the first tokens, and with queries among the last ones if offsets are good
that far; the worse of both counts.

Letters: h heads, n keys, d head_dim.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import judging
from ropeaudit.audits.cases import Case
from ropeaudit.engine import kernel
from ropeaudit.engine.kernel import ExactScores, Side
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.factories import SubjectFactory

COLUMNS = ("drift_relative", "drift_rms", "drift_max")  # tolerances that apply to distances
_HEADS, _KEYS = 4, 64  # 256 pairs at each distance and place: some percent of error in their RMS


class Distances:
    """The distances 0 ... up_to of a subject in one case."""

    def __init__(
        self,
        case: Case,
        setting: RopeSetting,
        inputs: Inputs,
        factory: SubjectFactory,
        last: int,
        at_end: bool,
    ) -> None:
        """Draw q and k, (h, n, d). last: the last position; at_end: whether pairs end there too."""
        self.case, self.setting, self.factory = case, setting, factory
        self.seq_len, self.last, self.at_end = inputs.seq_len, last, at_end
        self.up_to = masks.reach(case.mask, last + 1)
        random = np.random.default_rng([inputs.seed or 0, 7])
        head = random.integers(inputs.heads, size=(_HEADS, 1))
        query, key = random.integers(inputs.seq_len, size=(2, _HEADS, _KEYS))
        self.q, self.k = inputs.q[head, query], inputs.k[head // inputs.group, key]
        self.exact = functools.cache(self._exact_scores_at)

    @property
    def measurable(self) -> bool:
        """Whether distances are measured: not on axes, nor of keys stored apart."""
        on_axes = self.setting.grid is not None or self.case.axis != "all"
        recipe = self.factory.recipe
        scaled = recipe is not None and recipe.recipe.keys is not None
        return self.up_to > 0 and not (on_axes or scaled or self.case.turns)

    def value(self, column: str, distance: int) -> float:
        """Return the value of a column of `COLUMNS` at a distance, the worse of both places."""
        last = int(self._keys(distance).max()) + distance
        places = {0, self.last - last if self.at_end else 0}
        values = [self._drift_at(distance, offset)[column] for offset in places]
        return float(np.max(values))  # nan stays nan

    def _keys(self, distance: int) -> Positions:
        """Return the positions of the keys, before an offset. Shapes: -> (n,)."""
        first = np.arange(_KEYS, dtype=np.int64) % self.seq_len
        return np.minimum(first, self.last - distance)

    def _drift_at(self, distance: int, offset: int) -> dict[str, float]:
        """Return the values where the first key is at `offset`."""
        longer = max(0, offset + distance + 1 - self.seq_len)
        setting = self.case.setting_at(self.setting, self.seq_len, longer)
        subject, keys = self.factory.make(setting, None), self._keys(distance)

        def rotated(side: Side, x: FloatArray, positions: Positions) -> FloatArray:
            """Return q or k. Shapes: (h, n, d), (n,) -> (h n, d)."""
            table, given = subject.table(positions, offset), round_to(x, subject.input)
            heads = [kernel.rotate(subject, side, head, table) for head in given]
            return kernel.operand(np.concatenate(heads), subject)

        q, k = rotated("q", self.q, keys + distance), rotated("k", self.k, keys)
        start = offset if setting.clipped else 0
        exact, reference = self.exact(setting, distance, start)
        drift = np.empty(len(q))
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            kernel.form_pairs(q, k, subject, setting.scale, drift)
            kernel.minus_exact(drift, exact, out=drift)
            rms = math.sqrt(np.mean(drift**2))
        largest = float(np.abs(drift).max())
        relative = judging.ratio(rms, reference)
        return dict(zip(COLUMNS, (relative, rms, largest), strict=True))

    def _exact_scores_at(self, setting: RopeSetting, distance: int, offset: int) -> tuple[ExactScores, float]:
        """Return the exact scores and their RMS; places matter to clipped angles alone."""
        subject, keys = self.factory.make(setting, None), np.zeros(1)
        if setting.clipped:
            keys = np.tile(self._keys(distance) + float(offset), _HEADS)
        given = [x.reshape(-1, x.shape[2]).astype(np.float64) for x in (self.q, self.k)]
        table = functools.partial(exact_scores.distance_table, setting=setting)
        tables, sides = (table(keys + distance), table(keys)), (given[0], given[1])
        wide = subject.narrowest > FP32.precision
        precision: Precision = "extended" if wide else "double"
        q, k = kernel.exact_factors(sides, subject.input, tables, setting, precision)
        exact = exact_scores.paired(q, k)
        return exact, math.sqrt(np.mean(exact_scores.joined(*exact) ** 2))
