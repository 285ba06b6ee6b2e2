"""What stored frequencies or tables do to scores by themselves: the drift expected of random q and k.

Letters: n positions, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance


def drifts(dump: Dump, setting: RopeSetting, far: int = FAR) -> tuple[float | None, float | None]:
    """Return the drift over `NEAR` causal tokens, and at a distance of `far`."""
    if dump.frequencies is None:  # a table has no further rows
        return _sequence(dump, setting), None
    return _sequence(dump, setting), float(_at(dump.frequencies, setting, [far])[0])


def _sequence(dump: Dump, setting: RopeSetting) -> float | None:
    """Return the RMS over distances below `NEAR`, each as often as in a causal sequence."""
    rows = NEAR if dump.cos is None else min(NEAR, len(dump.cos))
    if rows < 2:
        return None
    if dump.cos is not None:
        points: Any = (dump.cos + 1j * (0 if dump.sin is None else dump.sin))[:rows]
        exact = _exact(np.arange(rows, dtype=np.float64), setting)
        squares = 0.0
        for m in range(rows):
            product = points[m] * np.conj(points[: m + 1])
            squares += float(np.sum(np.abs(product - exact[m] * np.conj(exact[: m + 1])) ** 2))
        mean = squares / (rows * (rows + 1) / 2) / setting.pairs
        return float(_share(np.float64(mean), setting))
    if dump.frequencies is None:
        return None
    each, weights = _at(dump.frequencies, setting, range(rows)), rows - np.arange(rows)
    return math.sqrt(float(np.sum(weights * each**2)) / float(weights.sum()))


def _at(frequencies: Array, setting: RopeSetting, distances: Sequence[int]) -> Array:
    """Return the expected RMS drift of scores at some distances, over the RMS of the exact scores.

    For independent Gaussian q and k, a pair rotated by D theta' instead of D theta adds |e^(iD theta') -
    e^(iD theta)|² to the mean square, and every other dim nothing. Without rounding of q, k, cos or sin.
    Shapes: frequencies (p,), distances (n,) -> (n,).
    """
    at = np.array(distances, dtype=np.float64)
    exact = _exact(at, setting)
    factor = np.abs(exact)  # once in the table of q and once in that of k
    with np.errstate(invalid="ignore", over="ignore"):  # what is stored may be inf, and then it is nan
        rotated = factor**2 * np.exp(1j * np.mod(at[:, None] * frequencies, 2 * math.pi))
    means = np.mean(np.abs(rotated - factor * exact) ** 2, axis=1)
    return np.asarray(_share(means, setting))


def _share(mean_square: Any, setting: RopeSetting) -> Any:
    """Return the RMS drift relative to that of exact scores, with all dims counted."""
    power = float(np.abs(_exact(np.zeros(1), setting)[0, 0]) ** 4)
    share = setting.rotary_dim / setting.head_dim
    return np.sqrt(mean_square * share / (power * share + (1 - share)))


def _exact(at: Array, setting: RopeSetting) -> Any:
    """Return e^(i D theta), times the attention factor. Shapes: (s,) -> (s, p)."""
    cos, sin = distance_table(at, setting)
    return cos[0] + 1j * sin[0]
