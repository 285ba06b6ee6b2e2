"""The rows of a model's audit and their columns: of a run, the scores of a layer, a pair of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.audits import records
from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.layers import HeadDrift
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.runtime.columns import Column, Columns, Declare

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


of_run = Declare[ModelRun]()
of_layer = Declare[HeadScores]()
of_pair = Declare[PairDrift]()
_LAYER = "number of the layer, from 0"


class ModelColumns:
    """The columns that rows of every kind have."""

    schema = of_run.like(records.COLUMNS["schema"], lambda run: SCHEMA)
    model: str = of_run("name of the folder", lambda run: run.audit.folder.name)
    dtype: str = of_run(
        "number format of the weights and of the arithmetic, as transformers runs it",
        lambda run: run.shifted.dtype.name,
        shown=True,
    )
    device = of_run.like(
        records.COLUMNS["device"],
        lambda run: run.audit.device.label,
        shown=lambda run: run.audit.device.label != "cpu",
    )
    offset = of_run.like(records.COLUMNS["offset"], lambda run: run.shifted.offset, shown=True)


class RunColumns:
    """The columns of rows by dtype and offset alone."""

    model_type: str = of_run(
        "as config.json says", lambda run: str(run.audit.folder.config.get("model_type") or "none")
    )
    transformers: str = of_run("version that ran the model", lambda run: run.versions["transformers"])
    torch: str = of_run("version that ran the model", lambda run: run.versions["torch"])
    source: str = of_run("tokens: random, ids, or the name of a text", lambda run: run.audit.tokens.source)
    seed: int | None = of_run(
        "seed of random tokens; empty where none was used", lambda run: run.audit.tokens.seed
    )
    tokens: int = of_run("how many tokens were read", lambda run: run.change.tokens)
    logits_rms: float = of_run(
        "RMS of the float64 logits at offset 0", lambda run: run.mean(run.change.reference_squares)
    )
    change_max: float = of_run(
        "largest |logit at the offset - logit at offset 0|",
        lambda run: run.change.defined(run.change.largest),
        shown=True,
        leaves=4,
    )
    change_rms: float = of_run(
        "its root mean square over all tokens and the vocabulary",
        lambda run: run.change.rms(run.change.squares),
        shown=True,
    )
    structural_max: float = of_run(
        "largest change of the logits of the float64 run", lambda run: run.change.structural_largest
    )
    structural_rms: float = of_run(
        "its root mean square", lambda run: run.mean(run.change.structural_squares), shown=True
    )
    precision_max: float = of_run(
        "largest difference between the change and that of the float64 run",
        lambda run: run.change.defined(run.change.precision_largest),
    )
    precision_rms: float = of_run(
        "its root mean square", lambda run: run.change.rms(run.change.precision_squares), shown=True
    )
    error_rms: float = of_run(
        "RMS of the logits at the offset minus those of the float64 run there; float32's is in the verdict",
        lambda run: run.change.rms(run.change.error_squares),
    )
    base_error_rms: float = of_run(
        "the same at offset 0", lambda run: run.change.rms(run.change.base_error_squares)
    )
    kl_mean: float = of_run(
        "mean KL(offset 0 || offset) of the next-token distributions, nats",
        lambda run: run.change.defined(run.change.kl_sum / max(run.change.tokens, 1)),
        unit="nats",
        shown=True,
        leaves=5,
    )
    kl_max: float = of_run(
        "its largest value", lambda run: run.change.defined(run.change.kl_largest), unit="nats"
    )
    top1_flips: int | None = of_run(
        "tokens whose most likely successor becomes another one",
        lambda run: None if run.change.nonfinite else run.change.flips,
        shown=True,
    )
    loss: float = of_run("mean next-token loss at offset 0, nats", unit="nats")
    loss_change: float = of_run(
        "what the shift adds to it", lambda run: run.shifted_loss - run.loss, unit="nats"
    )
    perplexity: float = of_run("exp(loss)", lambda run: _exp(run.loss), shown=True, leaves=3)
    perplexity_change: float = of_run(
        "what the shift adds to it", lambda run: _exp(run.shifted_loss) - _exp(run.loss), shown=True, leaves=7
    )
    score_drift_max: float | None = of_run(
        "largest change of a score after RoPE, in all layers; empty where q and k are not seen",
        lambda run: run.scores.drift_max if run.scores else None,
        unit="score",
    )
    score_drift_rms: float | None = of_run(
        "its root mean square",
        lambda run: run.scores.drift_rms if run.scores else None,
        unit="score",
        shown=True,
        leaves=6,
    )
    threshold: float = of_run("--threshold, in score units", unit="score")
    first_layer: int | None = of_run(
        "first layer in which some score changes by more than the threshold; empty where none does",
        lambda run: first_layer(run.shifted, run.threshold),
        shown=True,
    )
    rotation_excess: float | None = of_run(
        "the largest rotation error ÷ allowed of its layers; above 1 one is not that of config.json; "
        "empty where no q and k are seen before rotation",
    )
    diagnosis: str | None = of_run(
        "code of what is wrong with what the model holds, else of what explains the first layer whose "
        "rotation is not the config's (`ropeaudit list diagnoses`): a+b are two faults together, a|b "
        "explain equally much; empty where nothing is off",
        lambda run: codes(run.shifted.diagnosis) or None,
    )
    resembles: str | None = of_run(
        "the diagnosis as a sentence, with the layers where it holds",
        lambda run: wording.sentence(run.shifted.diagnosis) or None,
    )
    held: str | None = of_run(
        "buffers and factors that the model holds and its config does not build; empty where there are none",
        lambda run: ", ".join(one.name for one in run.shifted.held) or None,
    )
    layers_compared: int = of_run(
        "layers whose rotation was compared with that of config.json", lambda run: len(run.shifted.places)
    )
    decode_max: float | None = of_run(
        "largest |logit of decode with a cache, in a batch padded on the left, - logit of one pass|, in "
        "float64; empty where it was not compared",
        lambda run: run.shifted.decoded.change if run.shifted.decoded else None,
    )
    cause: str = of_run(
        "of the change: rounding, frequencies, learned positions, mask, other or none",
        lambda run: run.shifted.cause,
        shown=True,
    )
    verdict: str = of_run(
        "wrong_frequencies (what the model holds), wrong_rotation, wrong_decode (see diagnosis), inaccurate "
        "(float32 is not the float64 run), none, precision (float64 logits stay), structure (they change "
        "too), overflow",
        lambda run: run.shifted.word,
        shown=True,
    )


class LayerColumns:
    """The columns of rows by layer."""

    layer: int = of_layer(_LAYER, lambda one: one.heads[0].layer, shown=True)
    scores: int = of_layer("how many scores were compared, those that the mask shows", lambda one: one.count)
    reference_rms: float = of_layer(
        "RMS of the scores at offset 0, scaled, before softmax", unit="score", shown=True
    )
    score_drift_max: float = of_layer(
        "largest |score at the offset - score at offset 0|",
        lambda one: one.drift_max,
        unit="score",
        shown=True,
    )
    score_drift_rms: float = of_layer(
        "its root mean square", lambda one: one.drift_rms, unit="score", shown=True, leaves=6
    )
    score_drift_relative: float = of_layer(
        "score_drift_rms / reference_rms", lambda one: one.drift_relative, shown=True
    )
    rotation_excess: float | None = of_layer(
        "the largest rotation error ÷ allowed: above 1 the layer does not rotate as config.json says; empty "
        "where q and k are not seen before rotation, and after two layers that nothing explains",
        lambda one: one.places.excess if one.places else None,
        shown=True,
        leaves=1,
    )
    diagnosis: str | None = of_layer(
        "code of what explains that the layer's rotation is not the config's; empty where it is",
        lambda one: codes(one.places.diagnosis) or None if one.places else None,
        shown=True,
    )
    resembles: str | None = of_layer(
        "the diagnosis as a sentence",
        lambda one: wording.sentence(one.places.diagnosis) or None if one.places else None,
    )


class PairColumns:
    """The columns of rows by frequency pair."""

    layer: int = of_pair(_LAYER, lambda one: one.head.layer, shown=True)
    head: int = of_pair("number of the query head", lambda one: one.head.head, shown=True)
    pair: int = of_pair("number of the pair, from 0, the fastest first", shown=True)
    wavelength: float = of_pair(
        "tokens of a whole turn", lambda one: float(one.head.wavelength[one.pair]), unit="tokens", shown=True
    )
    q_norm: float = of_pair(
        "mean norm of the pair's chunk of q (frequency usage of arXiv 2410.06205)",
        lambda one: float(one.head.q_norm[one.pair]),
        shown=True,
    )
    k_norm: float = of_pair(
        "mean norm of its chunk of k", lambda one: float(one.head.k_norm[one.pair]), shown=True
    )
    drift_rms: float = of_pair(
        "RMS over all q and k, seen by the mask or not, of what the pair adds to a score's change",
        lambda one: float(one.head.pair_rms[one.pair]),
        unit="score",
        shown=True,
    )


COMMON = of_run.columns(ModelColumns)
OWN: dict[str, Columns[Any]] = {
    "summary": of_run.columns(RunColumns),
    "layer": of_layer.columns(LayerColumns),
    "pair": of_pair.columns(PairColumns),
}
KINDS = tuple(OWN)
COLUMNS: dict[str, dict[str, Column[Any]]] = {kind: {**COMMON, **own} for kind, own in OWN.items()}
