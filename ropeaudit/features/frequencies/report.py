"""Frequencies for people: the rows of all settings, and the diagnosis of a dumped table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import records
from ropeaudit.errors import UnknownName
from ropeaudit.features.frequencies import analysis
from ropeaudit.features.frequencies.analysis import FrequencyTable
from ropeaudit.features.frequencies.comparison import TableCheck
from ropeaudit.features.frequencies.shared import first_shared_position
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import short

_LEGEND = (
    "shared FORMAT: first position whose exact angle, rounded to FORMAT, is the next position's too."
    "\nwavelength in tokens, angle at the maximum position in radians."
)
_CHECK_LEGEND = "Errors in {}; off: beyond what float32 arithmetic accounts for."


def frequencies_report(
    tables: Sequence[FrequencyTable], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written. Raises: UnknownName."""
    rows = [row for table in tables for row in table.rows]
    formats = tables[0].formats if tables else []
    known = list(rows[0]) if rows else list(analysis.COLUMNS)
    _check_columns(columns, known)
    hidden = {"maximum", *(name for name in known if name.startswith("shared_position_"))}
    return Report(
        rows,
        columns or known,
        columns or _screen(rows, known, hidden),
        () if columns else [*(f"shared_{fmt.short}" for fmt in formats), "angle_at_maximum"],
        headline=analysis.headline(rows, formats),
        notes=[f"{table.label}: no pair is rotated" for table in tables if not table.setting.pairs],
        legend=_legend(formats),
        metadata=metadata,
    )


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


def _legend(formats: Sequence[Format]) -> str:
    merged = ", ".join(f"{first_shared_position(fmt)} in {fmt.short}" for fmt in formats)
    return f"{_LEGEND}\nPositions themselves are first merged with the next one at {merged}."


def _line(one: Hypothesis) -> str:
    left = f"leaves {short(one.residual)} RMS, {short(one.residual_max)} at most"
    count = len(one.strays)
    few = f"explains all but {count} pair{'s' if count > 1 else ''}" if one.few else "does not explain it"
    return f"{one.text} ({'explains every pair' if one.explains else few}; {left})"
