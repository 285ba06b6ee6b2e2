"""Heads that look at one distance: q and k the same at every token, so that RoPE alone decides.

diagonal: q = k = psi; the score Σ |psi_i|² cos(t theta_i) is largest at distance t = 0.
previous: k_i is psi_i rotated by theta_i, one token; the score is largest at distance 1.
psi lives on the fastest frequencies, for these distinguish neighbours, with the same size on each.
Letters: g key-value heads, d head_dim, f fast pairs, t distances in tokens.
Source: Round and Round We Go!, arXiv 2410.06205, which finds such heads in a trained model.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, FloatArray
from ropeaudit.errors import UsageError
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting

BEHIND = {"diagonal": 0, "previous": 1}  # kind -> distance of the token that a head looks at
FEWEST = 4  # pairs, where there are so many; else the fastest quarter of them
TOKENS = 256  # among at least so many on both sides
WEIGHT = 0.95  # the right token's, of the exact softmax; rounding psi to 16 bits leaves 0.9 of it
LARGEST_SCORE = 1024.0  # beyond it 16-bit scores cannot distinguish neighbours


def vectors(kind: str, kv_heads: int, seq_len: int, setting: RopeSetting, seed: int) -> tuple[Array, Array]:
    """Return q and k of any token of each key-value head; `seed` chooses the phases of psi.

    Shapes: -> two of (g, d). Raises: UsageError if the setting cannot make such a head.
    """
    speeds = frequencies(setting, "inverse_power", FP64)
    fast = np.argsort(-speeds, kind="stable")[: max(speeds.size // 4, min(FEWEST, speeds.size))]
    size = _size(kind, speeds[fast], max(seq_len, TOKENS), setting)
    phases = np.random.default_rng(seed).uniform(0.0, 2 * np.pi, (kv_heads, fast.size))
    sides = []
    for by in (0.0, BEHIND[kind] * speeds[fast]):
        x = np.zeros((kv_heads, setting.head_dim))
        for part, of in zip(split_pairs(x, setting), (np.cos, np.sin), strict=True):
            part[:, fast] = size * of(phases + by)
        sides.append(x)
    return sides[0], sides[1]


def _size(kind: str, speeds: FloatArray, tokens: int, setting: RopeSetting) -> float:
    """Return |psi_i| with which the softmax gives `WEIGHT` to the right one of all tokens on both sides."""
    t = np.arange(1.0, tokens + 1.0)
    # in units of |psi_i|² * scale
    gaps = sum((1.0 - np.cos(t * speed) for speed in speeds), np.zeros_like(t))
    largest_sum, low, high = 1.0 / WEIGHT - 1.0, 0.0, LARGEST_SCORE / max(speeds.size, 1)
    if 2.0 * np.exp(-high * gaps).sum() > largest_sum:
        raise UsageError(
            f"--qk {kind} needs fast frequencies to tell {tokens} tokens apart, and the {speeds.size} "
            f"fastest of rotary_dim {setting.rotary_dim} do not; give a larger --rotary-dim or --qk gaussian"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if 2.0 * np.exp(-middle * gaps).sum() <= largest_sum else (middle, high)
    return float(np.sqrt(high / setting.scale) / attention_factor(setting.scaling))
