"""What a module's tables should be: the exact frequencies of its columns, and where those are known from.

They are those of what was given explicitly, else those of the setting that explains the buffers, or else
those that the module shows as it was built.
Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.features.module.expected import Expected
from ropeaudit.features.module.outputs import Places
from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.stored_table import recovered
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.forwards import PROBE, Fitted

Array = NDArray[np.float64]
Known = tuple[str, Array, Array]  # what holds them, frequencies, a relative tolerance of each
CHUNK = 4096  # positions of a call
TOGETHER = 16384  # positions that one call takes, so that what depends on the length is of one length
AS_BUILT = "the frequencies that it shows as built"
_SNAP = 2.0**-7  # relative: what casts to bfloat16 leave of frequencies and of positions
_ONE = 0.02  # a length that near 1 is no attention factor but rounding
_STILL = 1e-9  # radians per token


@dataclass(frozen=True, slots=True)
class Exact:
    """Frequencies (c,), attention factors (c,), what they are in words, and a relative tolerance (c,)."""

    theta: Array
    factor: Array
    words: str
    tolerance: Array


def shown(module: Any, fitted: Fitted[Places], n: int, dtype: Any) -> list[Array]:
    """Return frequencies and factors, (2, c), that a module shows at its first positions, for each call."""
    results = []
    for call in fitted.calls:
        rows = min(n, TOGETHER)  # of one length, where frequencies depend on it
        planes = fitted.places.planes(call.run(module, 0, rows, dtype), rows)
        points = fitted.places.points([plane[:CHUNK] for plane in planes])
        factor = np.median(np.abs(points[:PROBE]), axis=0)
        factor[np.abs(factor - 1) < _ONE] = 1.0
        results.append(np.stack([recovered(points / factor), factor]))
    return results


def exact(seen: Array, pool: Sequence[tuple[str, Array, Array]]) -> Exact:
    """Return what the columns of a call should be. seen: frequencies and factors, (2, c).

    pool: names, frequencies of buffers and tolerances; they count where all that rotate are near one of one.
    """
    theta, factor = seen
    moving = np.abs(theta) > _STILL
    for words, values, tolerance in pool:
        usable = np.abs(values) > 0
        listed, near = values[usable], tolerance[usable]
        if not listed.size:
            continue
        wrapped = np.abs((listed + math.pi) % (2 * math.pi) - math.pi)  # positions are whole
        index = np.abs(np.abs(theta)[:, None] - wrapped).argmin(axis=1)
        off = np.abs(np.abs(theta) - wrapped[index])
        if np.all((off <= _SNAP * wrapped[index] + 2.0**-20) | ~moving):
            turns = np.where(np.abs(theta - listed[index]) % (2 * math.pi) < math.pi / 2, 1.0, -1.0)
            signs = np.where(np.abs(listed[index]) <= math.pi, np.sign(theta), turns)
            return Exact(
                np.where(moving, signs * listed[index], 0.0), factor, words, np.where(moving, near[index], 0)
            )
    return Exact(theta, factor, AS_BUILT, np.zeros_like(theta))


def explicit(seen: Array, expected: Expected, axes: bool) -> Exact | None:
    """Return what the columns of a call should be by what was given; None where that is about others.

    Columns that are near none of its frequencies are matched with them by their order, from fast to slow,
    where there are as many. axes: whether the call has several, whose frequencies have no one order.
    """
    theta, factor = seen
    fast_first = speeds(seen)
    pool = [_known(label, setting) for label, setting in expected.settings(fast_first.size)]
    near = exact(seen, pool)
    if near.words != AS_BUILT:
        return near
    same = [one for one in pool if one[1].size == fast_first.size]
    if axes or not same:
        return None
    words, values, tolerance = same[0]
    moving = np.abs(theta) > _STILL
    order = np.argsort(-values)
    rank = np.searchsorted(-fast_first, -np.abs(theta)).clip(max=fast_first.size - 1)
    values, tolerance = values[order][rank], tolerance[order][rank]
    signed = np.sign(theta) * values
    return Exact(np.where(moving, signed, 0.0), factor, words, np.where(moving, tolerance, 0))


def speeds(seen: Array) -> Array:
    """Return the frequencies that a call shows, each once, from fast to slow; without those that are 0."""
    theta = np.abs(seen[0])
    return np.asarray(np.unique(theta[theta > _STILL])[::-1])


def _known(label: str, setting: RopeSetting) -> Known:
    theta = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
    return label, theta, hypotheses.tolerance(setting)
