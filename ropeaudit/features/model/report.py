"""The report of `model`, and the run of a model in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.door import process
from ropeaudit.door.child import ChildSession, Header
from ropeaudit.door.messages import Arrays, Values
from ropeaudit.errors import BadInput, ForeignError, UnknownName, did
from ropeaudit.features.model import analysis, load
from ropeaudit.features.model.analysis import NO_QK_SEEN, THRESHOLD, ModelAudit, Shifted
from ropeaudit.features.model.layers import NO_ROTATION_SEEN, HeadDrift, layer_words
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.numbers import counted, short
from ropeaudit.runtime import doing
from ropeaudit.runtime.columns import table

SCHEMA = 1
KINDS = ("summary", "layer", "pair")
COLUMNS = {kind: table("model", f"model-{kind}") for kind in KINDS}
_STRUCTURE = {
    "frequencies": "the length switches the frequencies (RoPE scaling)",
    "learned positions": "positions are learned, and each has another vector",
    "position table": "positions are looked up in a table, and each has another vector",
    "mask": "the attention mask depends on positions",
    "query scale": "queries are multiplied by a number that depends on their position",
    "other": "something other than frequencies, position vectors and the mask depends on positions",
}
_SAID = {  # verdict -> what was measured, by columns of the summary
    "wrong_frequencies": "{held}: not what its config builds, as loaded in {dtype}",
    "wrong_rotation": "q and k are rotated wrongly by up to {rotation_excess} times what is allowed, {where}",
    "wrong_scale": "attention multiplies q·k by another number than the config says",
    "wrong_decode": "{calls}",
    "inaccurate": "float32 logits are off from those of the float64 run, of {logits_rms} RMS, by {error_rms} "
    "{where} and by {base_error_rms} at offset 0",
    "overflow": "some logits are nan or infinite {where}",
}


def report(
    results: Sequence[ModelAudit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    by: str | None = None,
    shifted: Sequence[Shifted] | None = None,
    threshold: float = THRESHOLD,
) -> Report:
    """Return the report of an audit; JSON also has the other kinds of rows, except pairs.

    by: kind of rows, summary by default. shifted: measurements so far; None runs the audit.
    """
    audit, kind, versions = only(results), by or "summary", load.versions()
    if kind not in KINDS:
        raise UnknownName("--by", kind, KINDS)
    measured = list(audit) if shifted is None else shifted
    rows = {
        name: [row for result in measured for row in rows_of(name, audit, result, threshold, versions)]
        for name in ("summary", "layer", kind)
    }
    plural = {"summary": "summary", "layer": "layers"}
    return tabulated(
        COLUMNS[kind],
        SCHEMA,
        rows[kind],
        COLUMNS[kind].screen(rows[kind]) if rows[kind] else [],
        columns,
        {**metadata, "versions": versions},
        [answer(audit, measured, rows["summary"])],
        brief=not columns and kind == "summary",
        notes=notes(audit, rows["summary"]),
        further={plural[name]: Report(rows[name], list(COLUMNS[name]), []) for name in rows if name != kind},
    )


def answer(
    audit: ModelAudit,
    results: Sequence[Shifted],
    summary: Sequence[Mapping[str, Any]],
) -> Answer:
    """Return the answer: whether the model is wrong, or what a shift changes."""
    name, decoded = audit.folder.name, audit.decoded
    if not summary:
        return Answer("WARN", name, "nothing was run")
    wrong = [pair for pair in zip(results, summary, strict=True) if pair[0].verdict in _SAID]
    causes = list[Cause]()
    for cause in (_wrong_cause(*pair) for pair in wrong):  # the first of a code stands for it
        causes += [] if cause.code in [other.code for other in causes] else [cause]
    worst = max(summary, key=_change)
    structural = [row for row in summary if row["cause"] in _STRUCTURE]
    if structural and not wrong:
        worst = max(structural, key=lambda row: row["structural_rms"])
        size = f"float64 logits change too; rounding adds {short(worst['precision_rms'])} in {worst['dtype']}"
        causes.append(Cause("structure", _STRUCTURE[worst["cause"]], facts=[size], warning=True))
    if decoded is not None and decoded.position is not None and not decoded.wrong:
        size = f"the largest float64 logit is {short(decoded.size)}"
        code = decoded.diagnosis.code if decoded.diagnosis else "decode"
        causes.append(Cause(code, decoded.words, facts=[size], warning=True))
    facts = _facts(audit, results, summary)
    if wrong:
        return Answer("FAIL", name, wrong[0][0].verdict.replace("_", " "), causes, facts)
    shift, change = f"shifting the positions by {worst['offset']:,}", short(worst["change_rms"])
    decides = f"{shift} changes the logits by {change} (float64: {short(worst['structural_rms'])})"
    status: Status = "WARN" if causes or any(audit.calls.values()) else "OK"
    return Answer(status, name, decides, causes, facts)


def _change(row: Mapping[str, Any]) -> float:
    """Return the RMS change of logits; inf for nan."""
    return math.inf if math.isnan(row["change_rms"]) else float(row["change_rms"])


def _wrong_cause(shifted: Shifted, row: Mapping[str, Any]) -> Cause:
    shown = {name: short(value) if isinstance(value, float) else value for name, value in row.items()}
    shown |= {"where": f"in {row['dtype']} at offset {row['offset']:,}"}
    if shifted.verdict == "wrong_rotation":  # which may be at the first positions
        place = max((place for place in shifted.places.values() if place.diagnosis), key=lambda it: it.excess)
        shown |= {"where": f"in {row['dtype']}: {place.words}"}
    shown |= {"calls": shifted.decoded.words if shifted.decoded else ""}
    said = _SAID[shifted.verdict].format(**shown)
    if shifted.diagnosis is None:
        fix = ["fix: give a wider --dtype"] if shifted.verdict == "overflow" else []
        return Cause(shifted.verdict, said, facts=fix)
    remedy = wording.remedy(shifted.diagnosis, FP32, row["offset"] + row["tokens"])
    fix = [f"fix: {remedy}"] if remedy else []
    return Cause(shifted.diagnosis.code, str(row["resembles"]), facts=[said, *fix])


def _facts(
    audit: ModelAudit, results: Sequence[Shifted], summary: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    facts = []
    for dtype in dict.fromkeys(row["dtype"] for row in summary):
        row = max((row for row in summary if row["dtype"] == dtype), key=_change)
        size = f"change {short(row['change_rms'])} of {short(row['logits_rms'])} RMS"
        parts = [f"{size} at offset {row['offset']:,}"]
        if row["top1_flips"] is not None:
            parts.append(f"{row['top1_flips']} of {counted(row['tokens'], 'top token')} differ")
        if row["source"] != "random":
            parts.append(f"perplexity {row['perplexity']:.4g} by {short(row['perplexity_change'])}")
        if row["first_layer"] is not None:
            parts.append(f"score drift exceeds {row['threshold']:g} first in layer {row['first_layer']}")
        facts.append((dtype, "; ".join(parts)))
    excesses = [row["rotation_excess"] for row in summary if row["rotation_excess"] is not None]
    if excesses and not any(result.wrong_layers for result in results):
        layers = counted(max(row["layers_compared"] for row in summary), "layer")
        rotation = f"{layers} as config.json says, error {short(max(excesses))} of what is allowed"
        facts.append(("rotation", rotation))
    known = [scale for scale in audit.scales.values() if scale.asked is not None]
    if known and not any(scale.wrong for scale in known):
        facts.append(
            (
                "softmax scale",
                f"{counted(len(known), 'layer')} given what config.json says, whatever it does with it",
            )
        )
    if (decoded := audit.decoded) is not None and not decoded.differs:
        ways = " and ".join(way for way, why in audit.calls.items() if not why)
        within = f"{ways} have the logits of one pass to within {short(decoded.change)}"
        facts.append(("cache", f"{within} (float64, in which casts are undone)"))
    count, seed = counted(len(audit.tokens.ids), "token"), audit.tokens.seed
    random = f"{count} at random, seed {seed} (--text FILE gives the model a text)"
    given = count if audit.tokens.source == "ids" else f"{count} of {audit.tokens.source}"
    facts.append(("assumed", random) if audit.tokens.source == "random" else ("read", given))
    facts.append(("stored", audit.ignored))
    said, compared = audit.folder.notes, {layer for result in results for layer in result.places}
    parts = ["scores and q and k by layer, which are not seen"] if NO_QK_SEEN in said else []
    if NO_ROTATION_SEEN in said:
        parts.append("how layers rotate (no q and k are seen before and after it)")
    elif left := sorted(set(audit.pairs) - set(audit.still) - compared):
        parts.append(
            f"{layer_words(left)} beside config.json (a shift sees no fault that is alike at all positions)"
        )
    parts += (
        [] if known or NO_QK_SEEN in said else ["the softmax scale (what attention is given is not seen)"]
    )
    parts += [f"{way} ({why})" for way, why in audit.calls.items() if why]
    facts.append(("not checked", "; ".join(parts)))
    facts.append(("next", "by layer: --by layer    all rows: -v"))
    return [fact for fact in facts if fact[1]]


def notes(audit: ModelAudit, summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on the run."""
    message = list(audit.folder.notes)
    if audit.narrow:
        narrow = ", ".join(audit.narrow[:3])
        message.append(
            f"the float64 run still holds narrower numbers ({narrow}): small changes may be rounding"
        )
    if audit.tokens.source == "random":
        message.append("random tokens: loss and perplexity are those of noise")
    maximum = audit.folder.maximum or math.inf
    for offset in [row["offset"] for row in summary if row["offset"] + row["tokens"] > maximum][:1]:
        message.append(f"offset {offset} is past the {maximum:,} positions that the model declares")
    if 0 < len(audit.still) < len(audit.pairs):
        unmoved = layer_words(audit.still)
        message.append(f"q and k of {unmoved} stay when positions move: no RoPE there, or of other positions")
    return message + audit.saved


def rows_of(
    kind: str,
    audit: ModelAudit,
    shifted: Shifted,
    threshold: float,
    versions: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the rows of a kind for a dtype and offset."""
    common = {
        "schema": SCHEMA,
        "model": audit.folder.name,
        "dtype": shifted.dtype.name,
        "device": audit.device.label,
        "offset": shifted.offset,
    }
    if kind == "summary":
        return [common | summary_row(audit, shifted, threshold, versions)]
    rows = []
    for layer in dict.fromkeys(head.layer for head in shifted.heads):
        heads, place = [head for head in shifted.heads if head.layer == layer], shifted.places.get(layer)
        if kind == "layer":  # its scores, and its worst rotated pair
            scale = audit.scales.get(layer)
            found = place.diagnosis if place else None
            found = scale.wrong if found is None and scale else found
            rotation = {
                "rotation_excess": place.excess if place else None,
                "softmax_scale": scale.seen if scale else None,
                "diagnosis": codes(found) or None,
                "resembles": wording.sentence(found) or None,
            }
            rows.append({**common, "layer": layer, **_pooled_score_drift(heads), **rotation})
            continue
        for head in heads:
            for pair, numbers in enumerate(head.pairs.T):
                names = ("wavelength", "q_norm", "k_norm", "drift_rms")
                values = dict(zip(names, map(float, numbers), strict=True))
                rows.append({**common, "layer": layer, "head": head.head, "pair": pair, **values})
    return rows


def summary_row(
    audit: ModelAudit, shifted: Shifted, threshold: float, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the summary of a dtype and offset. threshold: score drift that a layer may have."""
    scores, excess = _pooled_score_drift(shifted.heads), [place.excess for place in shifted.places.values()]
    row = {
        "model_type": str(audit.folder.config.get("model_type") or "none"),
        "transformers": versions["transformers"],
        "torch": versions["torch"],
        "source": audit.tokens.source,
        "seed": audit.tokens.seed,
        **shifted.change,
        "score_drift_max": scores.get("score_drift_max"),
        "score_drift_rms": scores.get("score_drift_rms"),
        "threshold": threshold,
        "first_layer": min(
            (head.layer for head in shifted.heads if not head.largest <= threshold), default=None
        ),
        "rotation_excess": max(excess, key=lambda size: math.inf if math.isnan(size) else size, default=None),
        "diagnosis": codes(shifted.diagnosis) or None,
        "resembles": wording.sentence(shifted.diagnosis) or None,
        "held": ", ".join(held.name for held in shifted.held) or None,
        "layers_compared": len(shifted.places),
        "decode_max": shifted.decoded.change if shifted.decoded else None,
        "cause": shifted.cause,
        "verdict": shifted.verdict,
    }
    return {name: row[name] for name in COLUMNS["summary"] if name in row}


def _pooled_score_drift(heads: Sequence[HeadDrift]) -> dict[str, Any]:
    if not heads:
        return {}
    count = sum(head.scores for head in heads)
    drift = math.sqrt(sum(head.squares for head in heads) / count)
    reference = math.sqrt(sum(head.reference_squares for head in heads) / count)
    return {
        "scores": count,
        "reference_rms": reference,
        "score_drift_max": float(np.max([head.largest for head in heads])),
        "score_drift_rms": drift,
        "score_drift_relative": drift / reference if reference else math.nan,
    }


_THIS_MODULE = "ropeaudit.features.model.report"
VALUES = Values([Report, Answer, Cause], COLUMNS.values())


def run_in_child(
    asked: Mapping[str, Any],
    columns: Sequence[str],
    by: str,
    threshold: float,
    progress: Callable[[float], None],
) -> Iterator[tuple[str, Report]]:
    """Run a model in a process of its own; yield the verdict in each dtype at each offset.

    With each verdict comes the report so far. asked: arguments of `analysis.model`. Raises: RopeAuditError.
    """
    given = {"asked": dict(asked), "columns": list(columns), "by": by, "threshold": threshold}
    try:
        session = process.own_session((_THIS_MODULE, "torch", "transformers"))
        while True:
            told, arrays = session.ask(
                f"{_THIS_MODULE}:step", given, heard=lambda text: progress(float(text))
            )
            if told["report"] is None:
                return
            yield told["verdict"], VALUES.unpacked(told["report"], dict(arrays))
    except ForeignError as error:
        raise BadInput(f"{str(asked['folder'])!r}: running it {did(error)}") from None


def step(session: ChildSession, asked: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Run the model in the next dtype or offset, in the child; return the report so far."""
    state, held = session.state, dict[str, Any]()
    if not state:
        audit = analysis.model(**asked["asked"])
        state.update(audit=audit, run=iter(audit), results=[])
    results = state["results"]
    with doing.reporting_to(lambda share: session.say(repr(share))):
        result = next(state["run"], None)
    if result is None:
        return {"report": None}, {}
    results.append(result)
    made = report([state["audit"]], asked["columns"], {}, asked["by"], results, asked["threshold"])
    return {"verdict": result.verdict, "report": VALUES.packed(made, held)}, held
