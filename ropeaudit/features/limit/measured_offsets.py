"""What was measured at the offsets of one case: records, and of offsets by the thousand their figures alone.

NumPy measures records, as `ropeaudit shift` does. The torch engine measures batches of offsets, of which only
what tolerances speak of is kept; an offset that is reported gets a record of its own, which counts from then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.audits.chosen import Chosen, factory
from ropeaudit.audits.records import Record
from ropeaudit.engine.choice import Engine
from ropeaudit.features.limit.bound_proof import Regime
from ropeaudit.features.limit.tolerance import MEANS, SIGNED, Tolerance
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.engine.offset_batches import Columns, OffsetBatches


_NEAR = 2.0**-30  # of a tolerance: what the order of a sum changes is far less


class MeasuredOffsets:
    """One subject in one case. ranges: of offsets that share their frequencies. engine: what measures.

    on_progress is called now and then while something is measured. done: how many offsets were measured, of
    those in the making the share that is.
    """

    def __init__(
        self,
        case: Case,
        inputs: Inputs,
        setting: RopeSetting,
        subject: Chosen,
        ranges: Sequence[Regime],
        engine: Engine,
        on_progress: Callable[[], None],
    ) -> None:
        self.case, self.inputs, self.ranges, self.on_progress = case, inputs, ranges, on_progress
        self.library, self.batched = engine.library(), engine.name == "torch"
        self.factory = factory(subject, engine.label)

        def run(bounded: bool) -> CaseRun:
            rest = [self.factory], None, run_metadata.threads(), self._advance
            return CaseRun(case, inputs, setting, *rest, bounded=bounded, library=self.library)

        self.run, self.with_bounds = run(bounded=False), run(bounded=isinstance(subject, Resolved))
        self.done = 0.0
        self._making = 0.0, 0  # offsets done before those in the making, and how many these are
        self.records: dict[int, Record] = {}
        self.rows: dict[int, int] = {}  # offset -> row of the columns
        self.columns: Columns = {}
        self._batches: dict[int, OffsetBatches | None] = {}  # by the first offset of a range

    def at(self, offset: int) -> Record:
        """Return the record of an offset."""
        if offset not in self.records:
            self._record([offset], self.run)
        return self.records[offset]

    def holds(self, accepted: Tolerance, offsets: Sequence[int]) -> list[bool]:
        """Return whether a tolerance holds at each of these offsets; those without figures are measured."""
        missing = [one for one in offsets if one not in self.records and one not in self.rows]
        for regime in self.ranges if self.batched else ():
            self._measure(regime, [one for one in missing if regime.first <= one <= regime.last])
        self._record([one for one in missing if one not in self.rows], self.run)
        self._settle(accepted, offsets)
        good = self._accepted(accepted)
        return [
            accepted.holds(self.records[one]) if one in self.records else bool(good[self.rows[one]])
            for one in offsets
        ]

    def _settle(self, accepted: Tolerance, offsets: Sequence[int]) -> None:
        """Make records of offsets whose figures leave it open whether a tolerance holds.

        That is where a figure is about as large as the tolerance, for sums of the same numbers run in other
        orders. The first that fails has a record too; should it hold, all that fail have.
        """
        open_ones = [one for one in offsets if one not in self.records]
        if not open_ones:
            return
        rows = [self.rows[one] for one in open_ones]
        values, good = np.abs(self.columns[accepted.column][rows]), self._accepted(accepted)[rows]
        size = self.columns["drift_mean_abs"][rows] if accepted.column in SIGNED else accepted.value
        near = (np.abs(values - accepted.value) <= _NEAR * size) & (values > 0)
        if accepted.column not in MEANS:
            near[:] = False  # counts and largest sizes are the same in any order
        self._record(
            [one for one, is_near in zip(open_ones, near.tolist(), strict=True) if is_near], self.run
        )
        failing = sorted(
            one
            for one, holds in zip(open_ones, good.tolist(), strict=True)
            if not (holds or one in self.records)
        )
        self._record(failing[:1], self.run)
        if failing and accepted.holds(self.records[failing[0]]):
            self._record(failing[1:], self.run)

    def held(self, accepted: Tolerance) -> dict[int, bool]:
        """Return whether a tolerance holds at each offset that was measured."""
        figures = zip(self.rows, self._accepted(accepted).tolist(), strict=True)
        return dict(figures) | {offset: accepted.holds(record) for offset, record in self.records.items()}

    def confirmed(self, accepted: Tolerance, offsets: Iterable[int]) -> bool:
        """Measure these offsets with their bounds; return whether a tolerance holds where it did before."""
        some = sorted(offsets)
        before = self.holds(accepted, some)
        self._record(
            [one for one in some if one not in self.records or self.records[one].bound_max is None],
            self.with_bounds,
        )
        return before == self.holds(accepted, some)

    def _record(self, offsets: Sequence[int], run: CaseRun) -> None:
        if offsets:
            self._making = self.done, len(offsets)
            self.records.update((record.offset, record) for record in run.records(offsets))
            self._advance(1.0)

    def _advance(self, share: float) -> None:
        """Take the share that is measured of the offsets in the making."""
        before, count = self._making
        self.done = before + share * count
        self.on_progress()

    def _measure(self, regime: Regime, offsets: Sequence[int]) -> None:
        """Measure offsets of a range in batches, where that is possible."""
        batches = self.batches(regime) if offsets else None
        if batches is None:
            return
        parts = [self.columns] if self.columns else []
        self._making, finished = (self.done, len(offsets)), 0
        with self.library.running(1):
            for columns in batches.measure(offsets):
                parts.append(columns)
                finished += len(next(iter(columns.values())))
                self._advance(finished / len(offsets))
        self.columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[-1]}
        self.rows.update(zip(offsets, range(len(self.rows), len(self.rows) + len(offsets)), strict=True))

    def batches(self, regime: Regime) -> OffsetBatches | None:
        """Return what measures batches of offsets of a range; None where they are measured one by one."""
        from ropeaudit.engine import offset_batches  # in-function: importing torch takes seconds

        if regime.first not in self._batches:
            at = regime.setting
            subject = self.factory.make(at, self.case.position_axes(at))
            made = None
            if offset_batches.possible(subject, self.inputs):
                rest = self.inputs, at, self.case.mask, self.library
                with self.library.running(1):
                    made = offset_batches.OffsetBatches(cast(Emulated, subject), *rest)
            self._batches[regime.first] = made
        return self._batches[regime.first]

    def _accepted(self, accepted: Tolerance) -> NDArray[np.bool_]:
        """Return whether a tolerance holds at each row of the columns."""
        if not self.rows:
            return np.zeros(0, bool)
        good: NDArray[np.bool_] = accepted.accepts(self.columns[accepted.column])
        return good
