"""How far positions may be shifted, for people: the rows and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.limit import sentences
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.reports import Report, settings

SCHEMA = 2
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "subject": records.COLUMNS["subject"],
    "dtype": records.COLUMNS["dtype"],
    **settings.COLUMNS,
    "length": "positions that the frequencies stand for at offset 0 (longrope: the border, or one more); "
    "nan without",
    "frequencies": "unshifted: those of offset 0 at every offset, though a longer sequence would have "
    "others; shifted: each offset has those of its own length; fixed: no offset looked at changes them",
    "maximum": "positions that the model is made for; nan where nothing says it",
    "margin": "positions up to which no failure was seen, proved or measured, divided by maximum; nan "
    "without a maximum, with unshifted frequencies, for a longer sequence, or if offset 0 fails",
    "proved_margin": "the same of the positions up to which it is proved",
    "tolerance_column": "column of a record that the tolerance speaks of",
    "tolerance": "largest |value| that is accepted; of distinct_positions the smallest",
    "up_to": "largest offset that was looked at; the smallest is 0",
    "proved_up_to": "no offset from 0 to it fails: proved by the bound, or each measured; nan if 0 fails",
    "proof": "of proved_up_to: bound: by the a-priori bound alone; exhaustive: every offset that the bound "
    "leaves open was measured; none: offset 0 fails",
    "bound_up_to": "largest offset up to which the a-priori bound proves the tolerance; nan if nowhere",
    "measured_up_to": "largest measured offset below the first failure seen; others below it may fail; "
    "nan if offset 0 does",
    "measured_offsets": "how many offsets were measured from 0 to measured_up_to; none of them fails",
    "first_failure_seen": "smallest offset that was measured to fail; nan if none was",
    "first_failure": "the same where every smaller offset is proved; nan where a smaller one may fail",
    "proved_position": "last position of the sequence at proved_up_to",
    "measured_position": "last position of the sequence at measured_up_to",
    "failure_position": "last position of the sequence at first_failure_seen",
    "value_at_zero": "value of the column at offset 0",
    "value_at_measured": "value of the column at measured_up_to",
    "value_at_failure": "value of the column at first_failure_seen",
    "evaluated": "how many offsets were measured in all, for other tolerances of the same case too",
}
LEGEND = (
    "offsets are looked at from 0 up. proved up to: no offset from 0 to it fails: by an a-priori bound, or\n"
    "because every offset was measured that the bound leaves open (exhaustive). measured up to: the largest\n"
    "of `measured offsets` measured ones of which none fails; one neither measured nor proved may fail.\n"
    "first failure seen: the smallest offset measured to fail; first failure: where it is proved to be the\n"
    "first. All of it for these q and k. The last position of a sequence is its offset + seq_len - 1."
)
_MARGIN = "margin: positions up to which no failure was seen / maximum, those that the model is made for."
_SCREEN = (
    "proved_up_to",
    "proof",
    "measured_up_to",
    "measured_offsets",
    "first_failure_seen",
    "first_failure",
    "value_at_failure",
)
_DISPENSABLE = ("first_failure", "proof", "value_at_failure", "measured_offsets", "maximum")


def row(results: Limit) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    zero, column = results.at_zero, results.tolerance.column
    values = {
        "schema": SCHEMA,
        "subject": zero.subject,
        "dtype": zero.dtype,
        **{name: getattr(zero, name) for name in settings.NAMES},
        "frequencies": _frequencies(results),
        "maximum": results.case.maximum,
        "tolerance_column": column,
        "tolerance": results.tolerance.value,
        "measured_offsets": results.boundary.held,
        "proved_position": results.last_position(results.proved_up_to),
        "measured_position": results.last_position(results.measured_up_to),
        "failure_position": results.last_position(results.first_failure_seen),
        "value_at_zero": getattr(zero, column),
        "value_at_measured": _value(results.at_measured, column),
        "value_at_failure": _value(results.at_failure, column),
        "evaluated": results.boundary.tested,
    }
    return {name: values[name] if name in values else getattr(results, name) for name in COLUMNS}


def _value(record: records.Record | None, column: str) -> Any:
    return None if record is None else getattr(record, column)


def _frequencies(results: Limit) -> str:
    if results.frozen:
        return "unshifted"
    return "shifted" if results.changing else "fixed"


def limit_report(
    results: Sequence[Limit], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(one) for one in results]
    varying = settings.varying(rows)
    judged = any(one["margin"] is not None for one in rows)
    known = ["maximum", "margin"] if judged else []
    tolerance = ["tolerance_column", "tolerance"]
    screen = ["subject", "dtype", *varying, *known, *tolerance, *_SCREEN]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or screen),
        dispensable=() if columns else _DISPENSABLE,
        headline=sentences.headline(results),
        notes=sentences.notes(results),
        legend=f"{LEGEND}\n{_MARGIN}" if judged else LEGEND,
        metadata={"schema": SCHEMA, **metadata},
    )
