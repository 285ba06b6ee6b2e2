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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel, scores
from ropeaudit.errors import BadShape, UsageError
from ropeaudit.features.decay import cosine_sum
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

_BLOCK = 2048  # distances whose scores are formed at once


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


@dataclass(frozen=True, slots=True)
class Decay:
    """All curves of a setting, of some q and k and perhaps of a recipe. Shapes: (s,).

    label: the setting for people. maximum: positions that the model is made for, None if unknown.
    start: RMS of the exact scores at distance 0. first, own_first: see `first_failing`.
    """

    label: str
    setting: RopeSetting
    maximum: int | None
    inputs: Inputs
    recipe: Resolved | None
    distances: Sequence[int]
    exact: Angles
    own: Angles | None
    scores: Scores
    start: float
    first: int | None
    own_first: int | None


def decay(
    setting: RopeSetting,
    inputs: Inputs,
    distances: Sequence[int],
    recipe: Resolved | None = None,
    label: str = "",
    maximum: int | None = None,
) -> Decay:
    """Return all curves at the distances, and the first failing distance up to the largest of them.

    Raises: UsageError, BadShape.
    """
    check(distances)
    last = max(distances)
    return Decay(
        label=label,
        setting=setting,
        maximum=maximum,
        inputs=inputs,
        recipe=recipe,
        distances=distances,
        exact=angles(distances, setting),
        own=angles(distances, setting, recipe) if recipe else None,
        scores=score_curve(distances, setting, inputs, recipe),
        start=float(score_curve([0], setting, inputs, recipe).rms[0]),
        first=cosine_sum.first_failing(setting, last),
        own_first=cosine_sum.first_failing(setting, last, recipe) if recipe else None,
    )


def check(distances: Sequence[int]) -> None:
    """Raise UsageError unless there are distances, all of them from 0 to `cosine_sum.LARGEST`."""
    if not distances:
        raise UsageError("there are no distances; try --distance 0-50000")
    for distance in distances:
        if not 0 <= distance <= cosine_sum.LARGEST:
            raise UsageError(
                f"--distance {distance} is not a distance from 0 to {cosine_sum.LARGEST}; try 0-50000"
            )


def sample(inputs: Inputs, most: int) -> Inputs:
    """Return at most `most` vectors of every head, evenly spaced. Shapes: (h, s, d) -> (h, n, d)."""
    count = inputs.q.shape[1]
    rows = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    return replace(inputs, q=inputs.q[:, rows], k=inputs.k[:, rows])


def angles(distances: Sequence[int], setting: RopeSetting, recipe: Resolved | None = None) -> Angles:
    """Return both curves, exact to float64, or of the cos and sin that a recipe stores.

    nan where nothing is rotated.
    """
    plain = cosine_sum.without_factor(setting)
    bound, total = np.full(len(distances), np.nan), np.full(len(distances), np.nan)
    if setting.pairs == 0:
        return Angles(bound, total)
    subject = Emulated(recipe, plain) if recipe else None
    for block, where in _blocks(distances):
        if subject is None:
            (cos, _), (sin, _) = exact_scores.distance_table(block.astype(np.float64), plain)
        else:
            cos, sin = (part.astype(np.float64) for part in subject.table(block, 0))
        sums = np.hypot(np.cumsum(cos, axis=1), np.cumsum(sin, axis=1))
        bound[where], total[where] = sums.mean(axis=1), cos.sum(axis=1)
    return Angles(bound, total)


def score_curve(
    distances: Sequence[int], setting: RopeSetting, inputs: Inputs, recipe: Resolved | None = None
) -> Scores:
    """Return the scores of every query with every key of its head, at every distance.

    q and k are first rounded to the recipe's input format, as `ropeaudit.engine.measure` does.
    Shapes: inputs (h, n, d) -> (s,). Raises: BadShape.
    """
    if inputs.q.shape[2] != setting.head_dim:
        raise BadShape(
            f"q and k of {inputs.source!r} have head_dim {inputs.q.shape[2]} and the setting "
            f"{setting.head_dim}; give --head-dim {inputs.q.shape[2]}"
        )
    sums = [_block_of_scores(block, setting, inputs, recipe) for block, _ in _blocks(distances)]
    pairs = inputs.q.shape[0] * inputs.q.shape[1] ** 2
    mean, square, own_mean, own_square, drift_square = np.concatenate(sums, axis=1) / pairs
    if recipe is None:
        own_mean, own_square, drift_square = np.full((3, mean.size), np.nan)
    return Scores(mean, np.sqrt(square), own_mean, np.sqrt(own_square), np.sqrt(drift_square))


def _block_of_scores(
    block: NDArray[np.int64], setting: RopeSetting, inputs: Inputs, recipe: Resolved | None
) -> Array:
    """Sum over every query with every key of its head, at some distances, what `Scores` holds means of.

    Shapes: (s,) -> (5, s).
    """
    sums, count = np.zeros((5, block.size)), inputs.k.shape[1]
    exact_sum, exact_squares, own_sum, own_squares, drift_squares = sums  # views
    own = _OwnScores(Emulated(recipe, setting), block, count) if recipe else None
    precision: Precision = "extended" if recipe and recipe.narrowest > FP32.precision else "double"
    table = exact_scores.distance_table(block.astype(np.float64), setting)
    origin = exact_scores.distance_table(np.zeros(count), setting)
    for head, queries in enumerate(inputs.q):
        keys = inputs.k[head // inputs.group]
        if recipe is not None:
            queries, keys = (round_to(x, recipe.input) for x in (queries, keys))
        k = kernel.rotate_exactly(keys, origin, setting, precision)
        own_k = own.keys(keys) if own else None
        for query in queries:
            q = kernel.rotate_exactly(_repeated(query, block.size), table, setting, precision, setting.scale)
            exact = exact_scores.product(q, k)
            joined = exact_scores.joined(*exact)
            exact_sum += joined.sum(axis=1)
            exact_squares += np.einsum("sn,sn->s", joined, joined)
            if own is None or own_k is None:
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                formed = own.scores(query, own_k)
                drift = kernel.minus_exact(formed, exact)
                own_sum += formed.sum(axis=1)
                own_squares += (formed * formed).sum(axis=1)
                drift_squares += (drift * drift).sum(axis=1)
    return sums


class _OwnScores:
    """A recipe's scores: queries at some distances, keys at position 0."""

    def __init__(self, subject: Emulated, distances: NDArray[np.int64], keys: int) -> None:
        self.subject = subject
        self.table = subject.table(distances, 0)
        self.origin = subject.table(np.zeros(keys, np.int64), 0)

    def keys(self, keys: FloatArray) -> FloatArray:
        """Return rounded keys, rotated. Shapes: (n, d) -> (d, n)."""
        rotated = kernel.rotate(self.subject, "k", keys, self.origin)
        return np.asarray(scores.operand(rotated, self.subject).T)

    def scores(self, query: FloatArray, keys: FloatArray) -> NDArray[Any]:
        """Return the scores of a rounded query at every distance. Shapes: (d,), (d, n) -> (s, n)."""
        rotated = kernel.rotate(self.subject, "q", _repeated(query, len(self.table[0])), self.table)
        operand = scores.operand(rotated, self.subject)
        return scores.formed(operand, keys, self.subject, self.subject.setting.scale)


def _blocks(distances: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], slice]]:
    whole = np.array(distances, np.int64)
    for start in range(0, whole.size, _BLOCK):
        yield whole[start : start + _BLOCK], slice(start, start + _BLOCK)


def _repeated(row: Any, count: int) -> Any:
    return np.broadcast_to(row, (count, row.shape[0]))
