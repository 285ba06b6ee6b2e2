"""The worst value of a column that is accepted: what `ropeaudit limit` requires of every offset."""

from __future__ import annotations

from dataclasses import dataclass

from ropeaudit.audits.records import Record
from ropeaudit.console import values
from ropeaudit.errors import UnknownName

RELATIVE = "drift_relative"
TOLERANCE = f"{RELATIVE}=0.01"
_ERRORS = ("drift_max", "drift_rms", "drift_mean_abs", "drift_bias", RELATIVE)
SELF = ("change_max", "change_rms")
AT_LEAST = ("distinct_positions",)
SIGNED = ("drift_bias",)
TOLERABLE = (*_ERRORS, *SELF, "nonfinite", *AT_LEAST)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The worst value of a column that is accepted: at most it, for distinct_positions at least it."""

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
        """Return a value that breaks it with four digits, or as many more as show that it does."""
        shares = self.column == RELATIVE
        for digits in range(4, 17):
            text = f"{100 * value if shares else value:.{digits}g}"
            if not self.accepts(float(text) / 100 if shares else float(text)):
                return f"{text} %" if shares else f"{self.column} {text}"
        return f"{self.column} {value!r}"

    def __str__(self) -> str:
        """Return it with every digit: `drift_rms ≤ 0.01`, or `1 %` of the drift relative to the scores."""
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
