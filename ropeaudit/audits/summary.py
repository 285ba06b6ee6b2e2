"""Many rows of reports in groups: how many, their verdicts, the worst and the median of a column."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeaudit.audits import records
from ropeaudit.errors import UnknownName, UsageError

Row = Mapping[str, Any]

BY = ("subject", "dtype")
COLUMN = "drift_rms"


@dataclass(frozen=True, slots=True)
class Group:
    """The rows that agree in some columns.

    names: those columns -> their values. worst: the row whose value is the worst, a nan (where
    scores are nonfinite) before all others; None where every case was refused.
    """

    names: Mapping[str, Any]
    column: str
    rows: Sequence[Row]
    worst: Row | None

    @property
    def verdicts(self) -> Counter[str]:
        """How many rows have which verdict."""
        return Counter(str(row.get("verdict")) for row in self.rows)

    @property
    def values(self) -> list[float]:
        """What is defined of the column."""
        results = (_number(row, self.column) for row in self.rows)
        return [value for value in results if not math.isnan(value)]

    @property
    def median(self) -> float:
        """The median of what is defined, nan where nothing is."""
        return statistics.median(self.values) if self.values else math.nan


def groups(rows: Sequence[Row], by: Sequence[str] = BY, column: str = COLUMN) -> list[Group]:
    """Return the groups of rows that agree in the columns `by`, in the order in which they come.

    Raises: UnknownName, UsageError for a column that does not exist or that some row lacks.
    """
    if column not in records.COLUMNS.numeric:
        raise UnknownName("numeric column", column, records.COLUMNS.numeric)
    for name in by:
        if name not in records.COLUMNS:
            raise UnknownName("column", name, records.COLUMNS)
    for name in (*by, column):
        if any(name not in row for row in rows):
            raise UsageError(f"some rows have no column {name}: write the reports without --columns")
    stored: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        stored.setdefault(tuple(repr(row[name]) for name in by), []).append(row)
    return [
        Group({name: some[0][name] for name in by}, column, some, _worst(some, column))
        for some in stored.values()
    ]


def severity(row: Row, column: str) -> float:
    """Return how bad a row is: the larger the worse, inf where scores are nonfinite."""
    value = _number(row, column)
    if math.isnan(value):
        return math.inf
    return -value if records.COLUMNS[column].least_is_worst else abs(value)


def _worst(rows: Sequence[Row], column: str) -> Row | None:
    seen = [row for row in rows if row.get("verdict") != "refused"]
    return max(seen, key=lambda row: severity(row, column), default=None)


def _number(row: Row, column: str) -> float:
    value = row[column]
    return math.nan if value is None else float(value)
