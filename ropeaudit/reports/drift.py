"""What is said of an audit's records: the finding, the columns to show, the notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropeaudit.audits import judging, records
from ropeaudit.audits.identity import moved_apart
from ropeaudit.audits.records import Record
from ropeaudit.inputs import masks
from ropeaudit.reports import Report, Row, headlines, settings, tabulated, verdicts
from ropeaudit.reports.numbers import percent, short

if TYPE_CHECKING:
    from ropeaudit.runtime.columns import Column

# what a table says beneath it, of the columns that it shows
_LEGENDS = {
    "drift_": "drift: score at the offset minus the exact score; scaled, before softmax.",
    "change_": "change: score at the offset minus the same implementation's score at offset 0.",
    "excess": "excess: drift ÷ best achievable in this dtype.",
    "rotation_excess": "rotation excess: rotation error ÷ allowed; above 1 a pair is rotated wrongly.",
    "drift_rms_low": "Sampled: scores are drawn by |q|²|k|² and a third of them evenly, and weighted (all "
    "evenly where tokens are alike, or gaussian of over 2^28 numbers). Low and high: 95 % interval of "
    "drift rms over "
    "all scores; the largest drift is a lower bound. A fault at one position of thousands is likely missed.",
    "attention_tv": "After softmax: attention tv: share of a row's weight that drift moves.",
    "top1_flips": "top1 flips: rows whose largest weight moves to another key.",
    "entropy": "entropy: of the weights of a row, in nats.",
    "attention_d": "attention d: against the anchor's offset.",
}


def report(
    results: Sequence[Record],
    columns: Sequence[str],
    metadata: Mapping[str, Any],
    header: bool = True,
    frozen: bool = True,
    extra_notes: Sequence[str] = (),
    needed: Sequence[str] = (),
) -> Report:
    """Return the report of some records; `columns` chooses and orders what is shown and written.

    frozen: whether frequencies that depend on the length were kept at every offset. extra_notes: notes on the
    subjects, which come first. needed: columns that are written too, with their groups.
    """
    chosen = columns
    rows = [record.as_dict() for record in results]
    measured = any(record.attention_tv_mean is not None for record in results)
    subject, dtype, *others = _screen(results, rows)
    columns, named = records.written(results, columns, needed)
    screen = settings.screen(rows, [subject, dtype], others)
    telling = headlines.differing(results)
    notes = [*extra_notes, *verdicts.notes(results, telling)]
    notes += headlines.growth_notes(results) + headlines.format_notes(results)
    notes += headlines.structure_notes(results, frozen) + headlines.device_notes(results)
    notes += headlines.grid_notes(results) + headlines.rerotation_notes(results)
    notes += _temperature(_worst(results)) if measured else []
    return replace(
        tabulated(records.COLUMNS, records.SCHEMA, rows, screen, None, {}),
        columns=columns,
        metadata={
            "schema": records.SCHEMA,
            **(records.beside(results, columns) if metadata else {}),
            **metadata,
        },
        screen=columns if chosen else screen,
        declared=_declared(named),
        headline=headline(results),
        notes=notes,
        legend=legend(columns if chosen else screen, rows),
        header=header,
        refusals=_refusals(results),
        dispensable=() if chosen else settings.dispensable(screen, records.COLUMNS.dispensable, "excess"),
        constant=(subject, dtype, "offset") if "model" in screen else (),
    )


def _screen(results: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """Return the columns to show; the axes of a grid where `offset` does not say how they moved."""
    apart = any(map(moved_apart, results))
    return [n for n in records.COLUMNS.screen(rows) if apart or n not in ("offset_t", "offset_h", "offset_w")]


def legend(screen: Sequence[str], rows: Sequence[Row]) -> str:
    """Return how to read a table: a line for each of its columns that needs one, and for each verdict."""
    lines = [text for begin, text in _LEGENDS.items() if any(name.startswith(begin) for name in screen)]
    seen = {row["verdict"] for row in rows} if "verdict" in screen else set()
    words = [f"{verdicts.words(name)}: {text}." for name, text in judging.VERDICTS.items() if name in seen]
    return "\n".join([*lines, *words])


def _declared(named: Sequence[str]) -> Mapping[str, Column]:
    """Return what is known of the columns; a sentence that was asked for by name is in CSV too."""
    wanted = {
        name: replace(records.COLUMNS[name], sentence=False) for name in named if name in records.COLUMNS
    }
    return {**records.COLUMNS, **wanted}


def _refusals(results: Sequence[Record]) -> list[str]:
    """Return why rows were refused, each reason of a subject once."""
    reasons: dict[tuple[str, str], int] = {}
    for record in results:
        if record.verdict == "refused":
            key = record.implementation, record.why
            reasons[key] = reasons.get(key, 0) + 1
    return [
        f"refused: {subject}, {count} row{'s' * (count > 1)}: {reason}"
        for (subject, reason), count in reasons.items()
    ]


def headline(results: Sequence[Record]) -> str:
    """Return the result in a sentence: the worst case, how many are like it, and what others do there."""
    if not results:
        return "No case was audited."
    worst = _worst(results)
    text = headlines.headline(results, worst) + _estimated(worst)
    return f"{text[:-1]}; {_clause(worst)}." if _moved(worst) is not None else text


def _worst(results: Sequence[Record]) -> Record:
    """Return the row that the headline is about: of those of the worst quality the one that drifts most."""

    def key(record: Record) -> tuple[int, int, float]:
        row = verdicts.columns(record)
        rank, size = verdicts.severity(row)
        return (
            rank if rank > 1 else min(rank, 0),
            {"no": 2, "undecided": 1}.get(verdicts.quality(row), 0),
            judging.ratio(record.nonfinite, record.scores) if record.nonfinite else size,
        )

    return max(results, key=key)


def _moved(record: Record) -> float | None:
    """The mean share of a row's weight that drift moves, None where it was not measured or is undefined."""
    mean = record.attention_tv_mean
    return None if mean is None or math.isnan(mean) else mean


def _clause(record: Record) -> str:
    """Say what drift does after softmax."""
    moved = f"after softmax {percent(_moved(record) or 0.0)} of the weight moves and"
    if record.right_token is not None:
        return f"{moved} {percent(record.right_token)} of the rows attend to the token they were made for"
    flips, rows = int(record.top1_flips or 0), record.heads * record.seq_len
    return f"{moved} {flips} of {rows} top-1 keys change"


def _temperature(record: Record) -> list[str]:
    """Say whether an adaptive temperature undoes or amplifies what drift moves."""
    plain, adaptive = _moved(record), record.attention_adaptive_tv_mean
    if not plain or adaptive is None:
        return []
    times = adaptive / plain
    where = f"{verdicts.who(record)}: an adaptive temperature"
    if 0.95 <= times <= 1.05:
        return [f"{where} (arXiv 2410.01104) neither undoes nor amplifies what drift moves."]
    does = "amplifies" if times > 1 else "undoes part of"
    return [
        f"{where} (arXiv 2410.01104) {does} what drift moves: {percent(adaptive)} of the weight instead of "
        f"{percent(plain)}."
    ]


def _estimated(record: Record) -> str:
    """Say of how many scores a sample stands for all, and within which interval."""
    if not record.sample:
        return ""
    every = masks.count(record.mask, record.seq_len) * record.heads
    message = f" Estimated from {record.scores} of {every} scores"
    if record.drift_rms_low is None or math.isnan(record.drift_rms_low):
        return f"{message}."
    return f"{message} (95 %: {short(record.drift_rms_low)} to {short(record.drift_rms_high)})."
