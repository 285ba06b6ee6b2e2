"""Buffers of a module for people: which were cast, to what, and what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import records
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.module import run_report
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.buffers import FREQUENCIES, ROWS, Buffer
from ropeaudit.features.module.expected import FAR, NEAR
from ropeaudit.features.module.source import Source
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes, kinds
from ropeaudit.reports import Report, only
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import percent
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.runtime.columns import Columns, table

SCHEMA = 1


def row(one: Buffer) -> dict[str, Any]:
    """Return the row of a buffer."""
    return {
        "schema": SCHEMA,
        "buffer": one.stored.name,
        "what": one.what,
        "dtype": one.stored.dtype,
        "device": one.device,
        "shape": "x".join(map(str, one.stored.shape)),
        "against": one.against,
        "cast": one.cast,
        "how": one.how,
        "agrees": "unknown" if one.agrees is None else "yes" if one.agrees else "no",
        "largest_error": one.error,
        "drift_256": one.drift_near,
        "drift_131072": one.drift_far,
        "times_float32": one.times_float32,
        "used_by": "none" if one.stored.use is None else one.stored.use.words,
        "diagnosis": codes(one.diagnosis),
        "finding": one.finding,
    }


COLUMNS = table("module-buffers")
LEGEND = (
    "how: stored is seen by the dtype, back (cast and cast back) by the values. largest error: relative for\n"
    "frequencies, radians for cos and sin. drift 256, drift 131072: RMS drift of scores that these values\n"
    "alone cause, over the scores' RMS, within 256 tokens and 131072 apart (independent Gaussian q and k)."
)


_GRAPH_LEGEND = "times float32: drift 256 over that of the same frequencies rounded once to float32."
_PAIRS_LEGEND = "off: beyond what float32 arithmetic accounts for. relative error: of the frequency{}."
_OF_TABLES = "; largest error: radians"
_COMPUTES = ("Mul", "MatMul", "Einsum", "Gemm")  # yield the dtype of what they take


def columns_of(audit: ModuleAudit) -> tuple[Columns, str]:
    """Return the columns of an audit's rows, and what they are of, for a message."""
    return (run_report.COLUMNS, "(of runs)") if audit.ways else (COLUMNS, "(of buffers)")


def report(
    results: Sequence[ModuleAudit], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    Its rows are buffers, or runs where ways of loading were requested; the others are a further table. The
    first finding that is wrong makes the headline, and what is right in runs is a note beside wrong buffers.
    """
    audit = only(results)
    buffers, runs = buffers_report(audit, columns, metadata), runs_report(audit, columns, metadata)
    wrong = {
        "buffers": any(one.wrong for one in audit.buffers),
        "runs": any(one.wrong for one in audit.runs),
    }
    tables = {"buffers": buffers, **({"runs": runs} if audit.runs else {})}
    shown = "runs" if audit.ways else "buffers"
    notes, further = list(audit.source.notes), dict[str, Report]()
    if wrong["buffers"] or not audit.ways:
        notes += buffers.notes
    if audit.source.dumped:
        further = _of_pairs(audit.buffers)
    worst = min(tables, key=lambda name: (not wrong[name], name != shown))
    if audit.runs and worst != "runs" and not wrong["runs"]:
        notes.append(runs.headline)
    said = tables[worst].headline if audit.judged else _nothing_judged(audit)
    if audit.source.gguf is not None:
        said = _of_gguf(audit.source.gguf, audit) or said
    for name in tables.keys() - {shown}:
        further[name] = tables[name] if wrong[name] else replace(tables[name], headline="")
    return replace(tables[shown], headline=said, notes=notes, further=further)


def _of_gguf(rope: GgufRope, audit: ModuleAudit) -> str:
    """Return what the conversion to a GGUF file lost, that nothing was, or what it says; else nothing."""
    config = audit.source.expected.model
    if not audit.source.explicit:
        said = setting_words(rope.setting, rope.axes, rope.model.served)
        give = "put its config.json beside it, or give --config"
        return f"Nothing was judged, for nothing says what it should be ({give}). It says: {said}."
    if config is None or (audit.wrong and not audit.lost):
        return ""
    parts = [
        f"{one.layer + ' layers: ' if one.layer else ''}{wording.sentence(one.diagnosis)} ({one.keys})"
        for one in audit.lost
    ]
    if not parts:
        count = f"{len(audit.buffers)} of {len(audit.buffers)}"
        return f"The file says of RoPE what {config.name} says: {count} agree."
    count = f"{len(parts)} difference{'s' if len(parts) > 1 else ''}"
    return f"Lost in conversion: {count} from {config.name}: {'; '.join(parts)}."


def _nothing_judged(audit: ModuleAudit) -> str:
    """Return the headline where nothing was judged, or not all of it: what to give."""
    unread = "; ".join(f"{kind} {run_report.unjudged(why)}" for kind, why in audit.unjudged.items())
    if unread and audit.buffers and not audit.misplaced:
        return f"Nothing was judged of what the module returns: {unread}."
    if audit.buffers or not audit.source.built:
        much = "Not all" if any(one.judged for one in audit.buffers) else "Nothing"
        return f"{much} was judged. {headline(audit.source, audit.buffers)}"
    none = f"none of {audit.source.tensors} tensors is a RoPE buffer of {audit.source.spec}"
    return f"Nothing was judged: {none}{', and ' if unread else ''}{unread}."


def buffers_report(audit: ModuleAudit, columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report of buffers, whatever was requested."""
    results, columns = audit.buffers, None if audit.ways else columns
    rows = [row(one) for one in results]
    of_graphs = any(one.times_float32 is not None and one.cast != "none" for one in results)
    legend = [LEGEND, _GRAPH_LEGEND] if of_graphs else [LEGEND]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or COLUMNS.screen(rows)) if results else [],
        dispensable=() if columns else COLUMNS.dispensable,
        headline=headline(audit.source, results),
        notes=_notes(results),
        legend="\n".join(legend) if results else "",
        metadata={"schema": SCHEMA, **metadata},
        declared=COLUMNS,
    )


def runs_report(audit: ModuleAudit, columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report of runs, whatever was requested."""
    results, declared = audit.runs, run_report.COLUMNS
    columns = columns if audit.ways else None
    rows = [run_report.row(one) for one in results]
    return Report(
        rows=rows,
        columns=list(columns or declared),
        screen=list(columns or declared.screen(rows)),
        dispensable=() if columns else declared.dispensable,
        headline=run_report.headline(results) if results else "",
        legend=run_report.LEGEND,
        metadata={"schema": SCHEMA, **metadata},
        declared=declared,
    )


def headline(source: Source, results: Sequence[Buffer]) -> str:
    """Return the finding in a sentence: how many buffers were cast, to what, and what it does."""
    if not results:
        where = f"none of {source.tensors} tensors is a RoPE buffer"
        if source.noun == "constant":
            return (
                f"There is nothing to be cast: none of {source.tensors} constants is a RoPE frequency or a "
                "table of angles, cos or sin; what the graph computes by itself is not seen here: give the "
                "module that was exported (file.py:function)."
            )
        if source.built:
            return f"No buffer was judged: {where} of the module."
        return (
            f"There is nothing to be cast: {where}, so that frequencies, if there are any, are "
            "recomputed when the model is loaded; what a .half() or .to() does after that only shows in "
            "the loaded module: give the function that loads it (file.py:function), or run check or model."
        )
    cast = [one for one in results if one.cast != "none"]
    if cast:
        worst = max(cast, key=lambda one: one.drift_near or 0.0)
        hows = {"stored": "holds", "graph": "is converted by the graph: every value becomes"}
        how = hows.get(worst.how, "was cast and cast back: every value is")
        kind = worst.cast if worst.how == "stored" else f"a {worst.cast} number"
        were = "was" if len(cast) == 1 else "were"
        begin = f"{len(cast)} of {len(results)} RoPE {source.noun}s {were} cast"
        return f"{begin}: {worst.stored.name} {how} {kind}{_beside(worst)}{_effect(worst)}."
    off = [one for one in results if one.agrees is False]
    if off:
        is_off = "is off" if len(off) == 1 else "are off"
        return f"No cast, but {len(off)} of {len(results)} RoPE {source.noun}s {is_off}: {off[0].finding}"
    right = sum(one.agrees is True for one in results)
    agree = f"{right} of {len(results)} agree{'s' if right == 1 else ''} with the exact values within"
    judged = f"No RoPE {source.noun} was cast: {agree} float32 rounding." if right else ""
    return " ".join(filter(None, (judged, _unjudged(source.noun, results))))


def _unjudged(noun: str, results: Sequence[Buffer]) -> str:
    """Return what is said of buffers that nothing says the right values of; nothing without any."""
    unknown = [one for one in results if one.agrees is None]
    if not unknown:
        return ""
    guesses = list(dict.fromkeys(one.label for one in unknown if one.guessed))
    count = f"{len(unknown)} of {len(results)} RoPE {noun}{'s' if len(results) > 1 else ''}"
    begin = f"No cast shows in {count}, but nothing says what the values should be"
    if not guesses:
        return f"{begin}, and no base explains them; give --config, --model or --base."
    other = sum(not one.guessed for one in unknown)
    rest = f"; no base explains {other} of them" if other else ""
    return f"{begin} (they are those of {', '.join(guesses[:3])}{rest}); give --config, --model or --base."


def _beside(one: Buffer) -> str:
    """Return what is wrong with a buffer beside its having been cast; nothing without."""
    parts = () if one.diagnosis is None else one.diagnosis.parts()
    others = [replace(part, also=()) for part in parts if kinds()[part.code].group != "precision"]
    return "".join(f"; {wording.sentence(part)}" for part in others)


def _effect(one: Buffer) -> str:
    use, used = one.stored.use, ""
    if use is not None:
        none = "no node of the graph that was followed uses it"
        used = f"; it is used by {use.words}" if use.nodes else f"; {none}"
    if one.error is None or one.drift_near is None:
        return used
    listed = one.what in FREQUENCIES
    noun = "frequencies" if one.what == "inv_freq" else one.what
    size = f", {noun} are off by up to {percent(one.error)}" if listed else ""
    text = f"{size}, which alone moves scores by {percent(one.drift_near)} of their RMS within {NEAR} tokens"
    text = text if one.drift_far is None else f"{text} and by {percent(one.drift_far)} at a distance of {FAR}"
    if used:
        return f"{text}{used}"
    hidden = listed and one.how == "stored"
    return f"{text}; what positions are rounded to is not seen here: run shift --impl" if hidden else text


def _notes(results: Sequence[Buffer]) -> list[str]:
    message = [f"{one.stored.name}: {one.finding}" for one in results if one.wrong]
    stored = [one for one in results if one.what in FREQUENCIES and one.how == "stored"]
    message += [_positions(one) for one in stored if one.stored.use is None][:1]
    message += _of_graphs(results)
    guessed = [one for one in results if one.guessed]
    if guessed:
        message.append(
            f"{guessed[0].stored.name} was compared with {guessed[0].against} from its own values; "
            "--config, --model or --base says what it should be"
        )
    long = [one for one in results if one.unseen]
    if long:
        total = long[0].unseen + ROWS
        message.append(
            f"{long[0].stored.name}: the first {ROWS} of {total} rows were compared, the others not"
        )
    back = [one for one in results if one.how == "back"]
    if back:
        message.append("casting back does not heal: recompute the values in float32 after the last cast")
    return list(dict.fromkeys(message))


def _positions(one: Buffer) -> str:
    """Return what becomes of positions that are built in a buffer's dtype, which the buffer does not show."""
    held, count = one.stored.dtype, 4096
    try:
        distinct = np.unique(round_to(np.arange(float(count)), parse(held))).size
    except RopeAuditError:
        return f"{one.stored.name}: what positions are rounded to is not seen here"
    return (
        f"{one.stored.name} is stored in {held}: where code builds positions in its dtype, {distinct} of the "
        f"first {count} stay distinct; whether it does is not seen here"
    )


def _of_graphs(results: Sequence[Buffer]) -> list[str]:
    """Return notes on constants that were cast, each said of the first that it is true of."""
    cast = [one for one in results if one.stored.use is not None and one.cast != "none"]
    said = [*filter(None, map(_conversion, cast))][:1]
    mixed = [one for one in results if one.stored.use is not None and one.stored.use.mixed]
    said += [
        f"{one.stored.name} reaches its nodes in several dtypes, and was compared as it is stored"
        for one in mixed[:1]
    ]
    return said


def _conversion(one: Buffer) -> str:
    """Return what the graph converts a narrow constant to, or that it computes with it as it is."""
    use, name = one.stored.use, one.stored.name
    if use is None or not use.nodes:
        return ""
    if one.how == "graph":
        return f"{name} is stored in {one.stored.dtype}: leave out its conversion before {use.nodes[0]}"
    if one.how != "stored":
        return ""
    if use.converted:
        return (
            f"{name} is stored in {one.cast} and converted to {use.converted} before {use.nodes[0]}: "
            "that does not restore what was rounded away; keep this constant in float32"
        )
    if one.what in FREQUENCIES and use.op in _COMPUTES:
        return (
            f"{use.nodes[0]} takes {name} in {one.cast} and yields {one.cast}: what it rounds is not in "
            "these figures; compute angles in float32"
        )
    return ""


def _of_pairs(results: Sequence[Buffer]) -> dict[str, Report]:
    """Return the tables of pairs and of hypotheses; none where nothing was compared."""
    pairs: list[dict[str, Any]] = []
    hypotheses: list[dict[str, Any]] = []
    for one in _tables(results):
        if one.table is None:
            continue
        name = one.stored.name
        pairs += [{"buffer": name, **row, "setting": one.against} for row in one.table.rows]
        hypotheses += [
            {
                "buffer": name,
                "diagnosis": codes(each.diagnosis),
                "text": wording.sentence(each.diagnosis) or "what is expected",
                "explains": each.explains,
                "residual": each.residual,
                "residual_max": each.residual_max,
                "strays": " ".join(map(str, each.strays)),
            }
            for each in one.table.hypotheses
        ]
    if not pairs:
        return {}
    known = list(dict.fromkeys(name for row in pairs for name in row))
    hidden = {"setting", "tolerance"}
    if len({row["buffer"] for row in pairs}) == 1:
        hidden.add("buffer")
    of_tables = _OF_TABLES if "largest_error" in known else ""
    return {
        "pairs": Report(
            [{name: row.get(name) for name in known} for row in pairs],
            known,
            [name for name in known if name not in hidden],
            headline="Pair by pair:",
            legend=_PAIRS_LEGEND.format(of_tables),
            declared={"tolerance": records.COLUMNS["tolerance"]},  # shown as it was given
        ),
        "hypotheses": Report(hypotheses, list(hypotheses[0]) if hypotheses else [], []),
    }


def _tables(results: Sequence[Buffer]) -> list[Buffer]:
    """Return one buffer a table: a cos and its sin share theirs."""
    return list({id(one.table): one for one in reversed(results)}.values())[::-1]
