"""--fail-if: a condition on a column; where it holds for some row, the exit code is 1."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.records import COLUMNS, TEXT_COLUMNS, Record

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_GATE = re.compile(r"\s*(\w+)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition such as drift_rms>0.01; a value that is nan breaks it too."""

    column: str
    sign: str
    bound: float

    def broken_by(self, record: Record) -> bool:
        """Tell whether a record makes the run fail."""
        value = getattr(record, self.column)
        if value is None or math.isnan(value):
            return True
        return _OPERATORS[self.sign](value, self.bound)


def parse(text: str) -> Gate:
    """Read COLUMN SIGN NUMBER. Raises: UsageError, UnknownName."""
    match = _GATE.fullmatch(text)
    if not match:
        raise UsageError(f"--fail-if {text!r} is not COLUMN>NUMBER; try --fail-if 'drift_rms>0.01'")
    column, sign, number = match.groups()
    numeric = [name for name in COLUMNS if name not in TEXT_COLUMNS]
    if column not in numeric:
        raise UnknownName("numeric column", column, numeric)
    try:
        bound = float(number)
    except ValueError:
        raise UsageError(f"--fail-if {text!r}: {number!r} is not a number") from None
    if math.isnan(bound):
        raise UsageError(f"--fail-if {text!r}: nan compares with nothing")
    return Gate(column, sign, bound)


def broken(gates: Sequence[Gate], found: Iterable[Record]) -> list[str]:
    """Return a line for every gate that some record breaks: the first such record, and how many."""
    kept, lines = list(found), []
    for gate in gates:
        failing = [record for record in kept if gate.broken_by(record)]
        if failing:
            first = failing[0]
            lines.append(
                f"failed: {gate.column} = {getattr(first, gate.column)} ({gate.column}{gate.sign}"
                f"{gate.bound:g}) for {first.subject} {first.dtype} at offset {first.offset}; "
                f"{len(failing)} of {len(kept)} cases fail"
            )
    return lines
