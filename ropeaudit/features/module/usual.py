"""Frequencies of a usual base that explain inferred ones: of a setting they are known exactly.

Letters: c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.features.module.expected import BASES
from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.inferred import ROUNDINGS
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.setting import RopeSetting

Array = NDArray[np.float64]
_UNIT = 2.0**-24  # unit roundoff of float32
_FEWEST = 4  # frequencies that say a base
_LARGEST = 2048  # dims


@dataclass(frozen=True, slots=True)
class Usual:
    """The setting whose frequencies columns have: which (c,), and in words."""

    theta: Array
    words: str


def usual(theta: Array, uncertain: Array) -> Usual | None:
    """Return the setting of a usual base that agrees with every frequency; None where none does.

    theta: frequencies above 0 (c,). uncertain: how far off each may be, beside what float32 arithmetic does.
    """
    distinct = _distinct(theta, uncertain)
    if distinct.size < _FEWEST or not 0 < distinct[-1] < distinct[0]:
        return None
    fall = math.log(distinct[0] / distinct[-1]) / (distinct.size - 1)
    dims = [(2 * round(math.log(base) / fall), base) for base in BASES]
    dims.sort(key=lambda one: one[0] != 2 * distinct.size)  # all pairs rotate in most models
    for dim, base in dims:
        if not 2 * distinct.size <= dim <= _LARGEST:
            continue
        pairs = dim // 2
        index = np.round(-np.log(theta) * pairs / math.log(base)).astype(np.int64)
        if index.min() < 0 or index.max() >= pairs:
            continue
        setting = RopeSetting.of(dim, dim, base)
        tolerance = hypotheses.tolerance(setting)[index]
        near = base ** (-index / pairs)
        if np.all(np.abs(theta - near) <= uncertain + (tolerance + ROUNDINGS * _UNIT) * near):
            exact = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
            of_dims = "" if dim == 2 * distinct.size else f" over {dim} dims"
            return Usual(exact[index], f"base {base:.8g}{of_dims} (guessed)")
    return None


def _distinct(theta: Array, uncertain: Array) -> Array:
    """Return frequencies from fast to slow, those once that may be the same."""
    order = np.argsort(-theta)
    listed, near = theta[order], uncertain[order]
    apart = listed[:-1] - listed[1:] > near[:-1] + near[1:] + 2.0**-20 * listed[:-1]
    return np.asarray(listed[np.concatenate([[True], apart])])
