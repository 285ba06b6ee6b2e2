"""`report`: rows of files merged, summarised in groups, or compared with an earlier report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar

from ropeaudit.audits import arguments, comparison, records
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.comparison import Difference
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.audits.records import UNKNOWN, Record, row_label
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.reports import Report, drift, reading, settings, tabulated
from ropeaudit.reports.answers import Answer, Status
from ropeaudit.reports.numbers import counted, setting, short
from ropeaudit.reports.reading import Source
from ropeaudit.reports.verdicts import badness, case_name, quality_of
from ropeaudit.runtime.columns import Column, Columns, table
from ropeaudit.runtime.rows import ABSENT, Row, Rows

BY = ("implementation", "dtype")
COLUMN = "drift_rms"
_ALWAYS = tuple(name for name in records.CORE if not records.COLUMNS[name].sentence)  # every file says these
_CELL = ("case", "tolerance", *records.FIRST)


@dataclass(frozen=True, slots=True)
class Group(Result):
    """The rows with equal values in some columns.

    names: those columns -> their values.
    worst: the row with the worst value, where nan is worst; None if every case was refused.
    """

    report_module: ClassVar[str] = __name__

    names: Mapping[str, Any]
    column: str
    rows: Rows
    worst: Row | None

    @property
    def verdicts(self) -> Counter[str]:
        """The number of rows by verdict."""
        return Counter(map(str, self.rows.column("verdict")))

    @property
    def qualities(self) -> Counter[str]:
        """The number of rows by quality: yes, no, undecided; empty if unknown."""
        within = self.rows.column("within_tolerance", UNKNOWN)
        return Counter(map(quality_of, within, self.rows.column("verdict")))

    @property
    def values(self) -> list[float]:
        """The defined values of the column."""
        every = self.rows.column(self.column)
        return [value for value in every if value is not None and value == value]

    @property
    def median(self) -> float:
        """The median of the defined values; nan without any."""
        return statistics.median(self.values) if self.values else math.nan


def groups(listed: Sequence[Row], by: Sequence[str] = BY, column: str = COLUMN) -> list[Group]:
    """Group rows with equal values in some columns. Raises: UnknownName, UsageError."""
    rows = Rows.of(listed)
    if column not in records.COLUMNS.numeric:
        raise UnknownName("numeric column", column, records.COLUMNS.numeric)
    for name in (*by, column):
        if name not in records.COLUMNS:
            raise UnknownName("column", name, records.COLUMNS)
        if not rows.all_have(name):
            raise UsageError(f"some rows have no column {name}: write the reports without --columns")
    places: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(*(map(repr, rows.column(name)) for name in by), strict=True)
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    verdicts = rows.column("verdict")
    sizes = [badness({column: value}, column) for value in rows.column(column)]
    results = []
    for some in places.values():
        measured = [place for place in some if verdicts[place] != "refused"]
        worst = rows[max(measured, key=sizes.__getitem__)] if measured else None
        names = {name: rows[some[0]][name] for name in by}
        results.append(Group(names, column, rows.take(some), worst))
    return results


@arguments.public
def merge(files: Names) -> list[Record]:
    """Return the rows of reports of `shift`, in the order of the files; one that several hold comes once.

    files: .csv, .json, .jsonl or .parquet, with all columns. What is not a number is null in JSON and is no
    difference; a row is taken from the file that says most.
    Raises: BadInput if two rows of the same cell differ, UnknownName.
    """
    rows, origins = merge_rows(map(reading.load, arguments.as_list(files)))
    check_complete(rows, origins)
    return [reading.record(row) for row in rows]


@arguments.public
def summary(files: Names, by: Names = BY, column: str = COLUMN) -> list[Group]:
    """Return the groups of rows that agree in the columns `by`, in the order in which they come.

    files: reports of `shift`, .csv, .json, .jsonl or .parquet; several are taken together, and a row that
    several hold counts once.
    column: whose worst value and median a group tells.
    Raises: BadInput; UnknownName, UsageError for a column that does not exist or that some row lacks.
    """
    rows, _ = merge_rows(map(reading.load, arguments.as_list(files)))
    return groups(rows, arguments.as_list(by), column)


@arguments.public
def diff(before: str, after: Names, ratio: float = comparison.RATIO) -> Difference:
    """Compare reports of `shift` with an earlier one: files, .csv, .json, .jsonl or .parquet.

    Rows are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, formats of stages.
    after: several files are taken together. ratio: times as much that count as changed, up or down, at
    least 1. Between reports that are not known to be of one processor, what the order of sums explains is no
    change.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    later = [reading.load(path) for path in arguments.as_list(after)]
    rows, _ = merge_rows(later)
    earlier, made_on = reading.load(before), {source.processor for source in later}
    processors = earlier.processor, made_on.pop() if len(made_on) == 1 else ""
    return comparison.compare(earlier.rows, rows, ratio, processors)


def merge_rows(sources: Iterable[Source]) -> tuple[Rows, list[str]]:
    """Return the rows of all files, and the file of each row.

    Compatible rows of one cell count once, with the columns of both; nonfinite values are none.
    """
    rows, origins = Rows({}, 0), list[str]()
    for source in sources:
        rows = rows + source.rows if origins else source.rows
        origins += [source.path] * len(source.rows)
    cells = list(zip(*(rows.column(name) for name in _CELL), strict=True))
    if len(set(cells)) == len(cells):
        return rows, origins
    seen: dict[tuple[Any, ...], list[int]] = {}
    said, kept = dict[int, Row](), list[int]()
    for place, cell in enumerate(cells):
        row, held = rows[place], seen.setdefault(cell, [])
        same = next((other for other in held if _are_compatible(said.get(other, rows[other]), row)), None)
        if same is None:
            held.append(place)
            kept.append(place)
        else:
            first = said.get(same, rows[same])
            told = {name: value for name, value in first.items() if _has_value(value)}
            said[same] = {**row, **told}
    columns = {name: list(values) for name, values in rows.take(kept).columns.items()}
    for number, place in enumerate(kept):
        for name, value in said.get(place, {}).items():
            columns[name][number] = value
    return Rows(columns, len(kept)), [origins[place] for place in kept]


def check_complete(rows: Rows, origins: Sequence[str]) -> None:
    """Raise BadInput unless rows are complete, and of different cells. origins: their files."""
    reading.check_core(rows, origins)
    held: dict[tuple[Any, ...], int] = {}
    cells = zip(*map(rows.column, ("case", "version", "tolerance")), strict=True)
    for place, cell in enumerate(cells):
        if (first := held.setdefault(cell, place)) != place:
            raise BadInput(
                f"two different rows of the same cell: {row_label(reading.record(rows[place]))}, in "
                f"{origins[first]!r} and {origins[place]!r}; leave out one of the files, or compare the two"
            )


def _are_compatible(first: Row, second: Row) -> bool:
    """Return whether rows agree in the columns both have."""
    shared = [name for name in first if name in second and name != "stages"]
    for name in shared:
        one, other = first[name], second[name]
        judged = name in _ALWAYS or (_has_value(one) and _has_value(other))
        if judged and _nonfinite_as_none(one) != _nonfinite_as_none(other):
            return False
    return True


def _has_value(value: Any) -> bool:
    return value not in (None, "", UNKNOWN)


def _nonfinite_as_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


SCHEMA = 2  # 2: out_of_tolerance, and the verdicts of schema 3 of an audit
_NEEDED = ("dtype", "drift_rms", "verdict")
# column -> value of a row whose file lacks it
_UNDEFINED: dict[str, Any] = {name: column.undefined for name, column in records.COLUMNS.items()}
_UNDEFINED["within_tolerance"] = UNKNOWN  # None would say that it is undecided
_FILE = Column("file", str, "the report that the row is from")


def row(group: Group) -> dict[str, Any]:
    """Return the row of a group. out_of_tolerance: None if unknown."""
    counts, qualities = group.verdicts, group.qualities
    return {
        "cases": len(group.rows),
        "undefined": len(group.rows) - len(group.values),
        "column": group.column,
        "worst": group.worst[group.column] if group.worst else None,
        "median": group.median,
        "worst_at": _place_words(group) if group.worst else "none",
        "out_of_tolerance": qualities["no"] if any(filter(None, qualities)) else None,
        "verdicts": ", ".join(f"{counts[name]} {name}" for name in reversed(VERDICTS) if counts[name]),
        **{f"{verdict}_cases": counts[verdict] for verdict in VERDICTS},
    }


OWN_COLUMNS = table("report-by")
SUMMARY_COLUMNS = Columns({**records.COLUMNS, **OWN_COLUMNS}.values())  # whatever the rows are grouped by


def report(
    results: Sequence[Group],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    worst: bool = False,
) -> Report:
    """Return the report of groups: a line for each, or its worst row."""
    by = list(results[0].names) if results else []
    about, some = {"by": by, **metadata}, [answer(results)]
    if not worst:
        rows = [{"schema": SCHEMA, **group.names, **row(group)} for group in results]
        written = list(rows[0]) if rows else ["schema", *by, *OWN_COLUMNS]
        screen = [*by, *OWN_COLUMNS.screen(rows)]
        return tabulated(
            SUMMARY_COLUMNS, SCHEMA, rows, screen, columns, about, some, OWN_COLUMNS.dispensable, written
        )
    whole = [group.worst for group in results if group.worst]
    told = {name for group in results for name in reading.telling_columns(group.rows)}
    known = [name for name in records.ALL_COLUMNS if name in told]
    column = [group.column for group in results[:1]]
    rows = [{name: row.get(name) for name in (*known, *(columns or ()))} for row in whole]
    first = dict.fromkeys([*by, "implementation", "dtype", "offset", *settings.independent(rows)])
    screen = [name for name in (*first, *column, "verdict") if name in known]
    return tabulated(records.COLUMNS, records.SCHEMA, rows, screen, columns, about, some, (), known)


def answer(results: Sequence[Group]) -> Answer:
    """Return the answer: how many rows are out of tolerance, and the worst value."""
    column, known = results[0].column if results else "", Counter[str]()
    lost, left = list[tuple[float, Rows, int]](), list[tuple[float, Rows, int]]()
    for group in results:
        known += group.qualities
        cells = zip(group.rows.column(column), group.rows.column("verdict"), strict=True)
        for place, (value, verdict) in enumerate(cells):
            size = badness({column: value}, column)
            if verdict != "refused":
                (lost if size == math.inf else left).append((size, group.rows, place))
    count = sum(len(group.rows) for group in results)
    judged = known["yes"] + known["no"] + known["undecided"]
    decides = f"{known['no']} out of tolerance" if judged else "not judged: no within_tolerance"
    facts = [("groups", f"{len(results):,}")]
    if lost:
        _, rows, place = lost[0]
        facts.append((f"no {column}", f"{len(lost)} (nan), first {case_name(rows[place])}"))
    if left:
        _, rows, place = max(left, key=itemgetter(0))
        facts.append((f"worst {column}", f"{short(rows[place][column])}, of {case_name(rows[place])}"))
    if refused := count - len(lost) - len(left):
        facts.append(("refused", f"{refused:,}"))
    status: Status = "OK" if known["yes"] == count else "WARN"
    if known["no"] or lost:
        status = "FAIL"
    return Answer(status, counted(count, "case"), decides, facts=facts)


def _place_words(group: Group) -> str:
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

    data: whether programs read the result, which does not name the file of a row: rows of several files must
    then be complete, and of different cells. Raises: BadInput, UnknownName.
    """
    paths = list(dict.fromkeys(files))
    sources = [reading.load(path) for path in paths]
    rows, origins = merge_rows(sources)
    told = reading.telling_columns(rows)
    if data and len(paths) > 1:
        check_complete(rows, origins)
        rows = Rows(reading.record_columns(rows), len(rows), ())
    for name in _NEEDED:
        if not rows.all_have(name):
            path = origins[rows.column(name, ABSENT).index(ABSENT)]
            raise BadInput(f"{path!r} has no column {name}; write it again without --columns")
    for verdict in set(rows.column("verdict")) - set(VERDICTS):
        path = origins[rows.column("verdict").index(verdict)]
        raise BadInput(f"{path!r} has a verdict {verdict!r}; there are {', '.join(VERDICTS)}")
    try:
        results = reading.as_records(rows)
        held = {name: rows.column(name, default) for name, default in _UNDEFINED.items()}
        described = drift.report(results, columns or (), metadata, held={**held, "file": origins})
    except (ValueError, ArithmeticError, TypeError) as error:  # by hand a file can be given any values
        raise BadInput(f"{', '.join(paths)}: values that no audit gives: {error}") from None
    more = [name for name in told if name not in described.columns]
    repeated = sum(len(source.rows) for source in sources) - len(rows)
    notes = [f"{repeated} rows stand in these files more than once and count once."] if repeated else []
    return replace(
        described,
        columns=described.columns if columns else [*described.columns, *more],
        screen=[*(["file"] if len(paths) > 1 and not columns else []), *described.screen],
        notes=[*notes, *described.notes],
        metadata={
            **described.metadata,
            "sources": [
                {"file": source.path, "rows": len(source.rows), **run_metadata_of(source.about)}
                for source in sources
            ],
        },
        declared={**described.declared, "file": _FILE},
    )


def run_metadata_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata about the run of a report, if they have the right types."""
    kinds = {"command": str, "time": str, "environment": dict, "stages": dict}
    return {name: about[name] for name, kind in kinds.items() if isinstance(about.get(name), kind)}
