"""The ticket of rows of `shift`: the one that is worst out of tolerance, with a snippet of its subject."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.records import Record
from ropeaudit.recipes import Recipe
from ropeaudit.reports import Report, verdicts
from ropeaudit.reports.numbers import percent, printable, short
from ropeaudit.reports.tickets import of_subject
from ropeaudit.reports.tickets.inputs import Setup
from ropeaudit.reports.tickets.reproduction import NoSnippet, Reproduction, Snippet
from ropeaudit.reports.tickets.shortening import fitted
from ropeaudit.reports.tickets.ticket import Ticket, reproduction
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.factories import SubjectFactory

_WHY = (
    "RoPE makes a score depend on q, k and their distance alone, so that adding an integer to every position "
    "changes nothing. The exact scores are computed from q, k and the distance; their own error is at most "
    "{error}."
)


_MISPLACED = "the scores of one sequence do not show it, and a snippet prints nothing else"


def worst(results: Sequence[Record]) -> Record | None:
    """Return the row that a ticket is about: out of tolerance, and the furthest of those that are finite."""
    bad = [one for one in results if one.within_tolerance == "no" and one.verdict != "refused"]
    return max(bad, key=_size, default=None)


def _size(record: Record) -> tuple[bool, float]:
    finite = math.isfinite(record.drift_relative)
    return finite, record.drift_relative if finite else record.nonfinite


def _drifts(record: Record) -> bool:
    """Return whether the drift of a row is out of its tolerance; else its rotated pairs alone are off."""
    return not record.drift_relative <= record.tolerance


def ticket(
    results: Sequence[Record],
    factories: Sequence[SubjectFactory],
    report: Report,
    command: str,
    record: Record | None = None,
) -> Ticket | None:
    """Return the ticket of an audit; None where every row is within tolerance. Runs the snippet.

    factories: of the subjects of the rows. record: the row that it is about, by default the worst of those
    out of tolerance.
    """
    of_drift, record = record is not None, record or worst(results)
    if record is None:
        return None
    setting = setting_of(record)
    wanted = record.implementation, record.dtype, record.environment or "none"
    factory = next(one for one in factories if (one.name, one.dtype.name, one.environment) == wanted)
    subject = factory.make(setting, None) if record.axes == "none" else None
    return Ticket(
        f"RoPE in {record.dtype} ({_name(subject, record.implementation)}{_under(record)}) {_short(record)}",
        f"{seen(record)}\n\n{_how(subject, record)}",
        expected(record),
        reproduction(lambda inline: snippet(record, setting, subject, inline))
        if of_drift or _drifts(record)
        else Reproduction(None, missing=_MISPLACED),
        report,
        command,
    )


def setting_of(record: Record) -> RopeSetting:
    """Return the RoPE setting of a row."""
    return RopeSetting(
        record.head_dim,
        record.rotary_dim,
        record.base,
        "half" if record.layout == "half" else "interleaved",
        record.scale,
        scalings.parse(record.scaling),
        record.length or 0,
        math.inf if record.clip is None or math.isnan(record.clip) else record.clip,
    )


def expected(record: Record) -> str:
    """Return what is right, and why, with what careful code in the dtype attains."""
    near = record.attainable_rms / record.reference_rms if record.reference_rms else math.nan
    careful = (
        f" Careful code in {record.dtype} drifts by {short(record.attainable_rms)} RMS near offset 0 at "
        f"{record.seq_len} tokens, {percent(near)} of the scores' RMS, by prediction"
    )
    measured = (
        f"; {short(record.drift_rms)} RMS was measured, {percent(record.drift_relative)}."
        if math.isfinite(record.drift_rms)
        else f"; {record.nonfinite} of {record.scores} scores are nan or infinite."
    )
    return _WHY.format(error=short(record.reference_error)) + careful + measured


def snippet(record: Record, setting: RopeSetting, subject: Subject | None, inline: bool = True) -> Snippet:
    """Return code that prints drift_rms of a row. Raises: NoSnippet."""
    if record.nonfinite:
        raise NoSnippet("its scores are nan or infinite")
    setup = replace(Setup.of(record, setting), inline=inline)
    imports, lines, scores, path = of_subject.called(setup, subject)
    head = ["import torch", *imports, *setup.begin(), setup.exact(), *lines]
    where = f"{record.implementation}{_under(record)} in {record.dtype} at offset {record.offset}"
    return Snippet(fitted([*head, *setup.end(scores)]), "drift_rms", record.drift_rms, where, path)


def _name(subject: Subject | None, name: str) -> str:
    return f"recipe {name}" if getattr(subject, "recipe", None) is not None else name


def _under(record: Record) -> str:
    return "".join(f" {word}" for word in verdicts.under(record.environment))


def _short(record: Record) -> str:
    if record.nonfinite:
        return f"gives attention scores that are nan or infinite at offset {record.offset}"
    if record.verdict == "wrong_rotation" and not _drifts(record):
        return f"rotates {_pair(record)} to a wrong place"
    share = percent(record.drift_relative)
    return f"is off by {share} of the attention scores' RMS at offset {record.offset}"


def _pair(record: Record) -> str:
    """Return which rotated pair is furthest from its place."""
    return (
        f"{record.rotation_side}, batch element {record.rotation_batch}, head {record.rotation_head}, "
        f"position {record.rotation_position}"
    )


def seen(record: Record) -> str:
    """Return what is wrong: how far, at which positions, and what it behaves like."""
    first, last = record.offset, record.offset + record.seq_len - 1
    if record.nonfinite:
        off = f"{record.nonfinite} of {record.scores} attention scores are nan or infinite"
    else:
        share = f"{percent(record.drift_relative)} of their own RMS"
        off = f"attention scores are off by {short(record.drift_rms)} RMS, {share}"
        off += f" ({short(record.floor_rms)} RMS at positions 0 to {record.seq_len - 1})" if first else ""
    model = "" if record.model in ("none", "unknown") else f" with the RoPE setting of {record.model}"
    given = f"{record.dtype}{_under(record)}"
    sentences = [f"With q and k in {given} at positions {first} to {last}{model}, {off}."]
    if record.verdict == "wrong_rotation" and not _drifts(record):
        excess = short(record.rotation_excess or 0.0)
        sentences = [
            f"With q and k in {given} at positions {first} to {last}{model}, {_pair(record)}, is not "
            f"rotated to its place: its error is {excess}× the rounding allowance."
        ]
    elif first:
        sentences.append(f"They should not change when {first} is added to every position.")
    if record.distinct_positions < record.seq_len:
        distinct = f"{record.distinct_positions} of the {record.seq_len}"
        verb = "is" if record.distinct_positions == 1 else "are"
        sentences.append(f"Only {distinct} positions {verb} still rotated differently.")
    if record.resembles:
        sentences.append(f"It behaves like: {record.resembles}.")
    return printable(" ".join(sentences))


def _how(subject: Subject | None, record: Record) -> str:
    """Return what was executed: the code itself, or its number formats."""
    recipe = getattr(subject, "recipe", None)
    if recipe is None:
        version = "" if record.version == "none" else f", version {record.version}"
        where = "" if record.device == "cpu" else f", on {record.device}"
        return (
            f"The code itself was called ({record.implementation}{version}){where}; scores were formed "
            f"from it "
            "in float64."
        )
    named: Recipe = recipe.recipe
    return (
        "What was executed is not the code but its arithmetic, each stage rounded to the number format that "
        f"it has there: {record.implementation}, {named.summary or 'a recipe'} (source: "
        f"{named.source or 'none'})."
    )
