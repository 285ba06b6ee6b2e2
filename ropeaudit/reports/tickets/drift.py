"""The ticket of rows of code: the one that is worst out of tolerance, as the report says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.records import Record
from ropeaudit.reports import Report, drift, verdicts
from ropeaudit.reports.numbers import percent, short
from ropeaudit.reports.tickets import calls
from ropeaudit.reports.tickets.reproduction import Reproduction
from ropeaudit.reports.tickets.ticket import Ticket, by_code, file_name, reproduction
from ropeaudit.subjects.factories import SubjectFactory


def worst(results: Sequence[Record]) -> Record | None:
    """Return the row of code that is out of tolerance, and the furthest of those that are finite."""

    def size(record: Record) -> tuple[bool, float]:
        finite = math.isfinite(record.drift_relative)
        return finite, record.drift_relative if finite else record.nonfinite

    bad = [one for one in results if one.within_tolerance == "no" and one.verdict != "refused"]
    return max((one for one in bad if one.environment is not None), key=size, default=None)


def ticket(record: Record, report: Report, factories: Sequence[SubjectFactory]) -> Ticket:
    """Return the ticket of a row of a report. Runs the snippet. factories: of the subjects of the rows."""
    single = drift.report([record], (), {})
    where = "" if record.device == "cpu" else f" on {record.device}"
    called = f"The code itself was called{where}; scores were formed from it in float64."
    said = replace(
        report,
        rows=[row for row in report.rows if row["implementation"] == record.implementation],
        headline=single.headline,
        notes=[*single.notes, called],
    )
    facts = {name: getattr(record, name) for name in single.columns}
    return Ticket(f"RoPE of {_title(record)}", said, facts, _expected(record), snippet_of(record, factories))


def snippet_of(record: Record, factories: Sequence[SubjectFactory]) -> Reproduction:
    """Return a snippet of a row that was run, or why there is none."""
    if record.within_tolerance == "no" and record.drift_relative <= record.tolerance:
        missing = (
            "the scores of one sequence do not show it, and a snippet prints nothing else: their drift, "
            f"{percent(record.drift_relative)}, is within {percent(record.tolerance)}"
        )
        return Reproduction(None, missing=missing)
    wanted = record.implementation, record.dtype, record.environment
    factory = next(one for one in factories if (one.name, one.dtype.name, one.environment) == wanted)
    subject = factory.make(record.setting, None) if record.axes == "none" else None
    return reproduction(lambda: calls.snippet(record, subject))


def _title(record: Record) -> str:
    """Return the row, its verdict, its drift and the code of its diagnosis."""
    name = " ".join([file_name(record.implementation), *verdicts.under(record.environment)])
    off = f"drift {percent(record.drift_relative)} of the scores' RMS"
    if record.nonfinite:
        off = f"{record.nonfinite} of {record.scores} scores nan or infinite"
    row = f"{name} in {record.dtype} at offset {record.offset}"
    return f"{row}: {verdicts.words(record.verdict)}, {off}{by_code(record.diagnosis)}"


def _expected(record: Record) -> str:
    """Return what is right, and why, with what careful code in the dtype attains."""
    near = record.attainable_rms / record.reference_rms if record.reference_rms else math.nan
    return (
        "RoPE makes a score depend on q, k and their distance alone, so that adding an integer to every "
        "position changes nothing. The exact scores are computed from q, k and the distance; their own error "
        f"is at most {short(record.reference_error)}. Tolerated is a drift of {percent(record.tolerance)} of "
        f"their RMS. Careful code in {record.dtype} drifts by {short(record.attainable_rms)} RMS near offset "
        f"0 at {record.seq_len} tokens, {percent(near)} of the scores' RMS, by prediction."
    )
