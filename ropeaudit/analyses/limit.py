"""The largest offset at which a subject still meets a tolerance, and the first at which it does not.

Drift does not grow steadily with the offset: a rounding may be exact at one offset and not at the next, and
positions that collapse at one offset may come apart again at another. So "safe" is said of an offset only
with all offsets below it: they were measured, or an a-priori bound covers them, or, where they are too
many, those were measured that are likely to fail.
Letters: h heads, s positions, d head_dim. Offsets and positions in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeaudit import circumstances, recipes
from ropeaudit.analyses import limit_guess, limit_search
from ropeaudit.analyses.limit_search import Boundary, Question
from ropeaudit.bounds import bound_up_to
from ropeaudit.bounds.monotone import last_exact_offset
from ropeaudit.case_run import CaseRun
from ropeaudit.cases import Case, fits, positions_fit
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.formats import parse
from ropeaudit.inputs import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.records import Record
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import makers
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.threads import mapping

UP_TO = 2**24  # the default of the largest offset
TOLERANCE = "drift_relative=0.01"
FEWEST = 64  # offsets that any search may measure
_MOST, _TYPICAL, _OVERHEAD = 208, 2**26, 2**22  # offsets of a case of 8 heads x 256² scores x 128 dims
_CLIPPED = 8  # times as much work where the exact scores depend on the offset
_SURE = 1 - 2.0**-30  # float64 roundings of a tolerance

_ERRORS = ("drift_max", "drift_rms", "drift_mean_abs", "drift_bias", "drift_relative")
_SELF = ("self_drift_max", "self_drift_rms")
AT_LEAST = ("distinct_positions",)
TOLERABLE = (*_ERRORS, *_SELF, "nonfinite", *AT_LEAST)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The worst value of a column that is accepted: at most it, for distinct_positions at least it."""

    column: str
    value: float

    def holds(self, record: Record) -> bool:
        """Tell whether a record meets it; nan does not, and drift_bias counts without its sign."""
        found = float(getattr(record, self.column))
        return found >= self.value if self.column in AT_LEAST else abs(found) <= self.value

    def __str__(self) -> str:
        return f"{self.column} {'≥' if self.column in AT_LEAST else '≤'} {self.value:g}"


def tolerance(text: str) -> Tolerance:
    """Read COLUMN=NUMBER. Raises: UsageError, UnknownName."""
    column, equals, typed = (part.strip() for part in text.partition("="))
    if not (column and equals and typed):
        raise UsageError(f"--tolerance {text!r} is not COLUMN=NUMBER; try --tolerance {TOLERANCE}")
    if column not in TOLERABLE:
        raise UnknownName("column of a tolerance", column, TOLERABLE)
    try:
        value = float(typed)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"--tolerance {text!r}: {typed!r} is not a number from 0 up; try {TOLERANCE}")
    return Tolerance(column, value)


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a subject may be shifted within a tolerance.

    boundary: the offsets found. guaranteed: the largest offset up to which the a-priori bound proves the
    tolerance, None where it proves nothing. maximum: positions that the model is made for, if known.
    at_zero, at_safe, at_failing: what was measured there.
    """

    case: Case
    tolerance: Tolerance
    up_to: int
    guaranteed: int | None
    boundary: Boundary
    at_zero: Record
    at_safe: Record | None
    at_failing: Record | None

    @property
    def safe_offset(self) -> int | None:
        """The largest offset such that no measured one up to it fails; None if 0 fails."""
        return self.boundary.safe if self.boundary.safe >= 0 else None

    @property
    def first_failing_offset(self) -> int | None:
        """The smallest offset that was found to fail; None if none was."""
        return self.boundary.failing

    def last_position(self, offset: int | None) -> int | None:
        """Return the last position of the sequence at an offset."""
        return None if offset is None else offset + self.at_zero.seq_len - 1


def limit(
    tolerances: str | Iterable[str] = TOLERANCE,
    dtypes: str | Iterable[str] = "bf16",
    recipe: str | Iterable[str] = recipes.DEFAULT,
    *,
    up_to: int = UP_TO,
    budget: int | None = None,
    changes: Mapping[str, str] | None = None,
    **case: Any,
) -> Iterator[Limit]:
    """Find the largest offset at which scores meet a tolerance, for each recipe, dtype and tolerance.

    tolerances: "column=number", such as "drift_rms=1e-3". up_to: the largest offset, tokens. budget: how many
    offsets may be measured per result; by default it goes by the size of the case.
    dtypes, recipe, changes, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated: children of RopeAuditError.

    >>> [found] = limit("distinct_positions=16", "fp16", "uniform", seq_len=16, heads=1)
    >>> found.first_failing_offset
    2034
    """
    named = [recipe] if isinstance(recipe, str) else list(recipe)
    formats = [parse(name) for name in ([dtypes] if isinstance(dtypes, str) else dtypes)]
    chosen = [recipes.load(name).changed(changes or {}) for name in dict.fromkeys(named)]
    return run(
        [Case(**case)],
        [one.resolve(fmt) for one in chosen for fmt in dict.fromkeys(formats)],
        [tolerance(text) for text in ([tolerances] if isinstance(tolerances, str) else tolerances)],
        up_to,
        budget,
    )


def run(
    cases: Sequence[Case],
    resolved: Sequence[Resolved],
    tolerances: Sequence[Tolerance],
    up_to: int = UP_TO,
    budget: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Limit]:
    """Yield the limits: case by case, recipe by recipe, dtype by dtype, tolerance by tolerance.

    progress hears the share that is done, from 0 to 1. Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    _check(cases, up_to, budget)
    rows, done = len(cases) * len(resolved) * len(tolerances), 0
    for case in cases:
        inputs, setting = case.load()
        positions_fit([up_to], inputs.q.shape[1])
        for one in tolerances:
            if one.column in AT_LEAST and one.value > inputs.q.shape[1]:
                raise UsageError(f"--tolerance {one.column}={one.value:g}: {inputs.q.shape[1]} are all")
        for recipe in resolved:
            measured = _Measured(case, inputs, setting, recipe)
            for one in tolerances:

                def part(share: float, start: int = done) -> None:
                    progress((start + share) / rows)

                yield measured.limit(one, up_to, budget or most(inputs, setting), part)
                done += 1


def most(inputs: Inputs, setting: RopeSetting) -> int:
    """Return how many offsets may be measured by default: the fewer, the more work each of them is."""
    heads, seq_len, head_dim = inputs.q.shape
    work = (heads * seq_len**2 * head_dim + _OVERHEAD) * (_CLIPPED if setting.clipped else 1)
    return int(max(FEWEST, _MOST * (_TYPICAL + _OVERHEAD) // work))


def _check(cases: Sequence[Case], up_to: int, budget: int | None) -> None:
    for name, value, least in (("--up-to", up_to, 0), ("--budget", budget, FEWEST)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise UsageError(f"{name} {value!r} is not a whole number from {least} up")
    for case in cases:
        if case.length != "unshifted":
            raise UsageError("a limit keeps the frequencies of the unshifted sequence; leave out --length")
    fits(max(case.check([up_to]) for case in cases))


class _Measured:
    """One subject in one case: its records so far, and its bounds."""

    def __init__(self, case: Case, inputs: Inputs, setting: RopeSetting, recipe: Resolved) -> None:
        self.case, self.inputs, self.seq_len = case, inputs, inputs.q.shape[1]
        self.subject = Emulated(recipe, setting, case.position_axes(setting))
        self.hear: Callable[[], None] = lambda: None
        self.run = CaseRun(
            case,
            inputs,
            setting,
            [makers.emulated(recipe)],
            None,
            circumstances.threads(),
            lambda share: self.hear(),
        )
        self.found: dict[int, Record] = {}
        self.bounds: dict[int, float] = {}

    def limit(self, one: Tolerance, up_to: int, most: int, progress: Callable[[float], None]) -> Limit:
        """Search with up to `most` offsets; what another tolerance measured counts as well."""
        tested = 0
        self.hear = lambda: progress(min(1.0, tested / most))

        def test(offsets: Sequence[int]) -> list[bool]:
            nonlocal tested
            self.measure(offsets)
            tested += len(offsets)
            return [one.holds(self.found[offset]) for offset in offsets]

        def guess(low: int, high: int, count: int) -> list[int]:
            return limit_guess.likeliest(self.subject, self.seq_len, low, high, count)

        test([0])
        proved = self.guaranteed(one, up_to)
        question = Question(self.seq_len, up_to, -1 if proved is None else proved, most, self.landmarks())
        boundary = limit_search.search(question, test, guess)
        at_safe = self.found.get(boundary.safe)
        at_failing = None if boundary.failing is None else self.found[boundary.failing]
        return Limit(self.case, one, up_to, proved, boundary, self.found[0], at_safe, at_failing)

    def measure(self, offsets: Sequence[int]) -> None:
        """Have the records of these offsets."""
        missing = [offset for offset in offsets if offset not in self.found]
        if missing:
            self.found.update((record.offset, record) for record in self.run.records(missing))

    def landmarks(self) -> list[int]:
        """Positions at which a format of the angles no longer holds every integer, or overflows."""
        recipe = self.subject.recipe
        found = set()
        for fmt in (recipe.position, *recipe.angle):
            found |= {fmt.first_inexact_integer}
            if fmt.largest < UP_TO**2:
                found |= {int(fmt.largest), int(fmt.largest * (1 + fmt.unit_roundoff / 2))}
        return sorted(found)

    def guaranteed(self, one: Tolerance, up_to: int) -> int | None:
        """Return the largest offset up to which the tolerance is proved, None if it is not at 0.

        The bound grows with the offset, so that bisection finds it. Measured figures are off by what the
        reference is.
        """
        if one.column in AT_LEAST:
            exact = min(up_to, last_exact_offset(self.subject.recipe.position, self.seq_len))
            return exact if exact >= 0 else None
        low, high = -1, up_to
        while low < high:
            middle = low + (high - low + 1) // 2
            low, high = (middle, high) if self.proves(one, middle) else (low, middle - 1)
        return low if low >= 0 else None

    def proves(self, one: Tolerance, offset: int) -> bool:
        """Tell whether the bound proves a tolerance at all offsets from 0 to this one."""
        bound, zero = self.bound(offset), self.found[0]
        if one.column == "nonfinite":
            return math.isfinite(bound)
        allowed, error = one.value, bound + zero.reference_error
        if one.column in _SELF:
            error += self.bound(0) + zero.reference_error
        if one.column == "drift_relative":
            allowed *= zero.reference_rms
        return error <= allowed * _SURE

    def bound(self, offset: int) -> float:
        """The bound of drift at all offsets from 0 to this one."""
        if offset not in self.bounds:
            self.hear()
            with mapping(1):
                found = bound_up_to(self.subject, self.inputs, self.case.mask, offset)
            self.bounds[offset] = found
        return self.bounds[offset]
