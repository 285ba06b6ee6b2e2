"""The diagnosis of a dumped table, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ropeaudit.audits import records
from ropeaudit.errors import UnknownName
from ropeaudit.features.list.comparison import TableCheck
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import short

_CHECK_LEGEND = "Errors in {}; off: beyond what float32 arithmetic accounts for."


def check_report(check: TableCheck, columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report of a dumped table; `columns` as above. Raises: UnknownName."""
    diagnosis = check.diagnosis
    known = list(diagnosis.rows[0])
    _check_columns(columns, known)
    notes = [f"hypothesis {n}: {_line(one)}" for n, one in enumerate(diagnosis.hypotheses, 1)]
    if check.settings > 1:
        notes.insert(0, f"compared with {check.label}, which fits best of {check.settings} settings")
    about = {"agrees": diagnosis.agrees, "hypotheses": [asdict(one) for one in diagnosis.hypotheses]}
    return Report(
        diagnosis.rows,
        columns or known,
        columns or _screen(diagnosis.rows, known, {"setting", "tolerance"}),
        headline=diagnosis.headline,
        notes=notes,
        legend=_CHECK_LEGEND.format("radians" if "largest_error" in known else "relative terms"),
        metadata={**metadata, **about},
        declared={"tolerance": records.COLUMNS["tolerance"]},  # shown as it was given
    )


def _check_columns(columns: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raise UnknownName for a column that these rows do not have."""
    for name in columns or ():
        if name not in known:
            raise UnknownName("column", name, known)


def _screen(rows: Sequence[Mapping[str, Any]], known: Sequence[str], hidden: set[str]) -> list[str]:
    """Return the columns that a reader sees; the setting, where there are several."""
    several = len({row["setting"] for row in rows}) > 1
    return [name for name in known if name not in hidden and (name != "setting" or several)]


def _line(one: Hypothesis) -> str:
    left = f"leaves {short(one.residual)} RMS, {short(one.residual_max)} at most"
    count = len(one.strays)
    few = f"explains all but {count} pair{'s' if count > 1 else ''}" if one.few else "does not explain it"
    return f"{one.text} ({'explains every pair' if one.explains else few}; {left})"
