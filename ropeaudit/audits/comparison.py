"""Two reports of the same cases: which changed, which are new and which are gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeaudit import recipes
from ropeaudit.audits import records
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.runtime import digests

Row = Mapping[str, Any]

_VERDICTS_SINCE = 3  # the schema whose verdicts have today's meanings
RATIO = 1.05  # a column that is this many times what it was, or less than its inverse, has changed
KEYS = tuple(name for name in records.IDENTITY if name not in ("schema", "version", "tolerance"))
# What is signed, or computed and not measured, is not compared.
COMPARED = records.COLUMNS.compared


@dataclass(frozen=True, slots=True)
class Pair:
    """A case before and after; None where a report lacks it. changed: columns that are not what they were."""

    before: Row | None
    after: Row | None
    changed: tuple[str, ...] = ()

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

    def within_error(self, column: str) -> bool:
        """Return whether a drift changed by no more than the exact scores are certain to."""
        error = max(value(self.before, "reference_error"), value(self.after, "reference_error"))
        return "drift" in column and abs(self.change(column)) <= error


@dataclass(frozen=True, slots=True)
class Difference:
    """All pairs in the order of the later report, those that are gone last. ratio: what is a change."""

    pairs: Sequence[Pair]
    ratio: float

    def of(self, status: str) -> list[Pair]:
        """Return the pairs of a status."""
        return [pair for pair in self.pairs if pair.status == status]

    @property
    def shared(self) -> list[Pair]:
        """The cases that both reports have."""
        return [pair for pair in self.pairs if pair.before is not None and pair.after is not None]


def compare(before: Sequence[Row], after: Sequence[Row], ratio: float = RATIO) -> Difference:
    """Join the rows of two reports by what was requested, and say which changed.

    Rows are joined by the columns of `KEYS` that every row of both has: the version of what was measured
    is not among them, and where a row is of schema 1, what that schema did not say is left out too.
    ratio: at least 1. A drift that changed by less than `reference_error` has not.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    if not 1 <= ratio < math.inf:
        raise UsageError(f"--ratio {ratio:g} is not 1 or more; try --ratio {RATIO}")
    keys = [name for name in KEYS if all(name in row for row in (*before, *after))]
    join = _old_key if any(row.get("schema") == 1 for row in (*before, *after)) else _plain
    old, new = _by_key(before, keys, "earlier", join), _by_key(after, keys, "later", join)
    if not set(old) & set(new):
        raise BadInput(f"the two reports have no case in common{_apart(before, after, keys)}")
    pairs = [_pair(old.get(key), row, ratio) for key, row in new.items()]
    return Difference([*pairs, *(Pair(row, None) for key, row in old.items() if key not in new)], ratio)


def value(row: Row | None, column: str) -> float:
    """Return a numeric column of a row, nan where it is undefined or missing."""
    result = None if row is None else row.get(column)
    return math.nan if result is None else float(result)


def _by_key(
    rows: Iterable[Row], keys: Sequence[str], which: str, join: Callable[[Any], Any]
) -> dict[tuple[Any, ...], Row]:
    results: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(join(_clean(name, row[name])) for name in keys)
        if key in results and repr(results[key]) != repr(row):
            raise BadInput(
                f"the {which} report has two rows for {row['subject']} {row.get('dtype', '')} at offset "
                f"{row['offset']} that differ; write both reports without --columns"
            )
        results[key] = row
    return results


def _clean(name: str, value: Any) -> Any:
    """What was not noted before there was more than one: a clean environment, and NumPy as the engine."""
    return None if (name, value) in (("environment", "none"), ("engine", "numpy")) else value


def _plain(value: Any) -> Any:
    """A value that equals itself."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _old_key(value: Any) -> Any:
    """A value without the words that schema 1 did not have: a digest, switches, an order."""
    if not isinstance(value, str):
        return _plain(value)
    new = (digests.MARK, "order=", *(f"{name}=" for name in recipes.PLAIN))
    return " ".join(word for word in value.split(" ") if not word.startswith(new))


def _apart(before: Sequence[Row], after: Sequence[Row], keys: Sequence[str]) -> str:
    """Say in which column the two differ throughout."""
    for name in keys:
        old, new = ({_plain(row[name]) for row in rows} for rows in (before, after))
        if old and new and not old & new:
            first, second = (min(map(str, some)) for some in (old, new))
            return f": {name} is {first} in the earlier and {second} in the later one"
    return "" if before and after else f": the {'later' if before else 'earlier'} one is empty"


def _pair(before: Row | None, after: Row, ratio: float) -> Pair:
    pair = Pair(before, after)
    if before is None:
        return pair
    changed = [name for name in COMPARED if _has_changed(pair, name, ratio)]
    if _same_words(before, after):
        words = [name for name in ("verdict", "within_tolerance") if name in before and name in after]
        changed += [name for name in words if before[name] != after[name]]
    return Pair(before, after, tuple(changed))


def _same_words(before: Row, after: Row) -> bool:
    """Whether two rows are judged alike: by verdicts of the same schema, and the same tolerance."""
    old, new = (value(row, "schema") >= _VERDICTS_SINCE for row in (before, after))
    return old == new and before.get("tolerance") == after.get("tolerance")


def _has_changed(pair: Pair, name: str, ratio: float) -> bool:
    if pair.before is None or pair.after is None or name not in pair.before or name not in pair.after:
        return False
    old, new = value(pair.before, name), value(pair.after, name)
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) != math.isnan(new)
    if records.COLUMNS[name].kind is int:  # a count: every other one is a change
        return old != new
    return not pair.within_error(name) and not 1 / ratio <= pair.ratio(name) <= ratio
