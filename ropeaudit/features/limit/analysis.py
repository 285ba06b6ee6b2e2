"""Up to which offset a subject meets a tolerance, and which is the first at which it does not.

Drift does not grow steadily with the offset: a rounding may be exact at one offset and not at the next, and
positions that collapse at one offset may differ again at another. So that no offset up to one fails is
proved only where an a-priori bound covers it or every offset was measured. Where they are too many, some are
searched (`boundary_search`), and no more is claimed than that.
Letters: h heads, s positions, d head_dim. Offsets and positions in tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import (
    CaseArguments,
    Chosen,
    Names,
    OnProgress,
    chosen,
    factory,
    loaded,
    steps,
)
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case, fits
from ropeaudit.audits.records import Record
from ropeaudit.audits.straddling import straddling
from ropeaudit.bounds import bound_up_to
from ropeaudit.bounds.terms import last_exact_offset
from ropeaudit.errors import UsageError
from ropeaudit.features.limit.boundary_search import WITHIN, OffsetSearch, boundary
from ropeaudit.features.limit.limit_result import (
    AT_LEAST,
    CODE_UP_TO,
    SELF,
    TOLERANCE,
    Limit,
    Tolerance,
    tolerance,
)
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing, run_metadata
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.factories import SubjectFactory

_SURE = 1 - 2.0**-30  # float64 roundings of a tolerance
_REGIMES = 2  # longrope has two; of dynamic's, one for every offset past its maximum, no more are looked at


class Regime(NamedTuple):
    """Offsets from first to last have the same frequencies, those of `setting`."""

    first: int
    last: int
    setting: RopeSetting


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number that holds, where none after it does; `low` holds without a question."""
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def regimes(case: Case, setting: RopeSetting, seq_len: int, up_to: int) -> list[Regime]:
    """Return the first two regimes up to an offset; one where frequencies stay the same."""
    ranges, first = list[Regime](), 0
    while first <= up_to and len(ranges) < _REGIMES:
        at = case.setting_at(setting, seq_len, first)
        alike = functools.partial(_has, case, setting, seq_len, at)
        ranges.append(Regime(first, last_that(alike, first, up_to), at))
        first = ranges[-1].last + 1
    return ranges


def _has(case: Case, setting: RopeSetting, seq_len: int, at: RopeSetting, offset: int) -> bool:
    return case.setting_at(setting, seq_len, offset) == at


UP_TO = 2**24  # the default of the largest offset
CODE_MOST = 80  # offsets of code, of which each takes several calls
FEWEST = 64  # offsets that any search may measure
_MOST, _TYPICAL, _OVERHEAD = 208, 2**26, 2**22  # offsets of a case of 8 heads x 256² scores x 128 dims
_EACH = 8  # times as much work where every offset has its own exact scores


@arguments.checked
def limit(
    tolerances: Names = TOLERANCE,
    dtypes: Names = "bf16",
    recipes: Names | None = None,
    *,
    implementations: Names = (),
    up_to: int | None = None,
    budget: int | None = None,
    changes: Mapping[str, str] | None = None,
    device: str | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Limit]:
    """Yield how far scores meet a tolerance, for each recipe or implementation, dtype and tolerance.

    tolerances: "column=number", such as "drift_rms=1e-3". up_to: the largest offset, tokens; by default 16m,
    and for code the last one within the model's maximum or 128k positions. budget: how many offsets may be
    measured per result; by default it goes by the size of the case, and is small for code.
    device: where implementations are called.
    dtypes, recipes, implementations, changes, cases, on_progress, case: as in `ropeaudit.shift`. Nothing is
    proved of code, and a row with a wrongly rotated pair meets no tolerance.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> [first] = limit("distinct_positions=16", "fp16", "uniform", seq_len=16, heads=1)
    >>> first.first_failure, first.proved_up_to, first.proof
    (2034, 2033, 'bound')
    """
    some = chosen(recipes, implementations, dtypes, changes, DEFAULT, device)
    requested = [tolerance(text) for text in arguments.listed(tolerances)]
    every = arguments.cases_of(cases, case)
    return run(every, some, requested, up_to, budget, on_progress or arguments.silent)


def run(
    cases: Sequence[Case],
    some: Sequence[Chosen],
    tolerances: Sequence[Tolerance],
    up_to: int | None = None,
    budget: int | None = None,
    on_progress: OnProgress = arguments.silent,
) -> Iterator[Limit]:
    """Check the arguments, and yield the limits by case, subject and tolerance.

    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    for name, value, least in (("--up-to", up_to, 0), ("--budget", budget, FEWEST)):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            raise UsageError(f"{name} {value!r} is not a whole number from {least} up")
    fits(max(case.check([UP_TO if up_to is None else up_to]) for case in cases))
    work = steps(on_progress, len(cases) * len(some))

    def limits() -> Iterator[Limit]:
        for case, inputs, setting, part in loaded(cases, some, [up_to or 0]):
            for subject in part:
                largest = usual_up_to(case, subject) if up_to is None else up_to
                with doing.told(next(work)):
                    found = CaseLimits(case, inputs, setting, subject, largest).limits(tolerances, budget)
                yield from found

    return limits()


def usual_up_to(case: Case, subject: Chosen) -> int:
    """Return the default largest offset: for code the last within the maximum or 128k."""
    if isinstance(subject, Resolved):
        return UP_TO
    return max(0, (case.maximum or CODE_UP_TO) - (case.seq_len or 256))


def most(case: Case, inputs: Inputs, setting: RopeSetting, code: bool = False) -> int:
    """Return how many offsets may be measured by default: fewer if each is more work.

    code: each offset takes a number of calls, most of them to see where it puts the rotated pairs.
    """
    if code:
        return CODE_MOST
    heads, seq_len, head_dim = inputs.q.shape
    each = setting.clipped or (setting.scaling.kind == "dynamic" and case.length == "shifted")
    work = (heads * seq_len**2 * head_dim + _OVERHEAD) * (_EACH if each else 1)
    usual = int(max(FEWEST, _MOST * (_TYPICAL + _OVERHEAD) // work))
    return usual + (WITHIN if case.maximum else 0)


class CaseLimits:
    """One subject in one case: its measured records, and what is proved of it."""

    def __init__(self, case: Case, inputs: Inputs, setting: RopeSetting, subject: Chosen, up_to: int) -> None:
        self.case, self.inputs, self.subject, self.up_to = case, inputs, subject, up_to
        self.seq_len, self.called = inputs.seq_len, isinstance(subject, SubjectFactory)
        self.ranges = regimes(case, setting, self.seq_len, up_to)
        self.frozen = self.ranges != regimes(replace(case, length="shifted"), setting, self.seq_len, up_to)
        self.factory, threads = factory(subject), run_metadata.threads()
        self.run = CaseRun(case, inputs, setting, threads=threads, bounded=False)
        self.records: dict[int, Record] = {}
        self.bounds: dict[tuple[int, int], float] = {}
        self.total = 1

    def limits(self, tolerances: Sequence[Tolerance], budget: int | None) -> list[Limit]:
        """Return the limits: up to `budget` offsets each, judged by all measured ones."""
        budget = budget or most(self.case, self.inputs, self.ranges[0].setting, self.called)
        for accepted in tolerances:
            if accepted.column in AT_LEAST and accepted.value > self.seq_len:
                raise UsageError(f"--tolerance {accepted.column}={accepted.value:g}: {self.seq_len} are all")
        self.total = min(budget, self.up_to + 1) * len(tolerances)
        bounds = [self.search(accepted, budget) for accepted in tolerances]
        return [self.limit(accepted, bound) for accepted, bound in zip(tolerances, bounds, strict=True)]

    def search(self, accepted: Tolerance, most: int) -> int | None:
        """Measure what decides a tolerance; return up to where the bound proves it."""
        self.at(0)
        proved = self.proved_up_to(accepted)
        within = -1 if self.frozen or not self.case.maximum else self.case.maximum - self.seq_len

        def holds(offsets: Sequence[int]) -> list[bool]:
            self.measure(offsets)
            return [accepted.holds(self.records[one]) for one in offsets]

        OffsetSearch(
            holds,
            self.seq_len,
            self.up_to,
            proved=-1 if proved is None else proved,
            most=most,
            landmarks=self.landmarks(),
            within=min(within, self.up_to),
            # of code the offsets that break positions come before any other
            required=straddling(self.up_to + self.seq_len, self.seq_len) if self.called else (),
        ).run()
        return proved

    def proved_up_to(self, accepted: Tolerance) -> int | None:
        """Return the largest offset up to which the bound proves a tolerance, None if not at 0.

        The bound of a regime grows with the offset, so that bisection finds it.
        """
        if not isinstance(self.subject, Resolved):
            return None
        if accepted.column in AT_LEAST:
            last = last_exact_offset(self.subject.position, self.seq_len)
            return min(last, self.ranges[-1].last) if last >= 0 else None
        proved = -1
        for regime in self.ranges:
            holds = functools.partial(self.proves, accepted, regime)
            proved = last_that(holds, regime.first - 1, regime.last)
            if proved < regime.last:
                break
        return proved if proved >= 0 else None

    def proves(self, accepted: Tolerance, regime: Regime, offset: int) -> bool:
        """Return whether the bound proves a tolerance at all offsets of a regime up to this one.

        Measured figures are off by what the reference is; that, and the size of the exact scores, is the same
        at every offset of a regime.
        """
        bound, record = self.bound(regime, offset), self.at(regime.first)
        if accepted.column == "nonfinite":
            return math.isfinite(bound)
        largest, error = accepted.value, bound + record.reference_error
        if accepted.column in SELF:
            error += self.bound(regime, 0) + record.reference_error
        if accepted.column == "drift_relative":
            largest *= record.reference_rms
        return error <= largest * _SURE

    def bound(self, regime: Regime, offset: int) -> float:
        """Return the drift bound for offsets up to this one, at a regime's frequencies."""
        key = regime.first, offset
        if key not in self.bounds and isinstance(self.subject, Resolved):
            subject = Emulated(self.subject, regime.setting, self.case.position_axes(regime.setting))
            with mapping(1):
                self.bounds[key] = bound_up_to(subject, self.inputs, self.case.mask, offset)
        return self.bounds[key]

    def limit(self, accepted: Tolerance, bound: int | None) -> Limit:
        """Return what is known of a tolerance; every measured record counts."""
        held = {offset: accepted.holds(record) for offset, record in self.records.items()}
        known = boundary(held, -1 if bound is None else bound, self.up_to)
        return Limit(
            case=self.case,
            tolerance=accepted,
            up_to=self.up_to,
            bound_up_to=bound,
            boundary=known,
            frozen=self.frozen,
            changing=len(self.ranges) > 1,
            at_zero=self.records[0],
            at_measured=self.records.get(known.held_up_to),
            at_failure=None if known.failing is None else self.records[known.failing],
            called=self.called,
            findings=tuple(self.subject.findings) if isinstance(self.subject, SubjectFactory) else (),
        )

    def at(self, offset: int) -> Record:
        """Return the record of an offset."""
        self.measure([offset])
        return self.records[offset]

    def measure(self, offsets: Sequence[int]) -> None:
        """Measure offsets as `ropeaudit shift` does, without its bound, and tell how many are done."""
        wanted = [(self.factory, offset) for offset in offsets if offset not in self.records]
        if wanted:
            with doing.unheard():
                self.records |= {one.offset: one for one in self.run.records(wanted)}
            doing.step(min(1.0, len(self.records) / self.total))

    def landmarks(self) -> list[int]:
        """Return positions where something may change.

        The first that a format of the angles does not hold, or that overflows it; the first with other
        frequencies; the first that the model is not made for.
        """
        positions = {regime.last + self.seq_len for regime in self.ranges[:-1]} | {self.case.maximum or 1}
        one = self.subject
        for fmt in (one.position, *one.angle) if isinstance(one, Resolved) else (one.dtype,):
            positions |= {fmt.first_inexact_integer}
            if fmt.largest < UP_TO**2:
                positions |= {int(fmt.largest), int(fmt.largest * (1 + fmt.unit_roundoff / 2))}
        return sorted(positions)
