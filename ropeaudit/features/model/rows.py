"""The rows of a model's audit: one a dtype and offset, and below it by layer, head and pair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.layers import HeadDrift

SCHEMA = 1
KINDS = ("summary", "layer", "head", "pair")
_OWN: dict[str, str] = {
    "schema": "version of this list of columns",
    "model": "name of the folder",
    "dtype": "number format of the weights and of the arithmetic, as transformers runs it",
    "offset": "integer added to every position, in tokens",
}
_SUMMARY: dict[str, str] = {
    "model_type": "as config.json says",
    "transformers": "version that ran the model",
    "torch": "version that ran the model",
    "source": "tokens: random, ids, or the name of a text",
    "seed": "seed of random tokens; nan where none was used",
    "tokens": "how many tokens were read",
    "logits_rms": "RMS of the float64 logits at offset 0",
    "change_max": "largest |logit at the offset - logit at offset 0|",
    "change_rms": "its root mean square over all tokens and the vocabulary",
    "structural_max": "largest change of the logits of the float64 run",
    "structural_rms": "its root mean square",
    "precision_max": "largest difference between the change and that of the float64 run",
    "precision_rms": "its root mean square",
    "error_rms": "RMS of the logits at the offset minus those of the float64 run there",
    "kl_mean": "mean KL(offset 0 || offset) of the next-token distributions, nats",
    "kl_max": "its largest value",
    "top1_flips": "tokens whose most likely successor becomes another one",
    "loss": "mean next-token loss at offset 0, nats",
    "loss_change": "what the shift adds to it",
    "perplexity": "exp(loss)",
    "perplexity_change": "what the shift adds to it",
    "score_drift_max": "largest change of a score after RoPE, in all layers; nan where q and k are not seen",
    "score_drift_rms": "its root mean square",
    "threshold": "--threshold, in score units",
    "first_layer": "first layer in which some score changes by more than the threshold; nan where none does",
    "cause": "of the change: rounding, frequencies, learned positions, mask, other or none",
    "verdict": "none, precision (float64 logits stay), structure (they change too) or overflow",
}
_LAYER: dict[str, str] = {
    "layer": "number of the layer, from 0",
    "scores": "how many scores were compared, those that the mask shows",
    "reference_rms": "RMS of the scores at offset 0, scaled, before softmax",
    "score_drift_max": "largest |score at the offset - score at offset 0|",
    "score_drift_rms": "its root mean square",
    "score_drift_relative": "score_drift_rms / reference_rms",
}
_HEAD: dict[str, str] = {
    "drift_pair": "pair that adds most to the change; nan where nothing is rotated or changes",
    "drift_wavelength": "tokens of its whole turn",
    "drift_share": "its share of the mean squares of all pairs",
    "usage_pair": "pair with the largest product of mean norms of q's and k's chunks",
    "usage_wavelength": "tokens of its whole turn",
    "usage_q": "mean norm of its chunk of q (frequency usage of arXiv 2410.06205)",
    "usage_k": "mean norm of its chunk of k",
}
_PAIR: dict[str, str] = {
    "layer": _LAYER["layer"],
    "head": "number of the query head",
    "pair": "number of the pair, from 0, the fastest first",
    "wavelength": "tokens of a whole turn",
    "q_norm": "mean norm of the pair's chunk of q (frequency usage of arXiv 2410.06205)",
    "k_norm": "mean norm of its chunk of k",
    "drift_rms": "RMS over all q and k, seen by the mask or not, of what the pair adds to a score's change",
}
COLUMNS: dict[str, dict[str, str]] = {
    "summary": _OWN | _SUMMARY,
    "layer": _OWN | _LAYER,
    "head": _OWN | {"layer": _LAYER["layer"], "head": _PAIR["head"]} | _LAYER | _HEAD,
    "pair": _OWN | _PAIR,
}


def rows(
    kind: str, audit: ModelAudit, results: Sequence[Shifted], threshold: float, versions: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a kind, with the columns of `COLUMNS[kind]`."""
    for one in results:
        own = {"schema": SCHEMA, "model": audit.folder.name, "dtype": one.dtype.name, "offset": one.offset}
        if kind == "summary":
            built: Iterator[dict[str, Any]] = iter([_summary(audit, one, threshold, versions)])
        elif kind == "layer":
            built = ({"layer": n, **_scores(heads)} for n, heads in by_layer(one).items())
        else:
            make = _heads if kind == "head" else _pairs
            built = make(one)
        for row in built:
            whole = own | row
            yield {name: whole[name] for name in COLUMNS[kind]}


def _summary(
    audit: ModelAudit, one: Shifted, threshold: float, versions: Mapping[str, str]
) -> dict[str, Any]:
    change, scored = one.change, max(len(audit.tokens.ids) - 1, 1)
    loss, shifted = (change.defined(x / scored) for x in (change.loss_sum, change.shifted_loss_sum))
    results = {
        "model_type": str(audit.folder.config.get("model_type") or "none"),
        **versions,
        "source": audit.tokens.source,
        "seed": audit.tokens.seed,
        "tokens": change.tokens,
        "logits_rms": math.sqrt(change.reference_squares / max(change.count, 1)),
        "change_max": change.defined(change.largest),
        "change_rms": change.rms(change.squares),
        "structural_max": change.structural_largest,
        "structural_rms": math.sqrt(change.structural_squares / max(change.count, 1)),
        "precision_max": change.defined(change.precision_largest),
        "precision_rms": change.rms(change.precision_squares),
        "error_rms": change.rms(change.error_squares),
        "kl_mean": change.defined(change.kl_sum / max(change.tokens, 1)),
        "kl_max": change.defined(change.kl_largest),
        "top1_flips": None if change.nonfinite else change.flips,
        "loss": loss,
        "loss_change": shifted - loss,
        "perplexity": _exp(loss),
        "perplexity_change": _exp(shifted) - _exp(loss),
        "threshold": threshold,
        "first_layer": first_layer(one, threshold),
        "cause": one.cause,
        "verdict": one.verdict,
    }
    return _scores(one.heads) | results


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def by_layer(one: Shifted) -> dict[int, list[HeadDrift]]:
    """Return layer -> its heads."""
    results: dict[int, list[HeadDrift]] = {}
    for head in one.heads:
        results.setdefault(head.layer, []).append(head)
    return results


def first_layer(one: Shifted, threshold: float) -> int | None:
    """Return the first layer in which some score changes by more than the threshold."""
    over = [head.layer for head in one.heads if not head.largest <= threshold]
    return min(over) if over else None


def _scores(heads: Sequence[HeadDrift]) -> dict[str, Any]:
    """The columns about scores, of some heads."""
    if not heads:
        return dict.fromkeys((*_LAYER, "score_drift_max"))
    count = sum(head.scores for head in heads)
    rms = math.sqrt(sum(head.squares for head in heads) / count)
    reference = math.sqrt(sum(head.reference_squares for head in heads) / count)
    return {
        "scores": count,
        "reference_rms": reference,
        "score_drift_max": float(np.max([head.largest for head in heads])),
        "score_drift_rms": rms,
        "score_drift_relative": rms / reference if reference else math.nan,
    }


def _heads(one: Shifted) -> Iterator[dict[str, Any]]:
    for head in one.heads:
        drift, usage = head.pair_rms, head.q_norm * head.k_norm
        whole = float(np.sum(drift**2))
        most = int(np.argmax(drift)) if drift.size and whole > 0 else None
        used = int(np.argmax(usage)) if usage.size else None
        yield {
            "layer": head.layer,
            "head": head.head,
            **_scores([head]),
            "drift_pair": most,
            "drift_wavelength": None if most is None else float(head.wavelength[most]),
            "drift_share": None if most is None else float(drift[most] ** 2 / whole),
            "usage_pair": used,
            "usage_wavelength": None if used is None else float(head.wavelength[used]),
            "usage_q": None if used is None else float(head.q_norm[used]),
            "usage_k": None if used is None else float(head.k_norm[used]),
        }


def _pairs(one: Shifted) -> Iterator[dict[str, Any]]:
    for head in one.heads:
        for pair in range(head.pair_rms.size):
            yield {
                "layer": head.layer,
                "head": head.head,
                "pair": pair,
                "wavelength": float(head.wavelength[pair]),
                "q_norm": float(head.q_norm[pair]),
                "k_norm": float(head.k_norm[pair]),
                "drift_rms": float(head.pair_rms[pair]),
            }
