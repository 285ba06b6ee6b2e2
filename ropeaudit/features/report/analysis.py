"""Reports read back: rows of files as one, in groups, or against an earlier report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ropeaudit.audits import arguments, comparison, records
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.comparison import Difference
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.audits.records import UNKNOWN, Record, shown
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.reports import Report, Row, drift, reading, settings, tabulated
from ropeaudit.reports.answers import Answer, Status
from ropeaudit.reports.numbers import counted, setting, short
from ropeaudit.reports.verdicts import badness, case_name, quality
from ropeaudit.runtime.columns import Column, Columns, table

BY = ("implementation", "dtype")
COLUMN = "drift_rms"
_ALWAYS = tuple(name for name in records.CORE if not records.COLUMNS[name].sentence)  # every file says these
_CELL = ("case", "tolerance", *records.FIRST)


@dataclass(frozen=True, slots=True)
class Group(Result):
    """The rows that agree in some columns.

    names: those columns -> their values.
    worst: the row whose value is the worst, a nan (where scores are nonfinite) before all others; None where
    every case was refused.
    """

    report_module: ClassVar[str] = __name__

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
        results = (comparison.value(row, self.column) for row in self.rows)
        return [value for value in results if not math.isnan(value)]

    @property
    def median(self) -> float:
        """The median of what is defined, nan where nothing is."""
        return statistics.median(self.values) if self.values else math.nan


def groups(rows: Sequence[Row], by: Sequence[str] = BY, column: str = COLUMN) -> list[Group]:
    """Return the groups of rows that agree in some columns. Raises: UnknownName, UsageError."""
    if column not in records.COLUMNS.numeric:
        raise UnknownName("numeric column", column, records.COLUMNS.numeric)
    for name in (*by, column):
        if name not in records.COLUMNS:
            raise UnknownName("column", name, records.COLUMNS)
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
    several hold counts once.
    column: whose worst value and median a group tells.
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

    Rows of one cell that say the same count once, with the columns of both; what is not finite is none.
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
                said = {name: value for name, value in before.items() if _says(value)}
                results[same] = first, {**row, **said}
    return results, counts


def whole(pairs: Iterable[tuple[str, Row]]) -> list[tuple[str, Record]]:
    """Return distinct rows as records, with their files. Raises: BadInput."""
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


def _agree(first: Row, second: Row) -> bool:
    """Return whether two rows say the same, as far as both say something."""
    shared = [name for name in first if name in second and name != "stages"]
    for name in shared:
        one, other = first[name], second[name]
        judged = name in _ALWAYS or (_says(one) and _says(other))
        if judged and _finite(one) != _finite(other):
            return False
    return True


def _says(value: Any) -> bool:
    return value not in (None, "", UNKNOWN)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


SCHEMA = 2  # 2: out_of_tolerance, and the verdicts of schema 3 of an audit
_NEEDED = ("dtype", "drift_rms", "verdict")
_FILE = Column("file", str, "the report that the row is from")
# what a row has in a column that its file lacks
_UNDEFINED: dict[str, Any] = {name: column.undefined for name, column in records.COLUMNS.items()}
_UNDEFINED["within_tolerance"] = UNKNOWN  # None would say that it is undecided


def row(one: Group) -> dict[str, Any]:
    """Return the row of a group. out_of_tolerance: None where no row says it."""
    counts, qualities = one.verdicts, [quality(row) for row in one.rows]
    return {
        "cases": len(one.rows),
        "undefined": len(one.rows) - len(one.values),
        "column": one.column,
        "worst": one.worst[one.column] if one.worst else None,
        "median": one.median,
        "worst_at": _place(one) if one.worst else "none",
        "out_of_tolerance": qualities.count("no") if any(qualities) else None,
        "verdicts": ", ".join(f"{counts[name]} {name}" for name in reversed(VERDICTS) if counts[name]),
        **{f"{verdict}_cases": counts[verdict] for verdict in VERDICTS},
    }


OWN = table("report-by")
SUMMARY = Columns({**records.COLUMNS, **OWN}.values())  # whatever the rows are grouped by


def report(
    results: Sequence[Group],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    worst: bool = False,
) -> Report:
    """Return a line per group, or its worst row whole."""
    by = list(results[0].names) if results else []
    about, some = {"by": by, **metadata}, [answer(results)]
    if not worst:
        rows = [{"schema": SCHEMA, **group.names, **row(group)} for group in results]
        written = list(rows[0]) if rows else ["schema", *by, *OWN]
        screen = [*by, *OWN.screen(rows)]
        return tabulated(SUMMARY, SCHEMA, rows, screen, columns, about, some, OWN.dispensable, written)
    whole = [group.worst for group in results if group.worst]
    known, column = reading.told(whole), [group.column for group in results[:1]]
    rows = [{name: one.get(name) for name in (*known, *(columns or ()))} for one in whole]
    first = dict.fromkeys([*by, "implementation", "dtype", "offset", *settings.independent(rows)])
    screen = [name for name in (*first, *column, "verdict") if name in known]
    return tabulated(records.COLUMNS, records.SCHEMA, rows, screen, columns, about, some, (), known)


def answer(results: Sequence[Group]) -> Answer:
    """Return how many are out of tolerance, and the worst value."""
    rows = [row for group in results for row in group.rows]
    column = results[0].column if results else ""
    measured = [row for row in rows if row.get("verdict") != "refused"]
    nonfinite = [row for row in measured if badness(row, column) == math.inf]
    left = [row for row in measured if badness(row, column) < math.inf]
    known = Counter(map(quality, rows))
    judged = known["yes"] + known["no"] + known["undecided"]
    decides = f"{known['no']} out of tolerance" if judged else "not judged: no within_tolerance"
    facts = [("groups", f"{len(results):,}")]
    if nonfinite:
        facts.append((f"no {column}", f"{len(nonfinite)} (nan), first {case_name(nonfinite[0])}"))
    if left:
        worst = max(left, key=lambda row: badness(row, column))
        facts.append((f"worst {column}", f"{short(worst[column])}, of {case_name(worst)}"))
    if len(measured) < len(rows):
        facts.append(("refused", f"{len(rows) - len(measured):,}"))
    status: Status = "OK" if known["yes"] == len(rows) else "WARN"
    if known["no"] or nonfinite:
        status = "FAIL"
    return Answer(status, counted(len(rows), "case"), decides, facts=facts)


def _place(group: Group) -> str:
    worst, by = group.worst or {}, group.names
    names = [name for name in ("model", "implementation", "dtype") if name in worst and name not in by]
    words = [str(worst[name]) for name in names if worst[name] != "none"]
    several = [name for name in settings.independent(group.rows) if name not in (*by, *names)]
    words += [f"{name}={setting(worst.get(name))}" for name in several]
    if "offset" not in by:
        words.append(f"at offset {worst['offset']}")
    return " ".join(words) or "there"


def merged(
    files: Sequence[str],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    data: bool = False,
) -> Report:
    """Return the report of all rows of these files, in order; equal ones count once.

    data: whether a program reads what is written, to which nothing says which file a row is from: rows of
    several files must then be whole, and of different cells. Raises: BadInput, UnknownName.
    """
    paths = list(dict.fromkeys(files))
    pairs, counts = rows_of(paths)
    told = reading.told([row for _, row in pairs])
    if data and len(paths) > 1:
        pairs = [(path, record.as_dict()) for path, record in whole(pairs)]
    rows = []
    for path, row in pairs:
        for name in _NEEDED:
            if name not in row:
                raise BadInput(f"{path!r} has no column {name}; write it again without --columns")
        if row["verdict"] not in VERDICTS:
            known = ", ".join(VERDICTS)
            raise BadInput(f"{path!r} has a verdict {row['verdict']!r}; there are {known}")
        rows.append({name: row.get(name, value) for name, value in _UNDEFINED.items()} | {"file": path})
    try:
        results = [reading.record(row) for row in rows]
        described = drift.report(results, columns or (), metadata)
    except (ValueError, ArithmeticError, TypeError) as error:  # by hand a file can be given any values
        raise BadInput(f"{', '.join(paths)}: values that no audit gives: {error}") from None
    more = [name for name in told if name not in described.columns]
    repeated = counts.total() - len(rows)
    notes = [f"{repeated} rows stand in these files more than once and count once."] if repeated else []
    return replace(
        described,
        rows=[{**seen, **row} for seen, row in zip(described.rows, rows, strict=True)],
        columns=described.columns if columns else [*described.columns, *more],
        screen=[*(["file"] if len(paths) > 1 and not columns else []), *described.screen],
        notes=[*notes, *described.notes],
        metadata={
            **described.metadata,
            "sources": [{"file": path, "rows": counts[path], **carried(path)} for path in paths],
        },
        declared={**described.declared, "file": _FILE},
    )


def carried(path: str) -> dict[str, Any]:
    """Return how a report was made, as far as it says so."""
    kinds = {"command": str, "time": str, "environment": dict, "stages": dict}
    about = reading.about(path)
    return {name: about[name] for name, kind in kinds.items() if isinstance(about.get(name), kind)}
