"""Two reports of the same cases: which changed, which are new and which are gone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ropeaudit.audits import records, summation
from ropeaudit.audits.records import APART, UNKNOWN
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UsageError

Row = Mapping[str, Any]

RATIO = 1.05  # a column that is this many times what it was, or less than its inverse, has changed
# What is signed, or computed and not measured, is not compared.
COMPARED = records.COLUMNS.compared
_DECIDING = ("drift_rms", "floor_rms", "drift_max", "rotation_excess")  # what verdicts are read off


@dataclass(frozen=True, slots=True)
class Pair:
    """A case before and after; None where a report lacks it. changed: columns that are not what they were.

    reordered: whether sums may have been added in another order, as on another processor.
    """

    before: Row | None
    after: Row | None
    changed: tuple[str, ...] = ()
    reordered: bool = False

    @property
    def row(self) -> Row:
        """What says which case it is: the later row where there is one."""
        return self.after or self.before or {}

    @property
    def status(self) -> str:
        """One word: new, gone, changed or same."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        return "changed" if self.changed else "same"

    def ratio(self, column: str) -> float:
        """Return after / before of a column: 1 for 0 and 0, inf from 0 to more, nan where undefined."""
        old, new = value(self.before, column), value(self.after, column)
        if math.isnan(old) or math.isnan(new):
            return math.nan
        if old == new:
            return 1.0
        return math.inf if old == 0 else new / old

    def change(self, column: str) -> float:
        """Return after - before of a column, nan where undefined."""
        old, new = value(self.before, column), value(self.after, column)
        return 0.0 if old == new else new - old

    def explained(self, column: str) -> bool:
        """Return whether a column changed by no more than one may expect of unchanged code.

        A drift by what the exact scores are certain to; on another processor, by what the order of sums does.
        """
        if self.before is None or self.after is None:
            return False
        error = 0.0
        if "drift" in column:
            error = max(value(self.before, "reference_error"), value(self.after, "reference_error"))
        if self.reordered:
            error += summation.allowance(self.before, self.after, column)
        return abs(self.change(column)) <= error


@dataclass(frozen=True, slots=True)
class Difference(Result):
    """All pairs in the order of the later report, those that are gone last. ratio: what is a change.

    processors: what computed the earlier and the later report, empty where a report does not say.
    """

    report_module: ClassVar[str] = "ropeaudit.reports.comparison"
    pairs: Sequence[Pair]
    ratio: float
    processors: tuple[str, str] = ("", "")

    def of(self, status: str) -> list[Pair]:
        """Return the pairs of a status."""
        return [pair for pair in self.pairs if pair.status == status]

    @property
    def shared(self) -> list[Pair]:
        """The cases that both reports have."""
        return [pair for pair in self.pairs if pair.before is not None and pair.after is not None]

    @property
    def only_reordered(self) -> bool:
        """Whether figures differ, and all by no more than the order of sums explains on another processor."""
        if not any(pair.reordered for pair in self.pairs):
            return False
        differing = [
            (pair, name)
            for pair in self.shared
            for name in COMPARED
            if pair.before
            and pair.after
            and name in pair.before
            and name in pair.after
            and _number(pair.before[name]) != _number(pair.after[name])
        ]
        return bool(differing) and all(pair.explained(name) for pair, name in differing)


def compare(
    before: Sequence[Row],
    after: Sequence[Row],
    ratio: float = RATIO,
    processors: tuple[str, str] | None = None,
) -> Difference:
    """Join the rows of two reports by what was requested, and say which changed.

    Rows are joined by `case`: neither the version of what was measured nor the tolerance is part of it.
    ratio: at least 1. A drift that changed by less than `reference_error` has not. processors: what computed
    each of them, empty where that is not known; None: one and the same. Unless they are known to be one, what
    the order of sums explains is no change: see `summation`.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    if not 1 <= ratio < math.inf:
        raise UsageError(f"--ratio {ratio:g} is not 1 or more; try --ratio {RATIO}")
    old, new = _by_case(before, "earlier"), _by_case(after, "later")
    if not set(old) & set(new):
        raise BadInput(f"the two reports have no case in common{_apart(before, after)}")
    processors = processors or ("this", "this")
    reordered = processors[0] != processors[1] or not processors[0]
    pairs = [_pair(old.get(key), row, ratio, reordered) for key, row in new.items()]
    gone = [Pair(row, None) for key, row in old.items() if key not in new]
    return Difference([*pairs, *gone], ratio, processors)


def value(row: Row | None, column: str) -> float:
    """Return a numeric column of a row, nan where it is undefined or missing."""
    result = None if row is None else row.get(column)
    return math.nan if result is None else float(result)


def _by_case(rows: Iterable[Row], which: str) -> dict[str, Row]:
    results: dict[str, Row] = {}
    for row in rows:
        if row.get("case") is None:
            raise BadInput(f"the {which} report has no column case; write both reports without --columns")
        before = results.setdefault(row["case"], row)
        if before is not row and repr(before) != repr(row):
            raise BadInput(
                f"the {which} report has two rows for {row['implementation']} {row.get('dtype', '')} at "
                f"offset {row['offset']} that differ; leave one out"
            )
    return results


def _apart(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say in which column the two differ throughout."""
    told = (name for name in records.IDENTITY if name not in APART)
    for name in (name for name in told if all(name in row for row in (*before, *after))):
        old, new = ({_number(row[name]) for row in rows} for rows in (before, after))
        unsaid = {None, "", UNKNOWN}
        if old - unsaid and new - unsaid and not old & new:
            first, second = (min(map(str, some)) for some in (old, new))
            return f": {name} is {first} in the earlier and {second} in the later one"
    if before and after:
        return ": what they say of their settings does not tell why; measure one of them again"
    return f": the {'later' if before else 'earlier'} one is empty"


def _pair(before: Row | None, after: Row, ratio: float, reordered: bool) -> Pair:
    pair = Pair(before, after, (), reordered)
    if before is None:
        return pair
    changed = [name for name in COMPARED if _has_changed(pair, name, ratio)]
    if before.get("tolerance") == after.get("tolerance") and not _at_a_threshold(pair):
        words = [name for name in ("verdict", "within_tolerance") if name in before and name in after]
        changed += [name for name in words if before[name] != after[name]]
    return Pair(before, after, tuple(changed), reordered)


def _at_a_threshold(pair: Pair) -> bool:
    """Return whether words that differ are read off figures that only another order of sums moved."""
    return pair.reordered and all(
        pair.explained(name) or _number(pair.row.get(name)) is None for name in _DECIDING
    )


def _number(cell: Any) -> Any:
    """Return a cell, None where it is undefined: it equals itself."""
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _has_changed(pair: Pair, name: str, ratio: float) -> bool:
    if pair.before is None or pair.after is None or name not in pair.before or name not in pair.after:
        return False
    old, new = value(pair.before, name), value(pair.after, name)
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) != math.isnan(new)
    if records.COLUMNS[name].kind is int:  # a count: every other one is a change
        return old != new
    return not pair.explained(name) and not 1 / ratio <= pair.ratio(name) <= ratio
