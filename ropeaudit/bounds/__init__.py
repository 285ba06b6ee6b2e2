"""A-priori bound and predicted RMS of the drift of an emulated recipe.

Letters: h heads, s positions, d head_dim, p pairs, b blocks of positions. Source: numerics.md, section 4.

Everything is a sum over pairs of a query's part times a key's part, so that no array of the size s² is
needed: what a position contributes is gathered by blocks of positions, then blocks meet blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.bounds import terms
from ropeaudit.bounds.blocks import Blocks, InputSummation, InputSums, PhaseAt, PhaseWeights
from ropeaudit.bounds.terms import PairError
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.emulated import Emulated

_SLACK = 1 + 2.0**-20  # float64 in here; the measured difference itself is rounded to float32


@dataclass(frozen=True, slots=True)
class Bound:
    """maximum: upper bound of |drift|. rms: predicted RMS of drift. Both in score units."""

    maximum: float
    rms: float


def bound(subject: Emulated, inputs: Inputs, mask: Mask, offset: int) -> Bound:
    """Bound the drift of a subject over all scores that the mask shows, and predict its RMS.

    Exact, that is computed from what the recipe does: errors of positions and frequencies. As large as they
    can be: every later rounding; half an ulp of the angle where it is inexact. Looser than
    section 4 says: sums over pairs are bounded by Cauchy and Schwarz, which costs at least a factor of
    4/pi for gaussian q and k; a block of positions counts as its worst one; a rotation
    costs (1 + sqrt 2) u. Underflow counts at its largest.
    Time: a few passes over q and k, a hundredth of the products of the scores where those are many. Memory:
    a few arrays of all heads and 512 positions, and what blocks sum to.

    Args:
        subject: A recipe on a setting; the scores are in its score format.
        inputs: q (h, s, d) and k (g, s, d), which are rounded to the input format here.
        mask: Which scores count.
        offset: Tokens added to every position.

    Returns:
        maximum and rms, in score units (scaled, before softmax). maximum is inf where a number may
        overflow; rms is that of a run without overflow, and inf where an angle or an input is not finite.
        rms assumes that the phases of q and k have nothing to do with those of the errors, as in
        gaussian inputs, and leaves out underflow; inside a block all pairs of positions count alike.

    Raises:
        Nothing of its own; the subject and the inputs were checked when they were made.

    Source: Brent, Percival, Zimmermann, Math. Comp. 76 (2007), for bounds of this form;
    Higham, Accuracy and Stability of Numerical Algorithms, chapter 3, for sums.
    """
    return bounds([(subject, offset)], inputs, mask)[0]


def bound_up_to(subject: Emulated, inputs: Inputs, mask: Mask, offset: int) -> float:
    """Bound the drift of a subject at every offset from 0 to `offset` at once; inf where none is known.

    The errors of the angles in `bound` are replaced by ones that grow with the position, and nothing else in
    it depends on the offset: see `ropeaudit.bounds.terms`. So what is bounded grows with the offset, and
    one call covers the whole range. Units: score units.
    """
    if not terms.covers(subject, int(inputs.q.shape[1]), offset):
        return math.inf
    return bounds([(subject, offset)], inputs, mask, phase=terms.phase_up_to)[0].maximum


def bounds(
    cells: Sequence[tuple[Emulated, int]],
    inputs: Inputs,
    mask: Mask,
    threads: int = 1,
    phase: PhaseAt = terms.phase,
) -> list[Bound]:
    """Return the bound of every (subject, offset); see `bound`. q and k are looked at once for all of them.

    The subjects share their setting. phase: the errors of their angles at some positions and an offset.
    """
    limits = [Bound(math.inf, math.inf)] * len(cells)
    if not cells:
        return limits
    seq_len, heads = int(inputs.q.shape[1]), int(inputs.q.shape[0])
    setting, blocks = cells[0][0].setting, _blocks(mask, seq_len)
    count = masks.count(mask, seq_len) * heads
    with mapping(threads) as mapped:
        weights = list(mapped(lambda cell: PhaseWeights(cell[0], cell[1], blocks, phase), cells))
        finite = [index for index, weight in enumerate(weights) if weight.finite]
        sums = InputSummation(inputs, setting, [weights[index] for index in finite], blocks).run(mapped)

        def bound_of(place: int) -> Bound:
            index = finite[place]
            given = cells[index][0], weights[index], sums[place], place
            return _CellBound(*given, inputs, blocks).bound(count)

        for index, limit in zip(finite, mapped(bound_of, range(len(finite))), strict=True):
            limits[index] = limit
    return limits


_blocks = functools.lru_cache(maxsize=8)(Blocks)  # a search asks for them again and again


class Norms(NamedTuple):
    """Norms of q or k of all query heads, the attention factor included. Shapes: (h, b) each.

    pairs, rest: of rotated pairs and of the other dims. by_phase, by_rate, by_even: of pairs weighted by
    their largest phase errors, by the roots of their rates and of the former.
    """

    pairs: Array
    rest: Array
    by_phase: Array
    by_rate: Array
    by_even: Array


class _Side:
    """q or k of all query heads, the attention factor included: norms by block (h, b), squares (h, b, p)."""

    def __init__(self, sums: InputSums, cell: int, which: str, subject: Emulated, inputs: Inputs) -> None:
        number = np.arange(len(inputs.q))
        heads = number if which == "q" else len(inputs.q) + number // inputs.group
        weight = terms.rotated_pair(subject).weight
        weighted = weight * np.sqrt(sums.weighted[cell][:, heads])
        self.norms = Norms(weight * np.sqrt(sums.pairs[heads]), np.sqrt(sums.rest[heads]), *weighted)
        self.squares, self.rest_squares = weight**2 * sums.squares[heads], sums.rest_squares[heads]
        pairs, rest = np.sqrt(sums.largest[:, heads])
        self.largest, self.largest_rest = weight * pairs, rest

    def largest_of(self, blocks: slice) -> Norms:
        """Return the largest norms of some blocks. Shapes: -> (h, 1) each."""
        return Norms(*(one[:, blocks].max(axis=1, keepdims=True) for one in self.norms))


class _CellBound:
    """The bound of one subject at one offset."""

    def __init__(
        self,
        subject: Emulated,
        weights: PhaseWeights,
        sums: InputSums,
        cell: int,
        inputs: Inputs,
        blocks: Blocks,
    ) -> None:
        self.subject, self.setting, self.blocks = subject, subject.setting, blocks
        self.weights, self.endings = weights, sums.endings
        self.q, self.k = (_Side(sums, cell, which, subject, inputs) for which in "qk")
        self.rotated: PairError = terms.rotated_pair(subject)
        self.unrotated: PairError = terms.unrotated_dim(subject, inputs)
        self.score = terms.score(subject)
        u, d = subject.accumulate.unit_roundoff, self.setting.head_dim
        self.sum_worst = math.expm1(d * math.log1p(u))

    @np.errstate(all="ignore")
    def bound(self, count: int) -> Bound:
        """Return the bound over `count` scores."""
        largest = math.inf if self._overflows() else self._largest()
        # on the diagonal q and k make the same phase error: that part is taken out again
        q, k, summed = self.q, self.k, self.blocks.sum
        both, rest = summed(q.squares, k.squares), summed(q.rest_squares, k.rest_squares)
        from_phases = np.where(self.weights.small, self._small_phases(), self._large_phases(both))
        rotated, others = 0.5 * float(both.sum()) / count, float(rest.sum()) / count
        relative = 2 * self.rotated.variance + (2 * self.rotated.bias) ** 2
        mean = (
            relative * rotated
            + 2 * self.unrotated.variance * others
            + float(from_phases.sum()) / count
            + terms.accumulated(self.subject, rotated, others, self.endings)
            + self.score.variance * (rotated + others)
        )
        maximum = (self.score.grows * largest + self.score.small) * _SLACK
        rms = self.setting.scale * math.sqrt(max(mean, 0.0)) if math.isfinite(mean) else math.inf
        return Bound(maximum if math.isfinite(maximum + mean) else math.inf, rms)

    def _overflows(self) -> bool:
        recipe, both = self.subject.recipe, (self.q, self.k)
        room = min(recipe.rotation.largest, recipe.output.largest)
        for side in both:
            if not (side.largest * (1 + self.rotated.worst) + self.rotated.small <= room).all():
                return True
            if not (side.largest_rest * (1 + self.unrotated.worst) <= recipe.output.largest).all():
                return True
        grown = (1 + max(self.rotated.worst, self.unrotated.worst)) ** 2 * (1 + self.sum_worst)
        norms = [np.sqrt((side.norms.pairs**2 + side.norms.rest**2).max(axis=1)) for side in both]
        largest = norms[0] * norms[1] * grown * (1 + self.subject.score.unit_roundoff) ** 2
        return not (largest <= self.score.largest).all()

    def _relative(self, pair: PairError) -> float:
        """Return what multiplies |q_i| |k_i|: roundings of both sides, of the sum, and of the score."""
        both = (1 + pair.worst) ** 2
        return both - 1 + self.sum_worst * both + self.score.adds / self.score.grows

    def _largest(self) -> float:
        """Return the largest bound of the error of an unscaled score.

        sum of |q_i| |k_i| min(2, phase_q + phase_k + distance |rate|) + relative errors, by norms.
        """
        largest = 0.0
        for most, head, rows, cols, hidden in self._strips_by_most():
            if most <= largest:
                break
            error = self._pair_errors(head, rows, cols, self.blocks.distance[rows, cols])
            error[hidden] = 0.0
            largest = max(largest, float(error.max()))
        rotated, unrotated, setting = self.rotated, self.unrotated, self.setting
        parts = math.sqrt(setting.pairs), math.sqrt(setting.head_dim - setting.rotary_dim)  # 1- from 2-norms
        small = sum(
            rotated.small * (1 + rotated.worst) * parts[0] * float(side.norms.pairs.max())
            + unrotated.small * (1 + unrotated.worst) * parts[1] * float(side.norms.rest.max())
            for side in (self.q, self.k)
        )
        low = self.subject.accumulate.smallest_subnormal
        underflow = small + setting.head_dim * (max(rotated.small, unrotated.small) ** 2 + low)
        return largest + (1 + self.sum_worst) * underflow

    def _strips_by_most(self) -> list[tuple[float, int, slice, slice, NDArray[np.bool_]]]:
        """Return heads and strips of rows, each after what none of its pairs exceeds, the largest first."""
        strips, every = [], slice(None)
        for rows, cols, hidden in self.blocks.strips:
            sides = self.q.largest_of(rows), self.k.largest_of(cols)
            farthest = np.full((len(sides[0].pairs), 1, 1), self.blocks.distance[rows, cols].max())
            most = self._pair_errors(every, every, every, farthest, sides).ravel().tolist()
            strips += [(each, head, rows, cols, hidden) for head, each in enumerate(most)]
        return sorted(strips, key=lambda strip: -strip[0])

    def _pair_errors(
        self,
        head: int | slice,
        rows: slice,
        cols: slice,
        distance: Array,
        sides: tuple[Norms, Norms] | None = None,
    ) -> Array:
        """Return the bound of each pair of blocks of a head, or heads. Shapes: distance (r, c) -> (r, c)."""
        q, k = sides or (self.q.norms, self.k.norms)
        spare = np.empty_like(distance)

        def outer(x: Array, y: Array, out: Array = spare) -> Array:
            return np.multiply(x[head, rows, None], y[head, None, cols], out=out)

        error = outer(q.by_phase, k.pairs, np.empty_like(distance))
        error += outer(q.pairs, k.by_phase)
        np.minimum(error, np.multiply(2, outer(q.by_even, k.by_even), out=spare), out=error)
        error += np.multiply(distance, outer(q.by_rate, k.by_rate), out=spare)
        np.minimum(error, np.multiply(2, outer(q.pairs, k.pairs), out=spare), out=error)
        error += np.multiply(self._relative(self.rotated) / 2, spare, out=spare)
        if self.setting.rotary_dim < self.setting.head_dim:
            error += np.multiply(self._relative(self.unrotated), outer(q.rest, k.rest), out=spare)
        return error

    def _small_phases(self) -> Array:
        """Return half of x y ((known(m) - known(n))^2 + noise(m) + noise(n)), summed. Shapes: -> (p,)."""
        q, k, summed = self.q, self.k, self.blocks.sum
        known, own = self.weights.means[:2]
        squares = summed(q.squares * own, k.squares) + summed(q.squares, k.squares * own)
        alike = self.blocks.diagonal(q.squares, k.squares * self.weights.means[4])
        return squares / 2 - summed(q.squares * known, k.squares * known) - alike

    def _large_phases(self, both: Array) -> Array:
        """Return x y (1 - mean cosine of the phase error), summed: the mean of |1 - e^(i error)|^2 / 2."""
        q, k = self.q, self.k
        for weight in self.weights.means[2:4]:
            both = both - self.blocks.sum(q.squares * weight, k.squares * weight)
        return both + self.blocks.diagonal(q.squares, k.squares * np.expm1(-self.weights.means[4]))
