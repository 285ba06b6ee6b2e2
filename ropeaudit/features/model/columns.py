"""The rows of a model's audit and their columns: of a run, the scores of a layer, a pair of a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.layers import HeadDrift
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.runtime.columns import table

if TYPE_CHECKING:
    from ropeaudit.features.model.logits import Change
    from ropeaudit.recognition.verification import Places

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ModelRun:
    """A model in a dtype at an offset, beside what was audited and with which options."""

    audit: ModelAudit
    shifted: Shifted
    threshold: float
    versions: Mapping[str, str]

    @property
    def change(self) -> Change:
        """The change of the logits."""
        return self.shifted.change

    @property
    def loss(self) -> float:
        """The mean next-token loss at offset 0, nats."""
        return self.change.defined(self.change.loss_sum / self._scored)

    @property
    def shifted_loss(self) -> float:
        """The mean next-token loss at the offset, nats."""
        return self.change.defined(self.change.shifted_loss_sum / self._scored)

    @property
    def _scored(self) -> int:
        return max(len(self.audit.tokens.ids) - 1, 1)

    @property
    def rotation_excess(self) -> float | None:
        """The largest of its layers; nan is larger than any, None where none is seen."""
        sizes = [one.excess for one in self.shifted.places.values()]
        return max(sizes, key=lambda size: math.inf if math.isnan(size) else size, default=None)

    @property
    def scores(self) -> HeadScores | None:
        """The scores of all layers, None where q and k are not seen."""
        return HeadScores(self.shifted.heads) if self.shifted.heads else None

    def mean(self, squares: float) -> float:
        """Return the root of a mean over all logits, however many of them are not finite."""
        return math.sqrt(squares / max(self.change.count, 1))


@dataclass(frozen=True, slots=True)
class HeadScores:
    """The scores of some heads, at least one. places: where the worst rotated pair of a layer stands."""

    heads: Sequence[HeadDrift]
    places: Places | None = None

    @property
    def count(self) -> int:
        """How many scores there are."""
        return sum(head.scores for head in self.heads)

    @property
    def drift_max(self) -> float:
        """The largest change of a score."""
        return float(np.max([head.largest for head in self.heads]))

    @property
    def drift_rms(self) -> float:
        """The RMS change of the scores."""
        return math.sqrt(sum(head.squares for head in self.heads) / self.count)

    @property
    def reference_rms(self) -> float:
        """The RMS of the scores at offset 0."""
        return math.sqrt(sum(head.reference_squares for head in self.heads) / self.count)

    @property
    def drift_relative(self) -> float:
        """The RMS change over the RMS."""
        return self.drift_rms / self.reference_rms if self.reference_rms else math.nan


@dataclass(frozen=True, slots=True)
class PairDrift:
    """A frequency pair of a head."""

    head: HeadDrift
    pair: int


def first_layer(one: Shifted, threshold: float) -> int | None:
    """Return the first layer in which some score changes by more than the threshold."""
    over = [head.layer for head in one.heads if not head.largest <= threshold]
    return min(over) if over else None


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _layers(run: ModelRun) -> Iterable[HeadScores]:
    heads, places = run.shifted.heads, run.shifted.places
    numbers = dict.fromkeys(head.layer for head in heads)
    return (HeadScores([one for one in heads if one.layer == n], places.get(n)) for n in numbers)


def _pairs(run: ModelRun) -> Iterable[PairDrift]:
    return (PairDrift(head, pair) for head in run.shifted.heads for pair in range(head.pair_rms.size))


def common(one: ModelRun) -> dict[str, Any]:
    """Return the row of what rows of every kind have."""
    return {
        "schema": SCHEMA,
        "model": one.audit.folder.name,
        "dtype": one.shifted.dtype.name,
        "device": one.audit.device.label,
        "offset": one.shifted.offset,
    }


def summary_row(one: ModelRun) -> dict[str, Any]:
    """Return the row of a model in a dtype at an offset."""
    return {
        "model_type": str(one.audit.folder.config.get("model_type") or "none"),
        "transformers": one.versions["transformers"],
        "torch": one.versions["torch"],
        "source": one.audit.tokens.source,
        "seed": one.audit.tokens.seed,
        "tokens": one.change.tokens,
        "logits_rms": one.mean(one.change.reference_squares),
        "change_max": one.change.defined(one.change.largest),
        "change_rms": one.change.rms(one.change.squares),
        "structural_max": one.change.structural_largest,
        "structural_rms": one.mean(one.change.structural_squares),
        "precision_max": one.change.defined(one.change.precision_largest),
        "precision_rms": one.change.rms(one.change.precision_squares),
        "error_rms": one.change.rms(one.change.error_squares),
        "base_error_rms": one.change.rms(one.change.base_error_squares),
        "kl_mean": one.change.defined(one.change.kl_sum / max(one.change.tokens, 1)),
        "kl_max": one.change.defined(one.change.kl_largest),
        "top1_flips": None if one.change.nonfinite else one.change.flips,
        "loss": one.loss,
        "loss_change": one.shifted_loss - one.loss,
        "perplexity": _exp(one.loss),
        "perplexity_change": _exp(one.shifted_loss) - _exp(one.loss),
        "score_drift_max": one.scores.drift_max if one.scores else None,
        "score_drift_rms": one.scores.drift_rms if one.scores else None,
        "threshold": one.threshold,
        "first_layer": first_layer(one.shifted, one.threshold),
        "rotation_excess": one.rotation_excess,
        "diagnosis": codes(one.shifted.diagnosis) or None,
        "resembles": wording.sentence(one.shifted.diagnosis) or None,
        "held": ", ".join(one.name for one in one.shifted.held) or None,
        "layers_compared": len(one.shifted.places),
        "decode_max": one.shifted.decoded.change if one.shifted.decoded else None,
        "cause": one.shifted.cause,
        "verdict": one.shifted.word,
    }


def layer_row(one: HeadScores) -> dict[str, Any]:
    """Return the row of the scores of a layer."""
    return {
        "layer": one.heads[0].layer,
        "scores": one.count,
        "reference_rms": one.reference_rms,
        "score_drift_max": one.drift_max,
        "score_drift_rms": one.drift_rms,
        "score_drift_relative": one.drift_relative,
        "rotation_excess": one.places.excess if one.places else None,
        "diagnosis": codes(one.places.diagnosis) or None if one.places else None,
        "resembles": wording.sentence(one.places.diagnosis) or None if one.places else None,
    }


def pair_row(one: PairDrift) -> dict[str, Any]:
    """Return the row of a pair of a head."""
    return {
        "layer": one.head.layer,
        "head": one.head.head,
        "pair": one.pair,
        "wavelength": float(one.head.wavelength[one.pair]),
        "q_norm": float(one.head.q_norm[one.pair]),
        "k_norm": float(one.head.k_norm[one.pair]),
        "drift_rms": float(one.head.pair_rms[one.pair]),
    }


KINDS: dict[str, tuple[Callable[[ModelRun], Iterable[Any]], Callable[[Any], dict[str, Any]]]] = {
    "summary": (lambda run: [run], summary_row),
    "layer": (_layers, layer_row),
    "pair": (_pairs, pair_row),
}
COLUMNS = {kind: table("model", f"model-{kind}") for kind in KINDS}


def rows(run: ModelRun, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind."""
    items, row = KINDS[kind]
    return [common(run) | row(item) for item in items(run)]
