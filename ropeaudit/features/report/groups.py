"""Many rows of reports in groups: how many, their verdicts, the worst and the median of a column."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.reports import Report, Row, reading, settings
from ropeaudit.reports.numbers import setting, short
from ropeaudit.reports.verdicts import badness, case_name, number, quality
from ropeaudit.runtime.columns import Column, Declare, Together

SCHEMA = 2  # 2: out_of_tolerance, and the verdicts of schema 3 of an audit
BY = ("implementation", "dtype")
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
    return [
        Group({name: some[0][name] for name in by}, column, some, _worst(some, column))
        for some in stored.values()
    ]


def _worst(rows: Sequence[Row], column: str) -> Row | None:
    seen = [row for row in rows if row.get("verdict") != "refused"]
    return max(seen, key=lambda row: badness(row, column), default=None)


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
COLUMNS: Mapping[str, Column[Any]] = {**records.COLUMNS, **OWN}


def _out_of_tolerance(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many rows are not good enough; None where no row says whether it is."""
    known = [quality(one) for one in rows]
    return known.count("no") if any(known) else None


def summary_report(
    results: Sequence[Group], by: Sequence[str], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return a line per group; `columns` chooses and orders what is shown and written."""
    rows = [{"schema": SCHEMA, **group.names, **OWN.row(group)} for group in results]
    known = list(rows[0]) if rows else ["schema", *by, *OWN]
    return Report(
        rows=rows,
        columns=list(columns or known),
        screen=list(columns or [*by, *OWN.screen(results)]),
        dispensable=() if columns else OWN.dispensable,
        headline=headline(results),
        legend=_legend(results),
        metadata={"schema": SCHEMA, "by": list(by), **metadata},
        declared=COLUMNS,
    )


def worst_report(
    results: Sequence[Group], by: Sequence[str], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the worst row of each group, with the columns of a record that the files have."""
    whole = [group.worst for group in results if group.worst]
    known = reading.told(whole)
    rows = [{name: one.get(name) for name in (*known, *(columns or ()))} for one in whole]
    column = [group.column for group in results[:1]]
    first = list(dict.fromkeys([*by, "implementation", "dtype", "offset", *settings.independent(rows)]))
    return Report(
        rows=rows,
        columns=list(columns or known),
        screen=list(columns or [name for name in (*first, *column, "verdict") if name in known]),
        headline=headline(results),
        legend=_legend(results),
        metadata={"schema": records.SCHEMA, "by": list(by), **metadata},
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


def _legend(results: Sequence[Group]) -> str:
    if not results:
        return ""
    column = results[0].column
    return f"worst, median: of {column}: {records.COLUMNS[column].meaning}."
