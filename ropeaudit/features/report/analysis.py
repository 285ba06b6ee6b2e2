"""Reports read back: the rows of several files as those of one, in groups, or against an earlier report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ropeaudit.audits import arguments, comparison, records
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.comparison import Difference
from ropeaudit.audits.identity import UNKNOWN, shown
from ropeaudit.audits.records import Record
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.reports import Row, reading
from ropeaudit.reports.verdicts import badness, number

BY = ("implementation", "dtype")
COLUMN = "drift_rms"


@dataclass(frozen=True, slots=True)
class Group(Result):
    """The rows that agree in some columns.

    names: those columns -> their values. worst: the row whose value is the worst, a nan (where
    scores are nonfinite) before all others; None where every case was refused.
    """

    report_module: ClassVar[str] = "ropeaudit.features.report.report"

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
        results = (number(row, self.column) for row in self.rows)
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
    results = []
    for some in stored.values():
        seen = [row for row in some if row.get("verdict") != "refused"]
        worst = max(seen, key=lambda row: badness(row, column), default=None)
        results.append(Group({name: some[0][name] for name in by}, column, some, worst))
    return results


@arguments.checked
def merge(files: Names) -> list[Record]:
    """Return the rows of reports of `shift`, in the order of the files; one that several hold comes once.

    files: .csv, .json, .jsonl or .parquet, with all columns. What is not a number is null in JSON and is no
    difference; a row is taken from the file that says most.
    Raises: BadInput if two rows of the same cell differ, UnknownName.
    """
    pairs, _ = rows_of(arguments.listed(files))
    return [record for _, record in whole(pairs)]


@arguments.checked
def summary(files: Names, by: Names = BY, column: str = COLUMN) -> list[Group]:
    """Return the groups of rows that agree in the columns `by`, in the order in which they come.

    files: reports of `shift`, .csv, .json, .jsonl or .parquet; several are taken together, and a row that
    several hold counts once. column: whose worst value and median a group tells.
    Raises: BadInput; UnknownName, UsageError for a column that does not exist or that some row lacks.
    """
    pairs, _ = rows_of(arguments.listed(files))
    return groups([row for _, row in pairs], arguments.listed(by), column)


@arguments.checked
def diff(before: str, after: Names, ratio: float = comparison.RATIO) -> Difference:
    """Compare reports of `shift` with an earlier one: files, .csv, .json, .jsonl or .parquet.

    Rows are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, formats of stages.
    after: several files are taken together. ratio: times as much that count as changed, up or down, at
    least 1. Between reports that are not known to be of one processor, what the order of sums explains is no
    change.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    later = arguments.listed(after)
    pairs, _ = rows_of(later)
    made_on = {reading.processor(path) for path in later}
    processors = reading.processor(before), made_on.pop() if len(made_on) == 1 else ""
    return comparison.compare(reading.read(before), [row for _, row in pairs], ratio, processors)


def rows_of(files: Sequence[str]) -> tuple[list[tuple[str, Row]], Counter[str]]:
    """Return the rows of files, each with its file, and how many each file holds.

    Rows of one cell that say the same count once, with the columns of both. What is not finite is no
    difference, as JSON holds none; of such rows the one that says infinity is taken.
    """
    results: list[tuple[str, Row]] = []
    cells: dict[tuple[Any, ...], list[int]] = {}
    counts: Counter[str] = Counter()
    for path in files:
        read = reading.read(path)
        counts[path] = len(read)
        for row in read:
            held = cells.setdefault(tuple(row.get(name) for name in _CELL), [])
            same = next((place for place in held if _agree(results[place][1], row)), None)
            if same is None:
                held.append(len(results))
                results.append((path, row))
            else:
                first, before = results[same]
                results[same] = first, {**row, **{name: v for name, v in before.items() if _says(v)}}
    return results, counts


def whole(pairs: Iterable[tuple[str, Row]]) -> list[tuple[str, Record]]:
    """Return distinct rows, each with its file, as records.

    Raises: BadInput for a row without a column, or if two of the same cell differ.
    """
    results: dict[object, tuple[str, Record]] = {}
    for path, row in pairs:
        (record,) = reading.records_of(path, [row])
        first, held = results.setdefault(record.key(), (path, record))
        if held is not record:
            raise BadInput(
                f"two different rows of the same cell: {shown(record)}, in {first!r} and {path!r}; "
                "leave out one of the files, or compare the two"
            )
    return list(results.values())


_ALWAYS = tuple(name for name in records.CORE if not records.COLUMNS[name].sentence)  # every file says these
_CELL = ("case", "tolerance", *records.FIRST)


def _agree(first: Row, second: Row) -> bool:
    """Return whether two rows say the same, as far as both say something."""
    shared = [name for name in first if name in second and name != "stages"]
    judged = (name for name in shared if name in _ALWAYS or (_says(first[name]) and _says(second[name])))
    return all(_finite(first[name]) == _finite(second[name]) for name in judged)


def _says(value: Any) -> bool:
    return value not in (None, "", UNKNOWN)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
