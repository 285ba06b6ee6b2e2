"""Up to which offset an a-priori bound proves a tolerance, without a measurement there.

Where the offset changes the frequencies (--length shifted) there are regimes: ranges of offsets that share
them. A bound covers one regime; a proof goes through them from offset 0 up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.bounds import bound_up_to
from ropeaudit.bounds.phases import last_exact_offset
from ropeaudit.features.limit.tolerance import AT_LEAST, SELF, Tolerance
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.emulated import Emulated

_SURE = 1 - 2.0**-30  # float64 roundings of a tolerance
_REGIMES = 2  # longrope has two; of dynamic's, one for every offset past its maximum, no more are looked at


@dataclass(frozen=True, slots=True)
class Regime:
    """Offsets from first to last have the same frequencies, those of `setting`."""

    first: int
    last: int
    setting: RopeSetting


def regimes(case: Case, setting: RopeSetting, seq_len: int, up_to: int) -> list[Regime]:
    """Return the first two regimes of the offsets 0 ... up_to; one where the offset changes no frequency."""
    ranges: list[Regime] = []
    first = 0
    while first <= up_to and len(ranges) < _REGIMES:
        at = case.setting_at(setting, seq_len, first)
        low, high = first, up_to
        while low < high:
            middle = low + (high - low + 1) // 2
            same = case.setting_at(setting, seq_len, middle) == at
            low, high = (middle, high) if same else (low, middle - 1)
        ranges.append(Regime(first, low, at))
        first = low + 1
    return ranges


class Proof:
    """The bounds of one recipe in one case.

    measured: an offset -> its record. on_progress is called before a bound is computed.
    """

    def __init__(
        self,
        case: Case,
        inputs: Inputs,
        recipe: Resolved,
        ranges: list[Regime],
        measured: Callable[[int], Record],
        on_progress: Callable[[], None],
    ) -> None:
        self.case, self.inputs, self.recipe, self.ranges = case, inputs, recipe, ranges
        self.measured, self.on_progress = measured, on_progress
        self.bounds: dict[tuple[int, int], float] = {}

    def up_to(self, accepted: Tolerance) -> int | None:
        """Return the largest offset up to which the tolerance is proved, None if it is not at 0.

        The bound of a regime grows with the offset, so that bisection finds it.
        """
        if accepted.column in AT_LEAST:
            last = last_exact_offset(self.recipe.position, int(self.inputs.q.shape[1]))
            return min(last, self.ranges[-1].last) if last >= 0 else None
        proved: int | None = None
        for regime in self.ranges:
            low, high = regime.first - 1, regime.last
            while low < high:
                middle = low + (high - low + 1) // 2
                low, high = (middle, high) if self.proves(accepted, regime, middle) else (low, middle - 1)
            proved = low if low >= 0 else None
            if low < regime.last:
                break
        return proved

    def proves(self, accepted: Tolerance, regime: Regime, offset: int) -> bool:
        """Return whether the bound proves a tolerance at all offsets of a regime up to this one.

        Measured figures are off by what the reference is; that, and the size of the exact scores, is the same
        at every offset of a regime.
        """
        bound, record = self.bound(regime, offset), self.measured(regime.first)
        if accepted.column == "nonfinite":
            return math.isfinite(bound)
        largest, error = accepted.value, bound + record.reference_error
        if accepted.column in SELF:
            error += self.bound(regime, 0) + record.reference_error
        if accepted.column == "drift_relative":
            largest *= record.reference_rms
        return error <= largest * _SURE

    def bound(self, regime: Regime, offset: int) -> float:
        """Return the bound of drift at all offsets from 0 to this one, with the frequencies of a regime."""
        key = regime.first, offset
        if key not in self.bounds:
            self.on_progress()
            subject = Emulated(self.recipe, regime.setting, self.case.position_axes(regime.setting))
            with mapping(1):
                self.bounds[key] = bound_up_to(subject, self.inputs, self.case.mask, offset)
        return self.bounds[key]
