"""Reports read back for people: in groups, or as one with all rows and what each file says of its making."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit import reports
from ropeaudit.audits import records
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.audits.records import Record
from ropeaudit.errors import BadInput
from ropeaudit.features.report import analysis
from ropeaudit.features.report.analysis import Group
from ropeaudit.reports import Report, Row, comparison, drift, reading, settings
from ropeaudit.reports.numbers import setting, short
from ropeaudit.reports.verdicts import badness, case_name, quality
from ropeaudit.runtime.columns import Column, Declare, Together

SCHEMA = 2  # 2: out_of_tolerance, and the verdicts of schema 3 of an audit
_NEEDED = ("dtype", "drift_rms", "verdict")
_FILE: Column[Row] = Column("file", str, "the report that the row is from")
_MERGED: Mapping[str, Column[Any]] = {**records.COLUMNS, "file": _FILE}
of = Declare[Group]()


def _verdicts(group: Group) -> str:
    counts = group.verdicts
    names = [name for name in VERDICTS if counts[name]]
    return ", ".join(f"{counts[name]} {name}" for name in reversed(names))


class SummaryColumns:
    """The columns of `ropeaudit report --by`, beside those that the rows are grouped by."""

    cases: int = of("how many rows the group has", lambda group: len(group.rows), shown=True)
    undefined: int = of(
        "how many of them have no value in the column: nan, refused",
        lambda group: len(group.rows) - len(group.values),
    )
    column: str = of("the column that is summarised")
    worst: float | None = of(
        "its worst value: nan before all, then the largest |value|; the smallest of distinct_positions",
        lambda group: group.worst[group.column] if group.worst else None,
        shown=True,
        shown_after="out_of_tolerance",
    )
    median: float = of(
        "its median over the rows that have a value", shown=True, shown_after="worst", leaves=1
    )
    worst_at: str = of(
        "implementation, dtype and offset of the worst row, with the settings that differ within the group",
        lambda group: _place(group) if group.worst else "none",
        shown=True,
        shown_after="median",
    )
    out_of_tolerance: int | None = of(
        "how many rows are not good enough: within_tolerance is no",
        lambda group: _out_of_tolerance(group.rows),
        shown=True,
    )
    verdicts: str = of("how many rows have which verdict", _verdicts, shown=True, leaves=2)
    by_verdict = Together[Group](
        [
            Column(f"{verdict}_cases", int, f"how many rows are {verdict}: {text}")
            for verdict, text in VERDICTS.items()
        ],
        lambda group: {f"{verdict}_cases": group.verdicts[verdict] for verdict in VERDICTS},
    )


OWN = of.columns(SummaryColumns)
# whatever the rows are grouped by
SUMMARY: Mapping[str, Column[Any]] = {**records.COLUMNS, **OWN}
# what is made of the files -> the columns of its rows
COLUMNS = {"merged": _MERGED, "by": SUMMARY, "against": comparison.COLUMNS}


def _out_of_tolerance(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many rows are not good enough; None where no row says whether it is."""
    known = [quality(one) for one in rows]
    return known.count("no") if any(known) else None


def report(
    results: Sequence[Group],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> Report:
    """Return a line per group; `columns` chooses and orders what is shown and written.

    names: what the rows are grouped by; None for those of the groups, of which there must then be one.
    """
    by = list(results[0].names if names is None else names)
    rows = [{"schema": SCHEMA, **group.names, **OWN.row(group)} for group in results]
    known = list(rows[0]) if rows else ["schema", *by, *OWN]
    return Report(
        rows=rows,
        columns=list(columns or known),
        screen=list(columns or [*by, *OWN.screen(results)]),
        dispensable=() if columns else OWN.dispensable,
        headline=headline(results),
        legend=legend(results),
        metadata={"schema": SCHEMA, "by": by, **metadata},
        declared=SUMMARY,
    )


def worst(
    results: Sequence[Group],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    names: Sequence[str],
) -> Report:
    """Return the worst row of each group, with the columns of a record that the files have; see `report`."""
    whole = [group.worst for group in results if group.worst]
    known = reading.told(whole)
    rows = [{name: one.get(name) for name in (*known, *(columns or ()))} for one in whole]
    column = [group.column for group in results[:1]]
    first = list(dict.fromkeys([*names, "implementation", "dtype", "offset", *settings.independent(rows)]))
    return Report(
        rows=rows,
        columns=list(columns or known),
        screen=list(columns or [name for name in (*first, *column, "verdict") if name in known]),
        headline=headline(results),
        legend=legend(results),
        metadata={"schema": records.SCHEMA, "by": list(names), **metadata},
        declared=records.COLUMNS,
    )


def headline(results: Sequence[Group]) -> str:
    """Return the finding in a sentence: cases that lost their scores, and the worst of the others."""
    cases = sum(len(group.rows) for group in results)
    message = [f"{cases} cases in {len(results)} group{'' if len(results) == 1 else 's'}"]
    column = results[0].column if results else ""
    rows = [row for group in results for row in group.rows if row.get("verdict") != "refused"]
    nonfinite = [row for row in rows if badness(row, column) == math.inf]
    if nonfinite:
        verb = "has" if len(nonfinite) == 1 else "have"
        message.append(f"{len(nonfinite)} {verb} no {column} (nan), first {case_name(nonfinite[0])}")
    if left := [row for row in rows if badness(row, column) < math.inf]:
        worst = max(left, key=lambda row: badness(row, column))
        others = " of the others" if nonfinite else ""
        message.append(f"the worst {column}{others} is {short(worst[column])}, of {case_name(worst)}")
    return f"{'; '.join(message)}."


def _place(group: Group) -> str:
    worst, by = group.worst or {}, group.names
    names = [name for name in ("model", "implementation", "dtype") if name in worst and name not in by]
    words = [str(worst[name]) for name in names if worst[name] != "none"]
    several = [name for name in settings.independent(group.rows) if name not in (*by, *names)]
    words += [f"{name}={setting(worst.get(name))}" for name in several]
    return " ".join([*words, f"at offset {worst['offset']}"] if "offset" not in by else words) or "there"


def legend(results: Sequence[Group]) -> str:
    """Return which column was summarised, and its meaning."""
    if not results:
        return ""
    column = results[0].column
    return f"worst, median: of {column}: {records.COLUMNS[column].meaning}."


def merged(
    files: Sequence[str], columns: Sequence[str] | None, metadata: Mapping[str, Any], data: bool = False
) -> Report:
    """Return the report of all rows of these files, in their order; those that say all the same count once.

    Its metadata are those of merging, and under "sources" those that each file carries. data: whether a
    program reads what is written, where nothing says which file a row is from: rows of several files must
    then be whole, of this schema, and of different cells.
    Raises: BadInput, UnknownName.
    """
    paths = list(dict.fromkeys(files))
    pairs, counts = analysis.rows_of(paths)
    told = reading.told([row for _, row in pairs])
    if data and len(paths) > 1:
        pairs = [(path, record.as_dict()) for path, record in analysis.whole(pairs)]
    rows = [_filled(path, row) for path, row in pairs]
    described = _described(paths, rows, columns or (), metadata)
    more = [name for name in told if name not in described.columns]
    repeated = counts.total() - len(rows)
    notes = [f"{repeated} rows stand in these files more than once and count once."] if repeated else []
    return replace(
        described,
        rows=rows,
        columns=described.columns if columns else [*described.columns, *more],
        screen=[*(["file"] if len(paths) > 1 and not columns else []), *described.screen],
        notes=[*notes, *described.notes],
        metadata={
            **described.metadata,
            "sources": [{"file": path, "rows": counts[path], **carried(path)} for path in paths],
        },
        declared={**described.declared, "file": _FILE},
    )


def _filled(path: str, row: Row) -> Row:
    """Return a row with every column, and its file. Raises: BadInput for one that no page can show."""
    for name in _NEEDED:
        if name not in row:
            raise BadInput(f"{path!r} has no column {name}; write it again without --columns")
    if row["verdict"] not in VERDICTS:
        known = ", ".join(VERDICTS)
        raise BadInput(f"{path!r} has a verdict {row['verdict']!r}; there are {known}")
    return {name: row.get(name, column.undefined) for name, column in records.COLUMNS.items()} | {
        "file": path
    }


def _described(
    paths: Sequence[str], rows: Sequence[Row], columns: Sequence[str], about: Mapping[str, Any]
) -> Report:
    """Return what is said of the rows; by hand a file can be given values that nothing can be said of."""
    try:
        results = [reading.record(row) for row in rows]
        return drift.report(results, columns, about, frozen=_frozen(results))
    except (ValueError, ArithmeticError, TypeError) as error:
        raise BadInput(f"{', '.join(paths)}: values that no audit gives: {error}") from None


def _frozen(rows: Sequence[Record]) -> bool:
    """Return whether frequencies stand for one number of positions, whatever the offset."""
    lengths: dict[tuple[str, int], set[int | None]] = {}
    for row in rows:
        lengths.setdefault((row.scaling, row.seq_len), set()).add(row.length)
    several = len({row.offset for row in rows}) > 1
    return several and all(len(some) == 1 for some in lengths.values())


def carried(path: str) -> dict[str, Any]:
    """Return the command, time, environment and stages that a report carries; "lacking" says why none."""
    form = reports.form_named(reading.form_of(path))
    if form.metadata == "nowhere":
        return {
            "lacking": f"{form.title} carries no command and no environment; JSON does, and CSV beside it."
        }
    holder = reports.beside(path) if form.metadata == "beside" else path
    try:
        whole = reading.metadata(path)
    except FileNotFoundError:
        return {"lacking": f"The command and the environment would stand in {holder}, which is not there."}
    except (OSError, ValueError, RecursionError):
        return {"lacking": f"The command and the environment would stand in {holder}, which cannot be read."}
    return _known(whole) or {"lacking": f"{holder} holds no command and no environment."}


def _known(whole: Any) -> dict[str, Any]:
    """What is known of the making of a report, in the shape that it must have: anything else is left out."""
    if not isinstance(whole, dict):
        return {}
    results: dict[str, Any] = {
        name: whole[name] for name in ("command", "time") if isinstance(whole.get(name), str)
    }
    environment, stages = whole.get("environment"), whole.get("stages")
    if isinstance(environment, dict):
        results["environment"] = {name: str(value) for name, value in environment.items()}
    if isinstance(stages, dict):
        results["stages"] = {
            subject: {stage: str(fmt) for stage, fmt in formats.items()}
            for subject, formats in stages.items()
            if isinstance(formats, dict)
        }
    return results
