"""Up to which distance between a query and a key scores meet a tolerance.

What the same error in every frequency does is not seen by shifts: it turns q and k of near tokens alike, and
grows with their distance. The key of a measured pair stands among the first tokens of the sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ropeaudit.audits import judging
from ropeaudit.audits.cases import Case
from ropeaudit.engine.measure import measure_sampled
from ropeaudit.engine.plan import CellStatistics, Plan
from ropeaudit.features.limit.boundary_search import Boundary, OffsetSearch
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import Pairs, SampledInputs, SideRows
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject, emulated
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.factories import SubjectFactory

COLUMNS: dict[str, Callable[[CellStatistics], float]] = {  # of tolerances that distances have
    "drift_relative": lambda seen: judging.ratio(seen.drift.rms, seen.reference.rms),
    "drift_rms": lambda seen: seen.drift.rms,
    "drift_max": lambda seen: seen.drift.max,
}
_PAIRS = 512  # of a query and a key at each distance: an RMS of theirs is off by some percent
_MOST = 96  # distances that may be measured


class Distances:
    """The distances 0 ... up_to of a recipe in one case."""

    def __init__(
        self, case: Case, setting: RopeSetting, inputs: Inputs, factory: SubjectFactory, up_to: int
    ) -> None:
        self.case, self.setting, self.inputs, self.factory = case, setting, inputs, factory
        self.up_to = min(up_to, masks.reach(case.mask, up_to + 1))
        random = np.random.default_rng([inputs.seed or 0, 7])
        self.head = np.sort(random.integers(0, inputs.heads, _PAIRS))
        self.query, self.key = random.integers(0, inputs.seq_len, (2, _PAIRS))
        self.seen = functools.cache(self._seen)

    @property
    def known(self) -> bool:
        """Whether distances are measured: not of code, on a grid, along some axes, of keys stored apart."""
        on_axes = self.setting.grid is not None or self.case.axis != "all"
        if self.factory.recipe is None or on_axes or self.case.turns is not None:
            return False
        return self.up_to > 0 and type(self._subject(self.setting)) is Emulated

    def _subject(self, setting: RopeSetting) -> Subject:
        return emulated.stored(self.factory.make(setting, None), self.inputs)

    def _seen(self, distance: int) -> CellStatistics:
        """Measure pairs of a query and a key so far apart, both from the case's q and k."""
        inputs, last = self.inputs, max(self.up_to, distance)
        key = np.minimum(self.key, last - distance)
        at = Pairs(self.head, key + distance, key, np.ones(_PAIRS))
        q, k = (x.reshape(-1, x.shape[2]) for x in (inputs.q, inputs.k))
        rows = (
            SideRows(q, self.head * inputs.seq_len + self.query),
            SideRows(k, self.head // inputs.group * inputs.seq_len + self.key),
        )
        sizes = inputs.heads, inputs.kv_heads, last + 1
        some = SampledInputs(at, *rows, *sizes, inputs.source, inputs.seed or 0)
        setting = self.case.setting_at(self.setting, inputs.seq_len, max(0, distance + 1 - inputs.seq_len))
        plan = Plan([self._subject(setting)], [[0]], some, setting, self.case.mask)
        return measure_sampled(plan, 1)[0, 0]

    def value(self, column: str, distance: int) -> float:
        """Return the value of a column of `COLUMNS` at a distance."""
        return COLUMNS[column](self.seen(distance))

    def boundary(self, column: str, largest: float, landmarks: Sequence[int]) -> Boundary:
        """Return up to where no measured distance is above a tolerance, and the first that is."""

        def holds(distances: Sequence[int]) -> list[bool]:
            return [self.value(column, one) <= largest for one in distances]

        search = OffsetSearch(holds, 1, self.up_to, proved=-1, most=_MOST, landmarks=landmarks)
        return search.run()
