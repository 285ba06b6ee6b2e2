"""Rows of attention: the softmax of scores, and how a subject's weights differ from the exact ones.

Scores that the mask hides are -inf, so that their weight is 0. Weights and statistics are float64.
Letters: r rows (queries), c columns (keys).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to

# beta(entropy), highest power first. Source: softmax is not enough, arXiv 2410.01104.
TEMPERATURE = (-0.037, 0.481, -2.3, 4.917, -1.791)


class Rounding(NamedTuple):
    """The formats of a softmax: every step is rounded to `computed`, the weights then to `stored`."""

    computed: Format
    stored: Format


@np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
def softmax(scores: Array, rounding: Rounding | None = None) -> tuple[Array, Array]:
    """Return the weights of every row and their natural logarithms; -inf where a weight is 0.

    Without `rounding` in float64. Else the scores, score minus largest of the row, exp, sum and quotient are
    rounded once each to `computed`, and the weights to `stored`; the sum is formed in float64 first, for
    kernels accumulate wider than they store. Shapes: (r, c) -> two of (r, c).
    """
    if rounding is None:
        logs = scores - scores.max(axis=1, keepdims=True)
        weights = np.exp(logs)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        return weights, np.subtract(logs, np.log(total), out=logs)
    gone = np.isneginf(scores)

    def once(x: Array) -> Array:
        return round_to(x, rounding.computed).astype(np.float64)

    stored = once(np.where(gone, 0.0, scores))
    largest = np.where(gone, -np.inf, stored).max(axis=1, keepdims=True)
    powers = once(np.where(gone, 0.0, np.exp(once(np.where(gone, 0.0, stored - largest)))))
    total = once(powers.sum(axis=1, keepdims=True))
    weights = round_to(once(powers / total), rounding.stored).astype(np.float64)
    return weights, np.log(weights)


def entropies(weights: Array, logs: Array) -> Array:
    """Return -Σ p log(p) of every row, with 0 log 0 = 0. Shapes: two of (r, c) -> (r,). Units: nats."""
    result: Array = -np.einsum("rc,rc->r", weights, np.maximum(logs, -1e300))  # 0 * -inf is nan
    return result


def beta(entropy: Array) -> Array:
    """Return the inverse temperature for rows of some entropy, nats; 1 up to 0.5 and from 5.95 on.

    Source: softmax is not enough, arXiv 2410.01104.
    """
    return np.where(entropy > 0.5, np.maximum(np.polyval(TEMPERATURE, entropy), 1.0), 1.0)


@np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
def adapted(scores: Array, weights: Array, rounding: Rounding | None = None) -> Array:
    """Return the weights at the adaptive temperature of each row's own entropy. Shapes: all (r, c)."""
    sharper = beta(entropies(weights, np.log(weights + 1e-9)))
    return softmax(scores * sharper[:, None], rounding)[0]


@dataclass(slots=True)
class Attention:
    """Sums and maxima over rows and heads; what they become in a record is `columns`.

    nonfinite: rows that hold a score or weight that is not finite. right_rows: rows with a right token.
    """

    rows: int = 0
    nonfinite: int = 0
    tv_max: float = 0.0
    tv: float = 0.0
    adaptive_tv: float = 0.0
    kl_max: float = 0.0
    flips: int = 0
    entropy_reference: float = 0.0
    entropy: float = 0.0
    weight_reference: float = 0.0
    weight: float = 0.0
    right: int = 0
    right_rows: int = 0
    d: float = 0.0
    d_logit: float = 0.0

    def merge(self, later: Attention) -> None:
        """Take in what was gathered over later rows."""
        for name in (field.name for field in fields(self)):
            mine, other = getattr(self, name), getattr(later, name)
            setattr(self, name, max(mine, other) if name.endswith("_max") else mine + other)

    def columns(self) -> dict[str, float | None]:
        """Return the attention columns of a record; all nan where a row is nonfinite."""
        rows = max(self.rows, 1)
        results = {
            "attention_tv_max": self.tv_max,
            "attention_tv_mean": self.tv / rows,
            "attention_kl_max": self.kl_max,
            "top1_flips": self.flips,
            "entropy_reference": self.entropy_reference / rows,
            "entropy": self.entropy / rows,
            "weight_reference": self.weight_reference / rows,
            "weight": self.weight / rows,
            "right_token": self.right / self.right_rows if self.right_rows else None,
            "attention_adaptive_tv_mean": self.adaptive_tv / rows,
            "attention_d": self.d,
            "attention_d_logit": self.d_logit,
        }
        return dict.fromkeys(results, math.nan) if self.nonfinite else results


class ReferenceRows:
    """The exact scores of some rows, their weights, and what is needed of them again and again.

    slack: scores nearer than that to the largest of a row tie with it.
    right: the column that each row is meant to attend to, -1 for none; None where no row is.
    """

    @np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
    def __init__(self, scores: Array, slack: float = 0.0, right: NDArray[np.int64] | None = None) -> None:
        self.scores, self.right = scores, right
        self.weights, self.logs = softmax(scores)
        self.adapted = adapted(scores, self.weights)
        self.first = scores >= scores.max(axis=1, keepdims=True) - slack
        self.gone = np.isneginf(scores).sum(axis=1)
        self.entropy = float(entropies(self.weights, self.logs).sum())
        self.weight = float(self.weights.max(axis=1).sum())

    @np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
    def compare(self, scores: Array, rounding: Rounding | None = None) -> tuple[Attention, Array]:
        """Compare a subject's scores with the exact ones; return the statistics and its weights."""
        result = Attention(rows=len(scores), entropy_reference=self.entropy, weight_reference=self.weight)
        weights, logs = softmax(scores, rounding)
        fine = np.isfinite(self.weights.sum(axis=1) + weights.sum(axis=1))
        fine &= np.isneginf(scores).sum(axis=1) == self.gone
        result.nonfinite = int(fine.size - fine.sum())
        if result.nonfinite:
            return result, weights
        distances = _total_variation(weights, self.weights)
        result.tv_max, result.tv = float(distances.max()), float(distances.sum())
        result.adaptive_tv = float(_total_variation(adapted(scores, weights, rounding), self.adapted).sum())
        result.kl_max = float(divergences(self.weights, self.logs, weights, logs).max())
        largest = weights.max(axis=1)
        result.flips = int((np.where(self.first, weights, -1.0).max(axis=1) < largest).sum())
        result.entropy, result.weight = float(entropies(weights, logs).sum()), float(largest.sum())
        if self.right is not None:
            rows = np.flatnonzero(self.right >= 0)
            own = weights[rows, self.right[rows]]
            alone = (weights[rows] >= own[:, None]).sum(axis=1) == 1  # no other weight is as large
            result.right, result.right_rows = int(alone.sum()), int(rows.size)
        return result, weights


@np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
def divergences(exact: Array, exact_logs: Array, weights: Array, logs: Array) -> Array:
    """Return Σ p* log(p*/p) + Σ p - Σ p* of every row, without cancellation where p is near p*.

    That is KL(p*||p) where both add up to 1. Rounded weights do not: then it is the generalised divergence,
    which is 0 for p = p* alone, while Σ p* log(p*/p) may be below 0. inf where a weight vanished that is not
    0. Shapes: all (r, c) -> (r,). Units: nats.
    """
    ratio = logs - exact_logs
    np.copyto(ratio, 0.0, where=exact + weights == 0)
    terms = np.expm1(ratio)
    terms -= ratio
    terms *= exact
    far = np.abs(ratio) > 0.5
    if far.any():
        np.copyto(terms, weights - exact - exact * ratio, where=far)
    result: Array = np.maximum(terms.sum(axis=1), 0.0)
    return result


def _total_variation(weights: Array, others: Array) -> Array:
    """Return the total variation Σ|p - p'|/2 of every row. Shapes: two of (r, c) -> (r,)."""
    difference = weights - others
    result: Array = np.abs(difference, out=difference).sum(axis=1) / 2
    return result
