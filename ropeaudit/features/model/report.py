"""A model at shifted positions for people: whose fault the change is, in words, the rows, the notes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.errors import UnknownName
from ropeaudit.features.model import load
from ropeaudit.features.model.analysis import THRESHOLD, WRONG, ModelAudit, Shifted
from ropeaudit.features.model.columns import COLUMNS, KINDS, SCHEMA, ModelRun
from ropeaudit.features.model.columns import rows as rows_of
from ropeaudit.reports import Report, only
from ropeaudit.reports.numbers import short

_LEGENDS = {
    "summary": "change: logits at the offset minus those at offset 0; structural: the same in the float64 "
    "run, which no\nrounding reaches; precision: the rest. KL and losses in nats. score drift: of q·k after "
    "RoPE, scaled, before\nsoftmax; first layer: the first where some score drifts by more than {threshold}.",
    "layer": "score drift: scores after RoPE at the offset minus those at offset 0, scaled, before softmax.\n"
    "rotation excess: error of the worst rotated pair, beside the exact rotation of config.json, ÷ allowed.",
    "pair": "drift rms: what the pair adds to the change of scores; norms: means of its chunks of q and k.",
}
_REMEDY = {
    "frequencies": "the length switches the frequencies (RoPE scaling)",
    "learned positions": "positions are learned, and each has another vector",
    "position table": "positions are looked up in a table, and each has another vector",
    "mask": "the attention mask knows positions",
    "query scale": "queries are multiplied by a number that depends on their position",
    "other": "something in the model other than frequencies, position vectors and the mask knows positions",
}


def report(
    results: Sequence[ModelAudit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    by: str | None = None,
    shifted: Sequence[Shifted] | None = None,
    threshold: float = THRESHOLD,
) -> Report:
    """Return the report of an audit; JSON holds the other kinds of rows too, but for pairs.

    by: what the rows are, summary by default. shifted: what was measured so far; None runs the audit.
    """
    audit, kind, versions = only(results), by or "summary", load.versions()
    if kind not in KINDS:
        raise UnknownName("--by", kind, KINDS)
    measured = list(audit) if shifted is None else shifted
    runs = [ModelRun(audit, one, threshold, versions) for one in measured]
    rows = {name: [row for run in runs for row in rows_of(run, name)] for name in ("summary", "layer", kind)}
    plural = {"summary": "summary", "layer": "layers"}
    return Report(
        rows=rows[kind],
        columns=list(columns or COLUMNS[kind]),
        screen=list(columns or COLUMNS[kind].screen(rows[kind])) if rows[kind] else [],
        dispensable=() if columns else COLUMNS[kind].dispensable,
        headline=" ".join(filter(None, [fault(audit, rows["summary"]), headline(audit, rows["summary"])])),
        notes=notes(audit, rows["summary"], measured),
        legend=_LEGENDS[kind].format(threshold=short(threshold)),
        metadata={"schema": SCHEMA, **metadata, "versions": versions},
        declared=COLUMNS[kind],
        further={plural[name]: Report(rows[name], list(COLUMNS[name]), []) for name in rows if name != kind},
    )


def fault(audit: ModelAudit, summary: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the model itself, which a shift leaves as it is; empty where nothing is."""
    row = next((row for row in summary if row["verdict"] in WRONG), None)
    if row is None:
        return ""
    if row["verdict"] == "wrong_frequencies":
        what = "loaded frequencies" if "inv_freq" in row["held"] else "loaded tables or factors"
        return f"The {what} are not those of its config: {row['resembles']} ({row['held']}, {row['dtype']})."
    if row["verdict"] == "wrong_rotation":
        return f"Wrong rotation {_where(row)}, {row['resembles']}."
    if row["verdict"] == "wrong_decode":
        apart = audit.decoded.apart if audit.decoded else ""
        return f"Wrong positions in decode, {row['resembles']}; logits {apart}."
    return (
        f"Float32 is not the float64 run: {_where(row)} logits are off by {short(row['error_rms'])} RMS, at "
        f"offset 0 by {short(row['base_error_rms'])}, of {short(row['logits_rms'])}; nothing that is known "
        "explains it."
    )


def headline(audit: ModelAudit, summary: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: precision or structure, and what it does to the text.

    Before it stands decode that is not one pass: why is not known, but none takes that for sound.
    """
    if not summary:
        return "Nothing was run."
    if any(row["verdict"] in WRONG for row in summary):
        return _beside(max(summary, key=lambda row: row["change_rms"]))
    one = audit.decoded
    if one is None or not one.differs:
        return _of_shift(summary)
    shift = _of_shift(summary)
    begin = f"Decode of a row {one.way} is not one pass over its tokens"
    off = f"float64 logits, of up to {short(one.size)}, {one.apart}"
    return f"{begin}: {off}. Under a shift, {shift[:1].lower()}{shift[1:]}"


def _of_shift(summary: Sequence[Mapping[str, Any]]) -> str:
    """Return what a shift of the positions shows of a model that is not found wrong."""
    nonfinite = [row for row in summary if row["verdict"] == "overflow"]
    if nonfinite:
        return f"Overflow: {_where(nonfinite[0])} some logits are nan or infinite; give a wider --dtype."
    structural = [row for row in summary if row["cause"] in _REMEDY]
    if structural:
        worst = max(structural, key=lambda row: row["structural_rms"])
        return (
            f"Structure, not precision: at offset {worst['offset']} the logits change by "
            f"{short(worst['structural_rms'])} RMS in float64 too: {_REMEDY[worst['cause']]}; rounding "
            f"adds {short(worst['precision_rms'])} in {worst['dtype']}{_text(worst)}."
        )
    worst = max(summary, key=lambda row: row["change_rms"])
    if worst["cause"] == "none":
        return f"Nothing changes: logits are the same at all offsets ({_where(worst)} and in the others)."
    least = min(
        (row for row in summary if row["offset"] == worst["offset"]), key=lambda row: row["change_rms"]
    )
    narrower = "" if least is worst else f", {short(least['change_rms'])} in {least['dtype']}"
    layer = worst["first_layer"]
    first = (
        ""
        if layer is None
        else f"; scores first drift by more than {short(worst['threshold'])} in layer {layer}"
    )
    return (
        f"Precision, not structure: {_where(worst)} the logits change by {short(worst['change_rms'])} RMS"
        f"{narrower} and {short(worst['structural_rms'])} in float64{_text(worst)}{first}."
    )


def _beside(row: Mapping[str, Any]) -> str:
    """Return what a shift shows of a model that is wrong."""
    if row["verdict"] == "overflow" or math.isnan(row["change_rms"]):
        return f"Some logits are nan or infinite {_where(row)}."
    return (
        f"A shift of the positions shows no more of it than a change of {short(row['change_rms'])} RMS "
        f"{_where(row)}, {short(row['structural_rms'])} in float64{_text(row)}."
    )


def _where(row: Mapping[str, Any]) -> str:
    return f"in {row['dtype']} at offset {row['offset']}"


def _text(row: Mapping[str, Any]) -> str:
    message = f"; {row['top1_flips']} of {row['tokens']} tokens get another most likely successor"
    if row["source"] == "random":
        return message
    return f"{message}, perplexity {row['perplexity']:.4g} changes by {short(row['perplexity_change'])}"


def runs(numbers: Sequence[int]) -> str:
    """Return layers in words: "layers 0 to 2, 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    texts = [f"{one[0]} to {one[-1]}" if len(one) > 2 else ", ".join(map(str, one)) for one in spans]
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


def unseen(audit: ModelAudit, results: Sequence[Shifted]) -> list[str]:
    """Return what a shift does not see in layers that rotate and were not compared with their config."""
    still = {layer for layer, pairs in audit.pairs.items() if not pairs.frequencies.size}
    seen = {head.layer for one in results for head in one.heads} - still
    compared = {layer for one in results for layer in one.places}
    if not (left := sorted(seen - compared)):
        return []
    verb = "was" if len(left) == 1 else "were"
    return [
        f"{runs(left)} {verb} not compared with config.json, and a shift does not see what is wrong alike at "
        "all positions: another base, positions off by one, cos and sin swapped"
    ]


def notes(
    audit: ModelAudit, summary: Sequence[Mapping[str, Any]], results: Sequence[Shifted] = ()
) -> list[str]:
    """Return what the reader must know about how this was run."""
    message = list(audit.folder.notes)
    if dropped := audit.folder.dropped:
        message.append(
            f"stored frequencies are not loaded, for the model builds its own ({dropped[0]}, {len(dropped)} "
            f"in all); `ropeaudit check {shlex.quote(str(audit.folder.path))}` judges them"
        )
    if audit.narrow:
        message.append(
            f"the float64 run still holds narrower numbers ({', '.join(audit.narrow[:3])}): small changes of "
            "it may be rounding"
        )
    if audit.tokens.source == "random":
        message.append(
            "random tokens: loss and perplexity are those of noise; --text gives the model something to read"
        )
    beyond = [row["offset"] for row in summary if row["offset"] + row["tokens"] > 2**24]
    if beyond:
        message.append(
            f"at offset {beyond[0]} neighbouring positions share a number in float32, as models hold them"
        )
    if not any(row["verdict"] in WRONG for row in summary):
        message += unseen(audit, results)
    maximum = audit.folder.maximum
    beyond = [row["offset"] for row in summary if maximum and row["offset"] + row["tokens"] > maximum]
    if beyond:
        message.append(f"offset {beyond[0]} is past the {maximum:,} positions that the model declares")
    if audit.decoded is not None and audit.decoded.way:
        message.append(audit.decoded.words)
    unknown = sorted({head.layer for one in results for head in one.heads} - set(audit.pairs))
    if unknown:
        message.append(
            f"pairs of dims are not seen in {runs(unknown)}: q and k do not move as the model's frequencies "
            "say"
        )
    still = sorted(n for n, pairs in audit.pairs.items() if not pairs.frequencies.size)
    if still and len(still) < len(audit.pairs):
        message.append(
            f"q and k of {runs(still)} stay when positions move: no RoPE there, or of other positions"
        )
    for one in audit.saved:
        kind = f" ({one.kind})" if one.kind else ""
        message.append(
            f"q and k before RoPE of {runs(one.layers)}{kind} are in {one.path}; `{one.command}` audits them"
        )
    return message
