"""The rows of a model's audit and their columns: of a run, the scores of a layer, a pair of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.layers import HeadDrift
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.runtime.columns import table

SCHEMA = 1
KINDS = ("summary", "layer", "pair")
COLUMNS = {kind: table("model", f"model-{kind}") for kind in KINDS}


def rows(
    kind: str, audit: ModelAudit, one: Shifted, threshold: float, versions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the rows of a kind, of a model in a dtype at an offset."""
    common = {
        "schema": SCHEMA,
        "model": audit.folder.name,
        "dtype": one.dtype.name,
        "device": audit.device.label,
        "offset": one.offset,
    }
    if kind == "summary":
        found = [summary_row(audit, one, threshold, versions)]
    elif kind == "layer":
        found = [layer_row(one, layer) for layer in dict.fromkeys(head.layer for head in one.heads)]
    else:
        found = [pair_row(head, pair) for head in one.heads for pair in range(head.pair_rms.size)]
    return [common | row for row in found]


def summary_row(
    audit: ModelAudit, one: Shifted, threshold: float, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the row of a model in a dtype at an offset. threshold: score drift that a layer may have."""
    change, count, scores = one.change, max(one.change.count, 1), _scores(one.heads)
    scored = max(len(audit.tokens.ids) - 1, 1)
    loss = change.defined(change.loss_sum / scored)
    shifted_loss = change.defined(change.shifted_loss_sum / scored)
    excess = [place.excess for place in one.places.values()]
    return {
        "model_type": str(audit.folder.config.get("model_type") or "none"),
        "transformers": versions["transformers"],
        "torch": versions["torch"],
        "source": audit.tokens.source,
        "seed": audit.tokens.seed,
        "tokens": change.tokens,
        "logits_rms": math.sqrt(change.reference_squares / count),  # float64's, however many are not finite
        "change_max": change.defined(change.largest),
        "change_rms": change.rms(change.squares),
        "structural_max": change.structural_largest,
        "structural_rms": math.sqrt(change.structural_squares / count),
        "precision_max": change.defined(change.precision_largest),
        "precision_rms": change.rms(change.precision_squares),
        "error_rms": change.rms(change.error_squares),
        "base_error_rms": change.rms(change.base_error_squares),
        "kl_mean": change.defined(change.kl_sum / max(change.tokens, 1)),
        "kl_max": change.defined(change.kl_largest),
        "top1_flips": None if change.nonfinite else change.flips,
        "loss": loss,
        "loss_change": shifted_loss - loss,
        "perplexity": _exp(loss),
        "perplexity_change": _exp(shifted_loss) - _exp(loss),
        "score_drift_max": scores.get("score_drift_max"),
        "score_drift_rms": scores.get("score_drift_rms"),
        "threshold": threshold,
        "first_layer": min((head.layer for head in one.heads if not head.largest <= threshold), default=None),
        "rotation_excess": max(excess, key=lambda size: math.inf if math.isnan(size) else size, default=None),
        "diagnosis": codes(one.diagnosis) or None,
        "resembles": wording.sentence(one.diagnosis) or None,
        "held": ", ".join(held.name for held in one.held) or None,
        "layers_compared": len(one.places),
        "decode_max": one.decoded.change if one.decoded else None,
        "cause": one.cause,
        "verdict": one.word,
    }


def layer_row(one: Shifted, layer: int) -> dict[str, Any]:
    """Return the row of the scores of a layer, and of its worst rotated pair."""
    place = one.places.get(layer)
    return {
        "layer": layer,
        **_scores([head for head in one.heads if head.layer == layer]),
        "rotation_excess": place.excess if place else None,
        "diagnosis": codes(place.diagnosis) or None if place else None,
        "resembles": wording.sentence(place.diagnosis) or None if place else None,
    }


def pair_row(head: HeadDrift, pair: int) -> dict[str, Any]:
    """Return the row of a pair of a head."""
    return {
        "layer": head.layer,
        "head": head.head,
        "pair": pair,
        "wavelength": float(head.wavelength[pair]),
        "q_norm": float(head.q_norm[pair]),
        "k_norm": float(head.k_norm[pair]),
        "drift_rms": float(head.pair_rms[pair]),
    }


def _scores(heads: Sequence[HeadDrift]) -> dict[str, Any]:
    """Return how many scores heads have and how they change; nothing without heads."""
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


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
