"""`limit`: up to which offset a subject meets a tolerance, by proof and by search.

Drift does not grow steadily with the offset: only a bound, or measuring all offsets, proves that none fails.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, TypeAlias, Unpack

from ropeaudit.audits import arguments, judging
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress, equal_parts, load_cases, subjects
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case, check_memory, straddling
from ropeaudit.audits.records import Record
from ropeaudit.audits.results import Result
from ropeaudit.bounds import bound_up_to
from ropeaudit.bounds.terms import last_exact_offset
from ropeaudit.console import values
from ropeaudit.errors import ForeignError, UnknownName, UsageError
from ropeaudit.features.limit.distances import COLUMNS, Distances
from ropeaudit.features.limit.search import Boundary, Search, boundary
from ropeaudit.inputs.qk import Inputs, is_file
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.rope.setting import RopeSetting, is_whole
from ropeaudit.runtime import doing, run_metadata
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.factories import SubjectFactory

RELATIVE = "drift_relative"
TOLERANCE = f"{RELATIVE}=0.01"
_ERRORS = ("drift_max", "drift_rms", "drift_mean_abs", "drift_bias", RELATIVE)
SELF = ("change_max", "change_rms")
AT_LEAST = ("distinct_positions",)
SIGNED = ("drift_bias",)
TOLERABLE = (*_ERRORS, *SELF, "nonfinite", *AT_LEAST)


def rotates_wrongly(record: Record) -> bool:
    """Return whether a pair is rotated wrongly, for which `shift` fails too."""
    return record.verdict == "wrong_rotation" or judging.rotates_wrongly(record.rotation_excess)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The worst accepted value of a column: a minimum for distinct_positions, else a maximum."""

    column: str
    value: float

    def holds(self, record: Record) -> bool:
        """Return whether a record meets it; a wrong rotation does not, though drift may miss it."""
        return not rotates_wrongly(record) and self.accepts(getattr(record, self.column))

    def accepts(self, value: float) -> bool:
        """Return whether a value meets it; nan does not, and drift_bias counts without its sign."""
        return value >= self.value if self.column in AT_LEAST else abs(value) <= self.value

    def __str__(self) -> str:
        """Return it with all digits: `drift_rms ≤ 0.01`, or `1 %` for drift_relative."""
        number = f"{self.value:g}" if float(f"{self.value:g}") == self.value else repr(self.value)
        if self.column == RELATIVE and float(f"{100 * self.value:g}") / 100 == self.value:
            return f"{100 * self.value:g} %"
        name = f"|{self.column}|" if self.column in SIGNED else self.column
        return f"{name} {'≥' if self.column in AT_LEAST else '≤'} {number}"


def tolerance(text: str) -> Tolerance:
    """Read COLUMN=X, or X alone for drift_relative. Raises: UsageError, UnknownName."""
    column, value = values.tolerance(text, "--tolerance")
    if column not in TOLERABLE:
        raise UnknownName("column of a tolerance", column, TOLERABLE)
    return Tolerance(column, value)


Proved: TypeAlias = Literal["bound", "exhaustive", "none"]
# holds: proved within the model's maximum. fails: a failure was measured there. unseen: measured up to it
# without a failure. partly: not measured that far. unjudged: there is no maximum.
Standing: TypeAlias = Literal["holds", "fails", "unseen", "partly", "unjudged"]


@dataclass(frozen=True, slots=True)
class Limit(Result):
    """What was measured and proved of a tolerance at the offsets 0 ... up_to.

    bound_up_to: the largest offset up to which the a-priori bound proves the tolerance; None for none.
    boundary: measurements and that proof together. frozen: whether frequencies depend on the length, and
    those of the unshifted sequence were used. changing: whether each offset had its own.
    at_zero, at_measured, at_failure: records at offset 0, measured_up_to and first_failure_seen.
    called: whether it is code, for which only measuring all offsets proves something, for these q and k and
    calls. distances: measurements by distance of query and key, up to the model's last or 128k; None on
    axes, and for columns without them. at_distance: value at the first failing distance. findings: how code
    is called.
    """

    report_module: ClassVar[str] = "ropeaudit.features.limit.report"
    case: Case
    tolerance: Tolerance
    up_to: int
    bound_up_to: int | None
    boundary: Boundary
    frozen: bool
    changing: bool
    at_zero: Record
    at_measured: Record | None
    at_failure: Record | None
    called: bool = False
    distances: Boundary | None = None
    at_distance: float | None = None
    findings: tuple[str, ...] = ()

    @property
    def proved_up_to(self) -> int | None:
        """The offset up to which none fails, by the bound or as all were measured; None if 0 fails."""
        unproved = self.called and not self.boundary.exhaustive
        return None if unproved or self.fails_at_zero else self.boundary.proved

    @property
    def fails_at_zero(self) -> bool:
        """Whether offset 0 fails."""
        return self.boundary.failing == 0

    @property
    def proof(self) -> Proved:
        """The proof: the bound alone, or measurements of all other offsets, or none."""
        if self.proved_up_to is None:
            return "none"
        return "bound" if self.bound_up_to == self.proved_up_to else "exhaustive"

    @property
    def measured_up_to(self) -> int | None:
        """The largest measured offset below the first failure; others below it may fail."""
        return None if self.fails_at_zero else self.boundary.held_up_to

    @property
    def first_failure_seen(self) -> int | None:
        """The smallest offset that was measured to fail; None if none was."""
        return self.boundary.failing

    @property
    def first_failure(self) -> int | None:
        """That offset if all smaller ones are proved, else None."""
        return self.boundary.failing if self.boundary.exhaustive else None

    @property
    def failing_distance(self) -> int | None:
        """The smallest distance that was measured to fail; None if none was, or none measured."""
        return self.distances.failing if self.distances else None

    @property
    def measured_distance(self) -> int | None:
        """The largest measured distance below that; others below may fail. None if 0 fails."""
        return self.distances.held_up_to if self.distances and self.distances.failing != 0 else None

    def last_position(self, offset: int | None) -> int | None:
        """Return the last position of the sequence at an offset."""
        return None if offset is None else offset + self.at_zero.seq_len - 1

    @property
    def misplaced(self) -> bool:
        """Whether code rotates wrongly at the first failure."""
        return self.at_failure is not None and rotates_wrongly(self.at_failure)

    @property
    def within(self) -> int | None:
        """The largest offset within the model's maximum; None without one."""
        last = -1 if self.frozen else (self.case.maximum or 0) - self.at_zero.seq_len
        return last if last >= 0 else None

    @property
    def standing(self) -> Standing:
        """The judgement of the offsets up to `within`."""
        within, failing = self.within, self.first_failure_seen
        if within is None:
            return "unjudged"
        if (failing is not None and failing <= within) or self.failing_distance is not None:
            return "fails"
        if self.proved_up_to is not None and self.proved_up_to >= within:
            return "holds"
        return "unseen" if self.boundary.held_up_to >= within else "partly"

    @property
    def margin(self) -> float | None:
        """The ratio of the last position without a failure to the maximum."""
        held, failing = self.boundary.held_up_to, self.failing_distance
        margin = self._times(max(self.boundary.proved, held))
        if margin is None or failing is None:
            return margin
        return min(margin, failing / (self.case.maximum or 1))

    @property
    def proved_margin(self) -> float | None:
        """The ratio of the last proved position to the maximum."""
        return self._times(self.proved_up_to)

    def _times(self, offset: int | None) -> float | None:
        if self.within is None or offset is None or offset < 0:
            return None
        return float((offset + self.at_zero.seq_len) / (self.within + self.at_zero.seq_len))


_SURE = 1 - 2.0**-30  # for float64 roundings of a tolerance
_REGIMES = 2  # longrope has two; of dynamic's many only two are used


class Regime(NamedTuple):
    """A range of offsets with the same frequencies, those of `setting`."""

    first: int
    last: int
    setting: RopeSetting


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number for which a condition holds, by bisection; it holds for `low`."""
    numbers = range(low + 1, high + 1)
    return low + bisect.bisect_left(numbers, True, key=lambda number: not holds(number))


def regimes(case: Case, setting: RopeSetting, seq_len: int, up_to: int) -> list[Regime]:
    """Return the first two regimes up to an offset; one if frequencies do not change."""
    results, first = list[Regime](), 0
    setting_at = functools.partial(case.setting_at, setting, seq_len)
    while first <= up_to and len(results) < _REGIMES:
        at = setting_at(first)
        last = last_that(lambda offset, at=at: setting_at(offset) == at, first, up_to)  # type: ignore[misc]
        results.append(Regime(first, last, at))
        first = last + 1
    return results


UP_TO = 2**24  # the default of the largest offset
HEADS = 2  # of synthetic q and k for recipes: more heads change a drift by some percent
FEWEST = 64  # offsets that a search may measure at least
MOST, CODE_MOST = 128, 80  # offsets of recipes, and of code, which take several calls each
_DISTANCES, _CODE_DISTANCES = 64, 24  # that may be measured


@arguments.public
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
    measured per result; by default 128, of code 80. heads: 2 by default where no code is called. All else is
    as in `ropeaudit.shift`. Nothing is proved of code, and a row with a wrongly rotated pair meets no
    tolerance.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> [first] = limit("distinct_positions=16", "fp16", "uniform", seq_len=16, heads=1)
    >>> first.first_failure, first.proved_up_to, first.proof
    (2034, 2033, 'bound')
    """
    factories = subjects(recipes, implementations, dtypes, changes, DEFAULT, device)
    requested = [tolerance(text) for text in arguments.as_list(tolerances)]
    every = arguments.cases_from(cases, case)
    return run(every, factories, requested, up_to, budget, on_progress or arguments.ignore_progress)


def run(
    cases: Sequence[Case],
    factories: Sequence[SubjectFactory],
    tolerances: Sequence[Tolerance],
    up_to: int | None = None,
    budget: int | None = None,
    on_progress: OnProgress = arguments.ignore_progress,
) -> Iterator[Limit]:
    """Check the arguments; yield the limits by case, subject and tolerance. Raises: as `limit`."""
    for name, value, least in (("--up-to", up_to, 0), ("--budget", budget, FEWEST)):
        if value is not None and not (is_whole(value) and value >= least):
            raise UsageError(f"{name} {value!r} is not a whole number from {least} up")
    if not any(factory.code for factory in factories):
        cases = [
            replace(case, heads=HEADS)
            if (case.heads, case.kv_heads) == (None, None) and not is_file(case.qk)
            else case
            for case in cases
        ]
    check_memory(max(case.check([UP_TO if up_to is None else up_to]) for case in cases))
    work = equal_parts(on_progress, len(cases) * len(factories))

    def limits() -> Iterator[Limit]:
        for case, inputs, setting, part in load_cases(cases, factories, [up_to or 0]):
            for subject in part:
                largest = usual_up_to(case, subject) if up_to is None else up_to
                with doing.reporting_to(next(work)):
                    found = CaseLimits(case, inputs, setting, subject, largest).limits(tolerances, budget)
                yield from found

    return limits()


def usual_up_to(case: Case, subject: SubjectFactory) -> int:
    """Return the default of the largest offset: for code the last within the maximum or 128k."""
    return max(0, (case.maximum or USUAL_MAXIMUM) - (case.seq_len or 256)) if subject.code else UP_TO


class CaseLimits:
    """The search for the limits of a subject in a case: its records and proofs."""

    def __init__(
        self, case: Case, inputs: Inputs, setting: RopeSetting, subject: SubjectFactory, up_to: int
    ) -> None:
        self.case, self.inputs, self.subject, self.up_to = case, inputs, subject, up_to
        self.setting, self.seq_len = setting, inputs.seq_len
        self.ranges = regimes(case, setting, self.seq_len, up_to)
        self.frozen = self.ranges != regimes(replace(case, length="shifted"), setting, self.seq_len, up_to)
        self.run = CaseRun(case, inputs, setting, threads=run_metadata.threads(), bounded=False)
        self.records: dict[int, Record] = {}

    def limits(self, tolerances: Sequence[Tolerance], budget: int | None) -> list[Limit]:
        """Return the limits of tolerances, each from up to `budget` offsets and all records."""
        code, maximum = self.subject.code is not None, self.case.maximum
        within = -1 if self.frozen or not maximum else maximum - self.seq_len
        budget = budget or (CODE_MOST if code else MOST)
        required = straddling(self.up_to + self.seq_len, self.seq_len) if code else ()
        for accepted in tolerances:
            if accepted.column in AT_LEAST and accepted.value > self.seq_len:
                raise UsageError(f"--tolerance {accepted.column}={accepted.value:g}: {self.seq_len} are all")
        total = min(budget, self.up_to + 1) * len(tolerances)
        proofs = dict[Tolerance, int | None]()
        for accepted in tolerances:
            self.measure([0])
            proofs[accepted] = self.proved_up_to(accepted)
            proved = proofs[accepted]
            search = Search(
                self.seq_len,
                self.up_to,
                proved=-1 if proved is None else proved,
                most=budget,
                landmarks=self.landmarks(),
                within=min(within, self.up_to),
                required=required,
            )
            for offsets in search:
                self.measure(offsets)
                doing.step(min(1.0, len(self.records) / total))
                search.take({offset: accepted.holds(self.records[offset]) for offset in offsets})
        return [self.limit(accepted, bound) for accepted, bound in proofs.items()]

    def measure(self, offsets: Sequence[int]) -> None:
        """Measure offsets as `shift` does, without its bound, each once."""
        wanted = [(self.subject, offset) for offset in offsets if offset not in self.records]
        with doing.silently():
            for record in self.run.records(wanted) if wanted else ():
                self.records[record.offset] = record

    def proved_up_to(self, accepted: Tolerance) -> int | None:
        """Return the largest offset up to which the bound proves a tolerance."""
        if (recipe := self.subject.recipe) is None:
            return None
        if accepted.column in AT_LEAST:
            last = last_exact_offset(recipe.position, self.seq_len)
            return min(last, self.ranges[-1].last) if last >= 0 else None
        proved = -1
        for regime in self.ranges:
            holds = functools.partial(self.proves, recipe, accepted, regime)
            proved = last_that(holds, regime.first - 1, regime.last)
            if proved < regime.last:
                break
        return proved if proved >= 0 else None

    def proves(
        self,
        recipe: Resolved,
        accepted: Tolerance,
        regime: Regime,
        offset: int,
    ) -> bool:
        """Return whether the bound proves a tolerance in a regime up to this offset."""
        self.measure([regime.first])
        record, column = self.records[regime.first], accepted.column
        axes = self.case.position_axes(regime.setting)
        subject = Emulated(recipe, regime.setting, axes)
        bounded = functools.partial(bound_up_to, subject, self.inputs, self.case.mask)
        with mapping(1):
            error = bounded(offset)
            error += bounded(0) if column in SELF else 0.0
        if column == "nonfinite":
            return math.isfinite(error)
        certificates = 2 if column in SELF else 1  # errors of the reference
        error += certificates * record.reference_error
        largest = accepted.value * (record.reference_rms if column == RELATIVE else 1.0)
        return bool(error <= largest * _SURE)

    def limit(self, accepted: Tolerance, bound: int | None) -> Limit:
        """Return the limit of a tolerance from all records and the bound."""
        held = {offset: accepted.holds(record) for offset, record in self.records.items()}
        known = boundary(held, -1 if bound is None else bound, self.up_to)
        apart, value = self.distances(accepted, known.held_up_to)
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
            called=self.subject.code is not None,
            distances=apart,
            at_distance=value,
            findings=tuple(self.subject.findings),
        )

    def distances(self, accepted: Tolerance, held: int) -> tuple[Boundary | None, float | None]:
        """Search the distances; return their boundary, and the value at the first failure.

        They reach to the model's last position, else to 128k; for code to the last good position.
        held: the largest good offset.
        """
        nothing, code = (None, None), self.subject.code is not None
        last = (self.case.maximum or min(USUAL_MAXIMUM, self.up_to + self.seq_len)) - 1
        holding = held + self.seq_len - 1
        case = self.case, self.setting, self.inputs, self.subject
        seen = Distances(*case, min(last, holding) if code else last, at_end=holding >= last)
        if accepted.column not in COLUMNS or not seen.measurable or (code and held < 0):
            return nothing
        most = _CODE_DISTANCES if code else _DISTANCES
        search = Search(1, seen.up_to, -1, most, self.landmarks())
        values = dict[int, float]()
        try:
            for distances in search:
                values |= {one: seen.value(accepted.column, one) for one in distances}
                search.take({one: accepted.accepts(values[one]) for one in distances})
        except ForeignError:  # of code that takes no such positions
            return nothing
        value = None if search.failing is None else values[search.failing]
        return boundary(search.tested, -1, seen.up_to), value

    def landmarks(self) -> list[int]:
        """Return where frequencies change, the model ends or a format is inexact."""
        positions = {regime.last + self.seq_len for regime in self.ranges[:-1]} | {self.case.maximum or 1}
        recipe = self.subject.recipe
        for fmt in (recipe.position, *recipe.angle) if recipe else (self.subject.dtype,):
            positions |= {fmt.first_inexact_integer}
            if fmt.largest < UP_TO**2:
                positions |= {int(fmt.largest), int(fmt.largest * (1 + fmt.unit_roundoff / 2))}
        return sorted(positions)
