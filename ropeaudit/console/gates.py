"""--fail-if: conditions on columns; the exit code is 1 if one holds for some row."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ropeaudit.audits import judging
from ropeaudit.audits.comparison import Pair, value
from ropeaudit.audits.records import COLUMNS, GROUP_HINTS
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.reports.numbers import times
from ropeaudit.reports.verdicts import case_name
from ropeaudit.runtime.columns import Columns

Row = Mapping[str, Any]

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
    """A condition such as drift_rms>0.01, which nan and a wrong rotation fulfil too.

    relative: whether the bound is a multiple of the earlier value, as in drift_rms>1.1x.
    meaning: that of the column.
    typed: the text of the condition.
    """

    column: str
    sign: str
    bound: float
    relative: bool = False
    meaning: str = ""
    typed: str = ""

    @property
    def of_drift(self) -> bool:
        """Whether its column measures drift, which misses errors that q and k share."""
        return self.column in COLUMNS and COLUMNS[self.column].role == "drift"

    def broken_since(self, pair: Pair) -> bool:
        """Return whether a case fulfils the condition, compared with its earlier row if relative.

        A value that stays nan, or changes no more than unchanged code may change it, does not.
        """
        if pair.after is None:
            return False
        if not self.relative:
            current = pair.after[self.column]
            if current is None:  # only rows that were refused have no value here
                return pair.after.get("verdict") == "refused"
            wrong = math.isnan(current) or (self.of_drift and _is_wrong_rotation(pair.after))
            return wrong or _OPERATORS[self.sign](current, self.bound)
        wrong = self.of_drift and _is_wrong_rotation(pair.after)
        if pair.before is None:  # a new case fails if its value is nan
            return wrong or math.isnan(value(pair.after, self.column))
        if wrong and not _is_wrong_rotation(pair.before):
            return True
        if pair.explained(self.column):
            return False
        old, new = value(pair.before, self.column), value(pair.after, self.column)
        if math.isnan(old) or math.isnan(new):
            return math.isnan(new) and not math.isnan(old)
        return _OPERATORS[self.sign](new, self.bound * old)


def _is_wrong_rotation(row: Row) -> bool:
    return row.get("verdict") == "wrong_rotation" or judging.rotates_wrongly(row.get("rotation_excess"))


Exempt: TypeAlias = Callable[[Gate, Row], bool]


def parse(
    text: str, relative: bool = False, columns: Columns = COLUMNS, example: str = "drift_rms>0.01"
) -> Gate:
    """Read COLUMN SIGN NUMBER, 1 % as 0.01; with `relative` also 1.1x. Raises: UsageError, UnknownName.

    columns: those of the report.
    example: a condition on them, for the message.
    """
    match = _GATE.fullmatch(text)
    if not match:
        raise UsageError(f"--fail-if {text!r} is not COLUMN>NUMBER; try --fail-if '{example}'")
    column, sign, number = match.groups()
    if column not in columns.numeric:
        names = sorted(columns.numeric, key=lambda name: columns[name].title != column)
        raise UnknownName("numeric column", column, names)
    times = len(number) > 1 and number.endswith(("x", "X"))
    if times and not relative:
        raise UsageError(f"--fail-if {text!r} compares with an earlier report; add --baseline FILE")
    try:
        bound = float(number[:-1]) / 100 if number.endswith("%") else float(number[:-1] if times else number)
    except ValueError:
        raise UsageError(f"--fail-if {text!r}: {number!r} is not a number") from None
    if math.isnan(bound):
        raise UsageError(f"--fail-if {text!r}: nan compares with nothing")
    return Gate(column, sign, bound, times, columns[column].meaning, f"{column}{sign}{number}")


def broken_since(
    gates: Sequence[Gate],
    pairs: Sequence[Pair],
    exempt: Exempt = lambda gate, row: False,
) -> list[str]:
    """Return a line for every gate that some case breaks.

    exempt: whether a row cannot break a gate. Raises: UsageError if a row lacks the column of a gate, or has
    no value there and no other gate is broken.
    """
    for gate in gates:
        sides = [row for pair in pairs for row in (pair.after, pair.before if gate.relative else None)]
        if any(row is not None and gate.column not in row for row in sides):
            raise UsageError(f"--fail-if '{gate.typed}': the reports lack the column {gate.column}")
    lines, present = [], [pair for pair in pairs if pair.after is not None]
    unjudged = list[str]()
    judged = [(gate, [pair for pair in present if not exempt(gate, pair.row)]) for gate in gates]
    for gate, concerned in list(judged):
        empty = [pair.row for pair in concerned if pair.row.get(gate.column) is None]
        empty = [row for row in empty if row.get("verdict") != "refused"]  # which breaks the gate
        if empty:
            group = COLUMNS[gate.column].group if gate.column in COLUMNS else ""
            why = GROUP_HINTS.get(group) or f"it is {gate.meaning}"
            unjudged.append(
                f"--fail-if '{gate.typed}': {gate.column} is empty in {len(empty)} of {len(present)} rows, "
                f"the first {case_name(empty[0])}; {why}; leave the condition out"
            )
            judged.remove((gate, concerned))
    for gate, concerned in judged:
        failing = [pair for pair in concerned if gate.broken_since(pair)]
        if failing:
            old = failing[0].before
            was = f", before {old.get(gate.column)}" if old and gate.relative else ""
            lines.append(_line(gate, failing[0].row, was, len(failing), len(present)))
    if unjudged and not lines:
        raise UsageError(unjudged[0])
    return lines + unjudged


def _line(gate: Gate, row: Row, was: str, failing: int, of: int) -> str:
    """Return the message on a broken gate, with the first case."""
    value_seen = "nan" if row[gate.column] is None else row[gate.column]
    seen = f"{gate.column} = {value_seen}{was} ({gate.typed})"
    if gate.of_drift and _is_wrong_rotation(row):
        error = times(row.get("rotation_excess") or math.nan)
        seen = f"wrong rotation (rotation error {error}× allowed); {gate.column} itself is {value_seen},"
    elif row[gate.column] is None or math.isnan(row[gate.column]):
        seen = f"{gate.column} is nan, which fails {gate.typed},"
    return f"failed: {seen} for {case_name(row)}; {failing} of {of} cases fail"
