"""What is known of a tolerance at offsets from 0 up: what is proved, and separately what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.audits.results import Result
from ropeaudit.console import values
from ropeaudit.errors import UnknownName
from ropeaudit.features.limit.boundary_search import Boundary

RELATIVE = "drift_relative"
CODE_UP_TO = 2**17  # positions where no model says how many
TOLERANCE = f"{RELATIVE}=0.01"
_ERRORS = ("drift_max", "drift_rms", "drift_mean_abs", "drift_bias", RELATIVE)
SELF = ("change_max", "change_rms")
AT_LEAST = ("distinct_positions",)
SIGNED = ("drift_bias",)
TOLERABLE = (*_ERRORS, *SELF, "nonfinite", *AT_LEAST)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The worst accepted value of a column: a minimum for distinct_positions, else a maximum."""

    column: str
    value: float

    def holds(self, record: Record) -> bool:
        """Return whether a record meets it; nan does not, and drift_bias counts without its sign.

        A row with a wrongly rotated pair meets none: drift does not see what is wrong for q and k alike.
        """
        return record.verdict != "wrong_rotation" and self.accepts(float(getattr(record, self.column)))

    def accepts(self, value: float) -> bool:
        """Return whether a value of the column meets it."""
        return value >= self.value if self.column in AT_LEAST else abs(value) <= self.value

    def telling(self, value: float) -> str:
        """Return a value that breaks it in four digits, or as many as show that."""
        shares = self.column == RELATIVE
        for digits in range(4, 17):
            text = f"{100 * value if shares else value:.{digits}g}"
            if not self.accepts(float(text) / 100 if shares else float(text)):
                return f"{text} %" if shares else f"{self.column} {text}"
        return f"{self.column} {value!r}"

    def __str__(self) -> str:
        """Return it with every digit: `drift_rms ≤ 0.01`, or `1 %` for drift_relative."""
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
# holds: proved within the model's own maximum. fails: seen to fail there. unseen: measured up to there
# without a failure. partly: not measured as far as that. unjudged: there is no maximum to judge it by.
Standing: TypeAlias = Literal["holds", "fails", "unseen", "partly", "unjudged"]


@dataclass(frozen=True, slots=True)
class Limit(Result):
    """What is known of a tolerance at the offsets 0 ... up_to.

    bound_up_to: the largest offset up to which the a-priori bound proves the tolerance, None where it proves
    nothing. boundary: what was measured, together with that. frozen: a longer sequence would have other
    frequencies, and those of the unshifted one were used at every offset. changing: each offset was measured
    with its own, and not all are the same.
    at_zero, at_measured, at_failure: what was measured at offset 0, at measured_up_to, at first_failure_seen.
    called: whether it is code, of which nothing is proved: unless every offset was measured, and then for
    these q and k, and these calls, alone. findings: how it is called, and what it does then.
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
    findings: tuple[str, ...] = ()

    @property
    def proved_up_to(self) -> int | None:
        """Up to this offset none fails: each was measured, or the bound proves it; None if 0 fails.

        Of code that was not measured at every offset None too.
        """
        unproved = self.called and not self.boundary.exhaustive
        return None if unproved or self.fails_at_zero else self.boundary.proved

    @property
    def fails_at_zero(self) -> bool:
        """Whether offset 0 fails already."""
        return self.boundary.failing == 0

    @property
    def proof(self) -> Proved:
        """What proves it: the bound alone, or measurements of all offsets that it leaves open; or nothing."""
        if self.proved_up_to is None:
            return "none"
        return "bound" if self.bound_up_to == self.proved_up_to else "exhaustive"

    @property
    def measured_up_to(self) -> int | None:
        """The largest measured offset below the first failure seen; others below it may fail."""
        return None if self.fails_at_zero else self.boundary.held_up_to

    @property
    def first_failure_seen(self) -> int | None:
        """The smallest offset that was measured to fail; None if none was."""
        return self.boundary.failing

    @property
    def first_failure(self) -> int | None:
        """The same where every smaller offset is proved; None where a smaller one may fail."""
        return self.boundary.failing if self.boundary.exhaustive else None

    def last_position(self, offset: int | None) -> int | None:
        """Return the last position of the sequence at an offset."""
        return None if offset is None else offset + self.at_zero.seq_len - 1

    @property
    def within(self) -> int | None:
        """The largest offset that leaves the sequence within the positions that its model is made for.

        None where there is nothing to judge by it: no such number, a longer sequence, frozen frequencies.
        """
        last = -1 if self.frozen else (self.case.maximum or 0) - self.at_zero.seq_len
        return last if last >= 0 else None

    @property
    def standing(self) -> Standing:
        """How it stands at the offsets up to `within`."""
        within, failing = self.within, self.first_failure_seen
        if within is None:
            return "unjudged"
        if failing is not None and failing <= within:
            return "fails"
        if self.proved_up_to is not None and self.proved_up_to >= within:
            return "holds"
        return "unseen" if self.boundary.held_up_to >= within else "partly"

    @property
    def margin(self) -> float | None:
        """How many times its maximum the positions are up to which no failure was seen."""
        return self._times(max(self.boundary.proved, self.boundary.held_up_to))

    @property
    def proved_margin(self) -> float | None:
        """How many times its maximum the positions are up to which it is proved."""
        return self._times(self.proved_up_to)

    def _times(self, offset: int | None) -> float | None:
        if self.within is None or offset is None or offset < 0:
            return None
        return (offset + self.at_zero.seq_len) / (self.within + self.at_zero.seq_len)
