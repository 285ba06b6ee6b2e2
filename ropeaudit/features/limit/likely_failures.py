"""Which offsets are likely to drift most, estimated from the angles alone: no score is formed.

Scores of a sequence depend on how the errors of its angles differ from position to position. Their variance
over the positions of the sequence, summed over the pairs, ranks offsets as RMS drift does, and costs
a few operations an angle where drift costs a product of matrices.
Letters: s positions, p pairs.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.reference import exact_scores
from ropeaudit.subjects.emulated import Emulated

_ANGLES = 2**24  # looked at in one guess
_ROWS = 2**13  # positions at once
_ABOUT = 0.985  # of a variance: 0.75 % of an RMS


def likeliest(subject: Emulated, seq_len: int, low: int, high: int, count: int) -> list[int]:
    """Return up to `count` offsets, from low to high, whose angles are the worst of their neighbourhood.

    Half of them are the lowest ones that are about as bad as high + 1, for that is where something fails; the
    others are the worst ones. Of a long range only its end is looked at. Neighbours share most of their
    positions: of s/2 of them the worst one is named. Offsets are in tokens.
    """
    if subject.setting.clipped or not subject.setting.pairs:
        return []
    low = max(low, high - _ANGLES // subject.setting.pairs)
    if high < low:
        return []
    parts = [
        _spread(subject, seq_len, start, min(start + _ROWS, high + 2))
        for start in range(low, high + 2, _ROWS)
    ]
    spreads, block = np.concatenate(parts), max(1, seq_len // 2)
    starts = range(0, spreads.size - 1, block)
    best = [start + int(spreads[start : min(start + block, spreads.size - 1)].argmax()) for start in starts]
    early = [index for index in best if spreads[index] >= _ABOUT * spreads[-1]][: count // 2]
    best.sort(key=lambda index: (-spreads[index], index))
    return [low + index for index in dict.fromkeys([*early, *best])][:count]


def _spread(subject: Emulated, seq_len: int, first: int, last: int) -> Array:
    """Return the variance of angle errors over a sequence, summed over pairs. Shapes: -> (last - first,)."""
    positions = np.arange(first, last + seq_len - 1, dtype=np.int64)
    theta = 2 * np.pi * exact_scores.rotations_per_token(subject.setting)[0]
    with np.errstate(all="ignore"):
        errors = subject.angles(positions).astype(np.float64)
        errors -= positions[:, None] * theta
        if subject.axes is not None:
            errors *= subject.axes.moved()
        errors -= errors.mean(axis=0)
        squares = np.einsum("np,np->n", errors, errors)
        sums = _windows(errors, seq_len)
        variance = (_windows(squares, seq_len) - np.einsum("np,np->n", sums, sums) / seq_len) / seq_len
    return np.where(np.isfinite(variance), variance, np.inf)


def _windows(x: Array, size: int) -> Array:
    """Return sums of `size` rows after one another. Shapes: (n, ...) -> (n - size + 1, ...)."""
    sums = np.cumsum(x, axis=0)
    sums[size:] -= sums[:-size].copy()
    return sums[size - 1 :]
