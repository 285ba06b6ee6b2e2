"""What was measured at the offsets of one case: their records, each measured as `ropeaudit shift` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ropeaudit.audits.arguments import Chosen, factory
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.features.limit.tolerance import Tolerance
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata


class MeasuredOffsets:
    """One subject in one case.

    on_progress is called now and then while something is measured. done: how many offsets were measured, of
    those in the making the share that is.
    """

    def __init__(
        self,
        case: Case,
        inputs: Inputs,
        setting: RopeSetting,
        subject: Chosen,
        on_progress: Callable[[], None],
    ) -> None:
        self.on_progress = on_progress
        rest = [factory(subject)], None, run_metadata.threads(), self._advance
        self.run, self.with_bounds = (
            CaseRun(case, inputs, setting, *rest, bounded=bounded) for bounded in (False, True)
        )
        self.of_recipe = isinstance(subject, Resolved)
        self.done = 0.0
        self._making = 0.0, 0  # offsets done before those in the making, and how many these are
        self.records: dict[int, Record] = {}

    def at(self, offset: int) -> Record:
        """Return the record of an offset."""
        if offset not in self.records:
            self._record([offset], self.run)
        return self.records[offset]

    def holds(self, accepted: Tolerance, offsets: Sequence[int]) -> list[bool]:
        """Return whether a tolerance holds at each of these offsets; those without records are measured."""
        self._record([one for one in offsets if one not in self.records], self.run)
        return [accepted.holds(self.records[one]) for one in offsets]

    def held(self, accepted: Tolerance) -> dict[int, bool]:
        """Return whether a tolerance holds at each offset that was measured."""
        return {offset: accepted.holds(record) for offset, record in self.records.items()}

    def bound(self, offsets: Iterable[int]) -> None:
        """Measure these offsets once more, with their a-priori bounds; of code there is none."""
        if self.of_recipe:
            missing = [one for one in sorted(offsets) if self.records[one].bound_max is None]
            self._record(missing, self.with_bounds)

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
