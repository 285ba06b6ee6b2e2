"""Which offsets are likely to drift most, estimated from the angles alone: no score is formed.

Scores of a sequence depend on how the errors of its angles differ from position to position. Their variance
over the positions of the sequence, summed over the pairs, ranks offsets as RMS drift does, and costs
a few operations an angle where drift costs a product of matrices. Where positions are rounded, drift goes up
and down with them, and all that differs on one level is how q and k happen to be: there its edges are named.
Letters: s positions, p pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.reference import exact_scores
from ropeaudit.subjects.emulated import Emulated

_ANGLES = 2**24  # looked at in one guess
_ROWS = 2**13  # positions at once
_SHORTEST = 4  # tokens: where every second position is held, and from there on
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


def beside_binade(fmt: Format, seq_len: int, low: int, high: int, count: int) -> list[int]:
    """Return up to `count` offsets, from low to high, beside the power of two up to which high + 1 reaches.

    There the positions that `fmt` holds become twice as far apart, and drift grows. From there on it goes by
    the offset modulo twice their distance, so that what fails later is likely to fail in the first such
    period, or in the last sequences before it, some of whose positions lie there already. Named are the two
    offsets in step with high + 1, the nearest ones, and some all over these; none where `fmt` holds all
    positions.
    """
    power = 1 << (high + seq_len).bit_length() - 1
    period = 2 * power >> (fmt.precision - 1)
    if period < _SHORTEST:
        return []
    in_step = power + (high + 1 - power) % period
    nearest = range(power - count // 4, power + count // 4)
    window = range(power - seq_len + 1, power + period)
    spread = window[:: max(1, 2 * len(window) // max(1, count))]
    named = dict.fromkeys([in_step - period, in_step, *nearest, *spread])
    return [offset for offset in named if low <= offset <= high][:count]


def in_step(
    drifts: Mapping[int, float], fmt: Format, seq_len: int, low: int, high: int, count: int
) -> list[int]:
    """Return up to `count` offsets, from low to high, in step with those that were measured to drift most.

    Between two powers of two, the positions that `fmt` holds lie at one distance, and what their rounding
    does to a sequence goes by its offset modulo twice that distance; what else differs is small beside it.
    drifts: offset -> RMS drift measured there. None is named where `fmt` holds all positions.
    """
    worst: dict[tuple[int, int, int], float] = {}
    for offset, drift in drifts.items():
        power = 1 << max(offset, 1).bit_length() - 1
        period = 2 * power >> (fmt.precision - 1)
        if period >= _SHORTEST and offset + seq_len <= 2 * power and drift == drift:
            place = power, period, offset % period
            worst[place] = max(drift, worst.get(place, 0.0))
    named: list[int] = []
    for power, period, phase in sorted(worst, key=lambda place: (-worst[place], place)):
        first, last = max(low, power), min(high, 2 * power - seq_len)
        steps = range(first + (phase - first) % period, last + 1, period)
        named += [offset for offset in steps if offset not in drifts][: count - len(named)]
    return named


def _spread(subject: Emulated, seq_len: int, first: int, last: int) -> Array:
    """Return the circular variance of angle errors over a sequence, summed over pairs.

    That is 1 - |mean of e^(i error)|², which grows no more once an error is a full turn, as drift does.
    Shapes: -> (last - first,).
    """
    positions = np.arange(first, last + seq_len - 1, dtype=np.int64)
    theta = 2 * np.pi * exact_scores.rotations_per_token(subject.setting)[0]
    with np.errstate(all="ignore"):
        errors = subject.angles(positions).astype(np.float64)
        errors -= positions[:, None] * theta
        if subject.axes is not None:
            errors *= subject.axes.moved()
        errors -= errors.mean(axis=0)
        turned, sines = 2 * np.sin(errors / 2) ** 2, np.sin(errors)
        squares = _windows(turned.sum(axis=1), seq_len) / seq_len
        turned, sines = _windows(turned, seq_len) / seq_len, _windows(sines, seq_len) / seq_len
        variance = 2 * squares - np.einsum("np,np->n", turned, turned) - np.einsum("np,np->n", sines, sines)
    return np.where(np.isfinite(variance), variance, np.inf)


def _windows(x: Array, size: int) -> Array:
    """Return sums of `size` rows after one another. Shapes: (n, ...) -> (n - size + 1, ...)."""
    sums = np.cumsum(x, axis=0)
    sums[size:] -= sums[:-size].copy()
    return sums[size - 1 :]
