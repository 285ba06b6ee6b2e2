"""What the rows of a model's audit are of: a run, the scores of some heads, a head, a frequency pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.layers import HeadDrift

if TYPE_CHECKING:
    from ropeaudit.features.model.logits import Change
    from ropeaudit.recognition.verification import Places


@dataclass(frozen=True, slots=True)
class Run:
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
        return max((one.excess for one in self.shifted.places.values()), key=_size, default=None)

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


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value


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


def drift_pair(head: HeadDrift) -> int | None:
    """Return the pair that adds most to the change."""
    squares = float(np.sum(head.pair_rms**2))
    return int(np.argmax(head.pair_rms)) if head.pair_rms.size and squares > 0 else None


def drift_share(head: HeadDrift) -> float | None:
    """Return the share of that pair in the mean squares of all."""
    pair = drift_pair(head)
    return None if pair is None else float(head.pair_rms[pair] ** 2 / float(np.sum(head.pair_rms**2)))


def usage_pair(head: HeadDrift) -> int | None:
    """Return the pair with the largest product of mean norms."""
    usage = head.q_norm * head.k_norm
    return int(np.argmax(usage)) if usage.size else None
