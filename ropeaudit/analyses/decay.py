"""How scores change with distance: of given q and k, RoFormer's bound, and the sum of Men et al.

    score(m)  = scale * (R(m) q)·(R(0) k), of every query with every key of its head
    bound(m)  = (1/p) sum_{j=1}^{p} |S_j(m)|,  S_j(m) = sum_{i<j} e^{i m theta_i}
    men_sum(m) = sum_i cos(m theta_i)

The query stands at position m, the key at position 0 (with clipped angles that is more than a distance).
bound and men_sum are about angles alone: an attention factor does not multiply them. The scores have it.
Letters: h heads, s distances, d head_dim, p rotary_dim/2 pairs, n vectors of a head. Distances in tokens.
Sources: RoFormer, arXiv 2104.09864, section 3.4.3; Men et al., arXiv 2405.14591; constant and Gaussian
q and k: Barbero et al., "Round and Round We Go", arXiv 2410.06205.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit import exact_frequencies, reference, scores
from ropeaudit.doubledouble import Array, Pair
from ropeaudit.errors import BadShape, UsageError
from ropeaudit.formats import round_to
from ropeaudit.inputs import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

LARGEST = 2**53 - 1  # distances are exact in float64 up to it
SEARCHED, SEARCHED_EMULATED = 2**28, 2**20  # how far a first failing distance is looked for: seconds
_BLOCK = 2048  # distances whose scores are formed at once
_COLUMNS, _ROWS = 1024, 64  # distances searched at once: their product
_U = 2.0**-53


@dataclass(frozen=True, slots=True)
class Angles:
    """RoFormer's bound and the sum of Men et al., exact or of a recipe. Shapes: (s,), no unit."""

    bound: Array
    men_sum: Array


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean and RMS of the scores over all pairs of vectors. Shapes: (s,). Units: score units.

    The first two are exact, the next two a recipe's (nan without one); drift_rms: RMS of their difference.
    """

    mean: Array
    rms: Array
    own_mean: Array
    own_rms: Array
    drift_rms: Array


def check(distances: Sequence[int]) -> None:
    """Raise UsageError unless there are distances, all of them from 0 to `LARGEST`."""
    if not distances:
        raise UsageError("there are no distances; try --distance 0-50000")
    for distance in distances:
        if not 0 <= distance <= LARGEST:
            raise UsageError(f"--distance {distance} is not a distance from 0 to {LARGEST}; try 0-50000")


def readable(first: int, last: int) -> list[int]:
    """Return a few round distances from `first` to `last`, both included: the rows of a table.

    1, 2, 5, 10, ... over a wide range, 17 evenly spaced ones over a narrow one.
    >>> readable(0, 50)
    [0, 1, 2, 5, 10, 20, 50]
    """
    if _wide(first, last):
        steps = [digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5)]
        found = [first, *(step for step in steps if first < step < last), last]
    else:
        found = [first + round((last - first) * part / 16) for part in range(17)]
    return list(dict.fromkeys(found))


def dense(first: int, last: int, count: int = 512) -> list[int]:
    """Return up to `count` distances, dense where they are small if the range is wide: a curve."""
    parts = np.linspace(0.0, 1.0, count)
    if _wide(first, last):
        low, high = math.log1p(first), math.log1p(last)
        found = np.rint(np.expm1(low + (high - low) * parts))
    else:
        found = np.rint(first + (last - first) * parts)
    inner = (min(max(int(x), first), last) for x in found)
    return list(dict.fromkeys([first, *inner, last])) if last > first else [first]


def _wide(first: int, last: int) -> bool:
    return last >= 20 * max(first, 1)


def sample(inputs: Inputs, most: int) -> Inputs:
    """Return at most `most` vectors of every head, evenly spaced. Shapes: (h, s, d) -> (h, n, d)."""
    count = inputs.q.shape[1]
    rows = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    return replace(inputs, q=inputs.q[:, rows], k=inputs.k[:, rows])


def angles(distances: Sequence[int], setting: RopeSetting, recipe: Resolved | None = None) -> Angles:
    """Return both curves, exact to float64, or of the cos and sin that a recipe stores.

    Source: RoFormer, section 3.4.3; Men et al., theorem 1 (their B). nan where nothing is rotated.
    """
    plain = _without_factor(setting)
    bound, total = np.full(len(distances), np.nan), np.full(len(distances), np.nan)
    if setting.pairs == 0:
        return Angles(bound, total)
    subject = Emulated(recipe, plain) if recipe else None
    for block, where in _blocks(distances):
        if subject is None:
            (cos, _), (sin, _) = reference.distance_table(block.astype(np.float64), plain)
        else:
            cos, sin = (part.astype(np.float64) for part in subject.table(block, 0))
        sums = np.hypot(np.cumsum(cos, axis=1), np.cumsum(sin, axis=1))
        bound[where], total[where] = sums.mean(axis=1), cos.sum(axis=1)
    return Angles(bound, total)


def first_failing(setting: RopeSetting, last: int, recipe: Resolved | None = None) -> int | None:
    """Return the first distance up to `last` at which the sum of Men et al. is negative; None: nowhere.

    Every integer is looked at, up to `SEARCHED` or `SEARCHED_EMULATED`. Exact: float64 sums sift, and what
    is too near to zero for them is decided in double-double. With a recipe its own cosines are
    summed, in float64, and a sum that is nan fails too.
    """
    plain = _without_factor(setting)
    if setting.pairs == 0:
        return None
    if recipe is not None:
        return _first_emulated(Emulated(recipe, plain), min(last, SEARCHED_EMULATED))
    still = int(np.count_nonzero(reference.turns_per_token(plain)[0] == 0.0))
    if 2 * still >= setting.pairs:  # pairs that do not turn add 1 each, the others at least -1
        return None
    sift = _clipped_sums(plain) if plain.clipped else _turned_sums(plain)
    for start in range(0, min(last, SEARCHED) + 1, _COLUMNS * _ROWS):
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


def _turned_sums(setting: RopeSetting) -> Any:
    """A function start -> sums at start, start + 1, ... and how far they may be off: one product of matrices.

    cos((M + r) theta) = cos(M theta) cos(r theta) - sin(M theta) sin(r theta).
    """
    (cos, _), (sin, _) = reference.distance_table(np.arange(float(_COLUMNS)), setting)
    right = np.concatenate([cos, -sin], axis=1).T
    doubt = 2.0 * (2 * setting.pairs + 8) * setting.pairs * _U

    def sums(start: int) -> tuple[Array, float]:
        origins = start + _COLUMNS * np.arange(float(_ROWS))
        (cos, _), (sin, _) = reference.distance_table(origins, setting)
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
    cos, _ = reference.distance_table(np.array([float(distance)]), setting)
    return math.fsum(np.concatenate(cos, axis=1)[0])


def _without_factor(setting: RopeSetting) -> RopeSetting:
    """The same angles without an attention factor."""
    if exact_frequencies.attention_factor(setting.scaling) == 1:
        return setting
    return replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))


def score_curve(
    distances: Sequence[int], setting: RopeSetting, inputs: Inputs, recipe: Resolved | None = None
) -> Scores:
    """Return the scores of every query with every key of its head, at every distance.

    q and k are first rounded to the recipe's input format, as `ropeaudit.measure` does.
    Shapes: inputs (h, n, d) -> (s,). Raises: BadShape.
    """
    if inputs.q.shape[2] != setting.head_dim:
        raise BadShape(
            f"q and k of {inputs.source!r} have head_dim {inputs.q.shape[2]} and the setting "
            f"{setting.head_dim}; give --head-dim {inputs.q.shape[2]}"
        )
    found = np.zeros((5, len(distances)))
    for block, where in _blocks(distances):
        found[:, where] = _block_of_scores(block, setting, inputs, recipe)
    found /= inputs.q.shape[0] * inputs.q.shape[1] ** 2
    found[[1, 3, 4]] = np.sqrt(found[[1, 3, 4]])
    if recipe is None:
        found[2:] = np.nan
    return Scores(*found)


def _block_of_scores(
    block: NDArray[np.int64], setting: RopeSetting, inputs: Inputs, recipe: Resolved | None
) -> Array:
    """Sums of scores and squares, exact and own, and of squared drift. Shapes: (s,) -> (5, s)."""
    totals = np.zeros((5, block.size))
    side = _Side(Emulated(recipe, setting), block) if recipe else None
    precision: reference.Precision = "extended" if recipe and recipe.narrowest > 24 else "double"
    table = reference.distance_table(block.astype(np.float64), setting)
    origin = _rows_of(reference.distance_table(np.zeros(1), setting), inputs.k.shape[1])
    for head, queries in enumerate(inputs.q):
        keys = inputs.k[head // inputs.group]
        if recipe is not None:
            queries, keys = (round_to(x, recipe.input).astype(np.float64) for x in (queries, keys))
        k = reference.turned(keys, origin, setting, precision)
        own_k = side.key(keys) if side else None
        for query in queries:
            q = reference.turned(_repeated(query, block.size), table, setting, precision, setting.scale)
            out, scratch = np.empty((2, block.size, len(keys)))
            high, low = reference.product(q, k, out, scratch)
            exact = high if low is None else high + low
            totals[:2] += exact.sum(axis=1), np.einsum("sn,sn->s", exact, exact)
            if side is None:
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                own = side.scores(query, own_k)
                drift = own - high if low is None else (own - high) - low
                totals[2:] += own.sum(axis=1), (own * own).sum(axis=1), (drift * drift).sum(axis=1)
    return totals


class _Side:
    """A recipe's own scores of queries at some distances and keys at 0."""

    def __init__(self, subject: Emulated, block: NDArray[np.int64]) -> None:
        self.subject = subject
        self.query_table = subject.table(block, 0)
        self.key_table = subject.table(np.zeros(1, np.int64), 0)

    def key(self, keys: Array) -> Any:
        """Keys at position 0. Shapes: (n, d) -> (d, n)."""
        cos, sin = (_repeated(part[0], len(keys)) for part in self.key_table)
        typed = keys.astype(self.subject.input.carrier)
        return scores.operand(self.subject.rotate(typed, (cos, sin)), self.subject).T

    def scores(self, query: Array, keys: Any) -> Array:
        """Scores of one query at every distance. Shapes: (d,), (d, n) -> (s, n)."""
        count = len(self.query_table[0])
        typed = _repeated(query.astype(self.subject.input.carrier), count)
        turned = scores.operand(self.subject.rotate(typed, self.query_table), self.subject)
        out = np.empty((count, keys.shape[1]), scores.tile_dtype(self.subject))
        scores.form(turned, keys, self.subject, self.subject.setting.scale, out)
        return out.astype(np.float64)


def _blocks(distances: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], slice]]:
    whole = np.array(distances, np.int64)
    for start in range(0, whole.size, _BLOCK):
        yield whole[start : start + _BLOCK], slice(start, start + _BLOCK)


def _repeated(row: Any, count: int) -> Any:
    return np.broadcast_to(row, (count, row.shape[0]))


def _rows_of(table: tuple[Pair, Pair], count: int) -> tuple[Pair, Pair]:
    """The one row of a table, `count` times."""
    (a, b), (c, e) = table
    return (
        (_repeated(a[0], count), _repeated(b[0], count)),
        (_repeated(c[0], count), _repeated(e[0], count)),
    )
