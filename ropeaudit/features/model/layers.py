"""q and k of every layer, as they come out of RoPE, and how far a shift moves their scores.

Letters: h heads, g key-value heads, s positions, d head_dim, p pairs. Scores are scaled, before softmax.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array


@dataclass(frozen=True, slots=True)
class LayerVectors:
    """q (h, s, d) and k (g, s, d) of a layer in float64, exactly as computed; visible (s, s) scores.

    before: q and k before rotation, where they were followed to attention.
    """

    q: Array
    k: Array
    scale: float
    visible: NDArray[np.bool_]
    before: tuple[Array, Array] | None = None


@dataclass(frozen=True, slots=True)
class RotatedPairs:
    """Where a layer's pairs of dims stand, and their frequencies (p,), radians per token.

    factor: what cos and sin are multiplied by. swapped: whether the second dim of a pair turns to the first.
    """

    start: int
    layout: str
    frequencies: Array
    factor: float = 1.0
    swapped: bool = False

    def split(self, x: Array) -> tuple[Array, Array]:
        """Return views of both dims of every pair. Shapes: (..., d) -> two of (..., p)."""
        p = self.frequencies.size
        part = x[..., self.start : self.start + 2 * p]
        both = (part[..., ::2], part[..., 1::2])
        if self.layout != "interleaved":
            both = (part[..., :p], part[..., p:])
        return both[::-1] if self.swapped else both

    def rotated(self, x: Array, distance: int) -> Array:
        """Return x, moved on by a distance. Shapes: (h, s, d) -> (h, s, d)."""
        cos, sin = np.cos(distance * self.frequencies), np.sin(distance * self.frequencies)
        later = x.copy()
        (a, b), (first, second) = self.split(x), self.split(later)
        first[...], second[...] = a * cos - b * sin, b * cos + a * sin
        return later

    def rotated_back(self, x: Array) -> Array:
        """Return x as it was before RoPE at positions 0 ... s-1. Shapes: (h, s, d) -> (h, s, d)."""
        angles = np.arange(x.shape[-2])[:, None] * self.frequencies
        cos, sin = np.cos(angles) / self.factor, np.sin(angles) / self.factor
        x_before = x.copy()
        (a, b), (first, second) = self.split(x), self.split(x_before)
        first[...], second[...] = a * cos + b * sin, b * cos - a * sin
        return x_before

    def arranged(self, x: Array, layout: str) -> Array:
        """Return x with the rotated dims first, in a layout; scores stay. Shapes: (h, s, d) -> (h, s, d)."""
        dims = np.arange(x.shape[-1])
        a, b = self.split(dims.astype(np.float64))
        rotated = np.stack([a, b], -1).reshape(-1) if layout == "interleaved" else np.concatenate([a, b])
        return x[..., np.concatenate([rotated, np.setdiff1d(dims, rotated)]).astype(int)]


NO_PAIRS = RotatedPairs(0, "half", np.zeros(0))


def longer_queries(both: Iterable[tuple[LayerVectors, LayerVectors]]) -> bool:
    """Return whether a shift multiplies queries: in the first layer that changes, and its keys stay as long.

    RoPE leaves lengths; a temperature that grows with the position does not. 1e-9: far above rounding of
    float64.
    """
    for base, shifted in both:
        with np.errstate(invalid="ignore"):
            lengths = [[np.linalg.norm(x, axis=-1) for x in (one.q, one.k)] for one in (base, shifted)]
            far = [
                bool((np.abs(b - a) > 1e-9 * np.abs(a).max()).any()) for a, b in zip(*lengths, strict=True)
            ]
        if any(far):
            return far == [True, False]
    return False


@dataclass(frozen=True, slots=True)
class HeadDrift:
    """What a shift does to the scores of a head, and which pairs it uses and suffers in.

    q_norm, k_norm: mean norm of every pair's chunk (p,), the frequency usage of arXiv 2410.06205.
    pair_rms: RMS over all q and k of what each pair adds to the change (p,).
    """

    layer: int
    head: int
    scores: int
    largest: float
    squares: float
    reference_squares: float
    q_norm: Array
    k_norm: Array
    pair_rms: Array
    wavelength: Array

    @property
    def rms(self) -> float:
        """RMS change of the scores."""
        return float(np.sqrt(self.squares / max(self.scores, 1)))


def drifts(layer: int, base: LayerVectors, shifted: LayerVectors, pairs: RotatedPairs) -> list[HeadDrift]:
    """Compare a layer's scores before and after a shift, head by head, in float64."""
    head_drifts = []
    heads, groups = base.q.shape[0], base.k.shape[0]
    with np.errstate(invalid="ignore", over="ignore"):
        for head in range(heads):
            group = head * groups // heads
            q, k, rotated_q, rotated_k = base.q[head], base.k[group], shifted.q[head], shifted.k[group]
            reference = np.where(base.visible, q @ k.T, 0.0) * base.scale
            change = (
                np.where(base.visible, (rotated_q - q) @ rotated_k.T + q @ (rotated_k - k).T, 0) * base.scale
            )
            norms = [np.hypot(*pairs.split(x)).mean(axis=0) for x in (q, k)]
            head_drifts.append(
                HeadDrift(
                    layer,
                    head,
                    int(base.visible.sum()),
                    float(np.abs(change).max()),
                    float(np.sum(change**2)),
                    float(np.sum(reference**2)),
                    norms[0],
                    norms[1],
                    _by_pair(q, k, rotated_q, rotated_k, pairs) * base.scale,
                    _wavelength(pairs.frequencies),
                )
            )
    return head_drifts


def _by_pair(q: Array, k: Array, rotated_q: Array, rotated_k: Array, pairs: RotatedPairs) -> Array:
    """Return the RMS, over all q and k, of every pair's part of the change of q·k. Shapes: (s, d) -> (p,).

    The change (q' - q)·k' + q·(k' - k) is a product of 4 columns, whose norm their Gram matrices tell.
    """
    parts = [pairs.split(x) for x in (rotated_q - q, q, rotated_k, rotated_k - k)]
    left, right = (np.stack([*parts[i], *parts[i + 1]], axis=-1).transpose(1, 2, 0) for i in (0, 2))
    grams = (left @ left.transpose(0, 2, 1)) * (right @ right.transpose(0, 2, 1))
    squares = np.maximum(grams.sum(axis=(1, 2)), 0.0)
    return np.asarray(np.sqrt(squares) / max(q.shape[0], 1))


def _wavelength(frequencies: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(2 * np.pi / frequencies)
