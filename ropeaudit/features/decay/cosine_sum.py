"""The sum of Men et al., sum_i cos(m theta_i), and the first distance m at which it is negative.

The sum is about angles alone: an attention factor does not multiply it.
Letters: p rotary_dim/2 pairs. Distances in tokens.
Source: Men et al., arXiv 2405.14591.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_frequencies, exact_scores
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

LARGEST = 2**53 - 1  # distances are exact in float64 up to it
SEARCHED, SEARCHED_CLIPPED, SEARCHED_EMULATED = 2**28, 2**23, 2**20  # a search of seconds
_BLOCK = 2048  # distances whose cosines a recipe computes at once
_COLUMNS, _ROWS = 1024, 64  # distances searched at once: their product
_U = 2.0**-53


def searched(setting: RopeSetting, recipe: Resolved | None = None) -> int:
    """Return up to which distance a search says whether the sum fails; bounded so that it takes seconds."""
    if recipe is not None:
        return SEARCHED_EMULATED
    if _never(setting) or _settled(setting) < SEARCHED_CLIPPED:
        return LARGEST
    return SEARCHED_CLIPPED if setting.clipped else SEARCHED


def _never(setting: RopeSetting) -> bool:
    """Return whether half the pairs or more do not rotate: they add 1 each, and the others at least -1."""
    rotating = np.count_nonzero(exact_scores.rotations_per_token(setting)[0])
    return bool(2 * rotating <= setting.pairs)


def _settled(setting: RopeSetting) -> float:
    """A distance past which every angle is clipped, or still: the sum no longer changes."""
    rotations = exact_scores.rotations_per_token(setting)[0]
    return float(setting.clip / (6.28 * rotations[rotations > 0.0].min(initial=np.inf)))


@functools.lru_cache(maxsize=256)
def first_failing(setting: RopeSetting, last: int, recipe: Resolved | None = None) -> int | None:
    """Return the first distance up to `last` at which the sum of Men et al. is negative; None: nowhere.

    Every integer up to `searched` is looked at. Exact: float64 sums sift, and what is too near to
    zero for them is decided in double-double. With a recipe its own cosines are summed, in
    float64, and a sum that is nan fails too.
    """
    plain, last = without_factor(setting), min(last, searched(setting, recipe))
    if setting.pairs == 0:
        return None
    if recipe is not None:
        return _first_emulated(Emulated(recipe, plain), last)
    if _never(plain):
        return None
    last = math.ceil(min(last, _settled(plain)))
    sift = _clipped_sums(plain) if plain.clipped else _rotated_sums(plain)
    for start in range(0, last + 1, _COLUMNS * _ROWS):
        sums, doubt = sift(start)
        for place in np.flatnonzero(sums < doubt):
            distance = start + int(place)
            if distance > last:
                return None
            if _exact_sum(distance, plain) < 0.0:
                return distance
    return None


def _first_emulated(subject: Emulated, last: int) -> int | None:
    for start in range(0, last + 1, _BLOCK):
        cos, _ = subject.table(np.arange(start, min(start + _BLOCK, last + 1)), 0)
        failing = np.flatnonzero(~(cos.astype(np.float64).sum(axis=1) >= 0.0))
        if failing.size:
            return start + int(failing[0])
    return None


def _rotated_sums(setting: RopeSetting) -> Any:
    """A function start -> sums at start, start + 1, ... and how far they may be off: one product of matrices.

    cos((M + r) theta) = cos(M theta) cos(r theta) - sin(M theta) sin(r theta).
    """
    (cos, _), (sin, _) = exact_scores.distance_table(np.arange(float(_COLUMNS)), setting)
    right = np.concatenate([cos, -sin], axis=1).T
    doubt = 2.0 * (2 * setting.pairs + 8) * setting.pairs * _U

    def sums(start: int) -> tuple[Array, float]:
        origins = start + _COLUMNS * np.arange(float(_ROWS))
        (cos, _), (sin, _) = exact_scores.distance_table(origins, setting)
        return (np.concatenate([cos, sin], axis=1) @ right).reshape(-1), doubt

    return sums


def _clipped_sums(setting: RopeSetting) -> Any:
    """The same with clipped angles, for which there is no addition theorem."""
    thetas = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    doubt = setting.pairs * _U * (4.0 * setting.clip + 2.0 * setting.pairs + 8.0)

    def sums(start: int) -> tuple[Array, float]:
        total = np.zeros(_COLUMNS * _ROWS)
        distances = start + np.arange(float(total.size))
        for theta in thetas:
            total += np.cos(np.minimum(distances * theta, setting.clip))
        return total, doubt

    return sums


def _exact_sum(distance: int, setting: RopeSetting) -> float:
    cos, _ = exact_scores.distance_table(np.array([float(distance)]), setting)
    return math.fsum(np.concatenate(cos, axis=1)[0])


def without_factor(setting: RopeSetting) -> RopeSetting:
    """The same angles without an attention factor."""
    if exact_frequencies.attention_factor(setting.scaling) == 1:
        return setting
    return replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))
