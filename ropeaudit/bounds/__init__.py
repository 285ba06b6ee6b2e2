"""A-priori bound and predicted RMS of the drift of an emulated recipe.

Letters: h heads, s positions, d head_dim, p pairs, b blocks of positions. Source: numerics.md, section 4.

Everything is a sum over pairs of a query's part times a key's part, so that no array of the size s² is
needed: what a position contributes is gathered by blocks of positions, then blocks meet blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import terms
from ropeaudit.bounds.terms import Endings, PairError, Phase
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.threads import Map, mapping
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

# errors of the angles of a subject, at steps (s,) + offset
PhaseAt = Callable[[Emulated, Positions, int], Phase]
Strip = tuple[slice, slice, NDArray[np.bool_]]  # rows, the columns they see and unseen places

PANEL = 512  # positions at once
_BLOCKS = 256  # of largest norms
_SUMS, _MOST_SUMS = 64, 4096  # blocks of sums of squares, and of those along a narrow window
_ROWS = 64  # blocks of queries at once
_LAGS = 12  # more diagonals of blocks than these are summed as a matrix

_EVERY = 8  # of how many positions the last bits are counted: a share is asked for
_SMALL = 1e-2  # phase errors below it count by their squares, for 1 - cos would cancel
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

    subject: a recipe on a setting; the scores are in its score format. inputs: q (h, s, d) and k (g, s, d),
    which are rounded to the input format here. offset: tokens added to every position.
    maximum is inf where a number may overflow; rms is that of a run without overflow, and inf where an angle
    or an input is not finite. rms assumes that the phases of q and k have nothing to do with those of the
    errors, as in gaussian inputs, and leaves out underflow; inside a block all pairs of positions count
    alike. Units: score units (scaled, before softmax).

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
        sums = InputSummation(inputs, setting, [weights[index] for index in finite], blocks).sums(mapped)

        def bound_of(place: int) -> Bound:
            index = finite[place]
            given = cells[index][0], weights[index], sums[place], place
            return _CellBound(*given, inputs, blocks).bound(count)

        for index, limit in zip(finite, mapped(bound_of, range(len(finite))), strict=True):
            limits[index] = limit
    return limits


class Blocks:
    """Blocks of positions: of `fine` positions for norms, of `coarse` ones for sums.

    With a window mask the blocks of sums are a quarter of its width, unless there are too many.
    sizes: positions in each block of sums (b,). distance: the largest |m - n| between two blocks of norms
    (b, b). strips: rows and columns of these pairs of blocks where any query sees a key, a few rows at a
    time, which fit in a core's cache; and the pairs in each where none does.
    """

    def __init__(self, mask: Mask, seq_len: int) -> None:
        self.seq_len = seq_len
        self.fine, self.coarse = _block_size(seq_len, _BLOCKS), _block_size(seq_len, _SUMS)
        width = masks.reach(mask, seq_len) + 1
        if width < seq_len:
            quarter = 1 << max(0, width.bit_length() - 3)
            self.coarse = max(min(self.coarse, quarter), _block_size(seq_len, _MOST_SUMS))
        self.sizes = np.diff(_edges(seq_len, self.coarse)).astype(np.float64)
        cuts = _edges(seq_len, self.fine)
        rows, cols = (cuts[:-1, None], cuts[1:, None]), (cuts[None, :-1], cuts[None, 1:])
        farthest = np.maximum(rows[1] - 1 - cols[0], cols[1] - 1 - rows[0])
        reach = masks.reach(mask, seq_len)
        self.distance: Array = np.minimum(farthest, reach).astype(np.float64)
        visible, self.strips = masks.counts(mask, rows, cols) > 0, list[Strip]()
        for start in range(0, len(visible), _ROWS):
            some = slice(start, min(start + _ROWS, len(visible)))
            columns = np.flatnonzero(visible[some].any(axis=0))
            if columns.size:
                between = slice(int(columns[0]), int(columns[-1]) + 1)
                self.strips.append((some, between, ~visible[some, between]))
        cuts = _edges(seq_len, self.coarse)
        count, lags = len(self.sizes), reach // self.coarse + 2
        self._shares = []
        for lag in range(1 - count if mask == "full" else 0, min(lags, count)):
            q = slice(max(lag, 0), count + min(lag, 0))
            k = slice(max(-lag, 0), count - max(lag, 0))
            seen = masks.counts(mask, (cuts[:-1][q], cuts[1:][q]), (cuts[:-1][k], cuts[1:][k]))
            self._shares.append((q, k, (seen / (self.sizes[q] * self.sizes[k]))[:, None]))
        self._dense: Array | None = None
        if len(self._shares) > _LAGS:
            self._dense = np.zeros((count, count))
            for q, k, share in self._shares:
                np.einsum("ii->i", self._dense[q, k])[:] = share[:, 0]

    def sum(self, q: Array, k: Array) -> Array:
        """Return the sum of q(m) k(n) over the visible m, n of all heads; in two blocks all count alike.

        Shapes: (h, b, p), (h, b, p) -> (p,).
        """
        if self._dense is not None:
            return np.asarray((q * (self._dense @ k)).sum(axis=(0, 1)))
        parts = [(q[:, rows] * share * k[:, cols]).sum(axis=(0, 1)) for rows, cols, share in self._shares]
        return np.asarray(np.sum(parts, axis=0))

    def diagonal(self, q: Array, k: Array) -> Array:
        """Return the sum of q(m) k(m) of all heads; inside a block all count alike.

        Shapes: (h, b, p), (h, b, p) -> (p,).
        """
        return np.asarray((q * k / self.sizes[:, None]).sum(axis=(0, 1)))


def reduce_blocks(values: Array, size: int, operation: np.ufunc, axis: int) -> Array:
    """Reduce each `size` neighbours of an axis to one; the last may be fewer."""
    if size == 1:
        return values
    if values.shape[axis] % size:
        return np.asarray(operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis))
    cut = (*values.shape[:axis], values.shape[axis] // size, size, *values.shape[axis + 1 :])
    return np.asarray(operation.reduce(values.reshape(cut), axis=axis + 1))


def join_panels(panels: Sequence[Array], size: int, operation: np.ufunc, axis: int) -> Array:
    """Join the blocks of panels; a block may be longer than a panel."""
    return reduce_blocks(np.concatenate(panels, axis=axis), max(1, size // PANEL), operation, axis)


def _block_size(seq_len: int, most: int) -> int:
    """Return the smallest power of two that cuts seq_len into at most `most` blocks."""
    return 1 << max(0, math.ceil(math.log2(seq_len / most)))


def _edges(seq_len: int, size: int) -> NDArray[np.int64]:
    return np.array([*range(0, seq_len, size), seq_len], dtype=np.int64)


class PhaseWeights:
    """The phase errors of a subject at an offset: the weights of q and k, by block.

    finite: whether they all are. rate: |frequency errors| (p,). largest: that of the others in a block,
    up to 2 (b, p). even: the largest of all (p,). small: pairs whose errors are small (p,). means, over other
    blocks: of what is known, of its square with the noise, of cosine and sine of large ones, of the noise
    (5, b, p).
    """

    largest: Array
    even: Array
    means: Array

    @np.errstate(all="ignore")
    def __init__(
        self,
        subject: Emulated,
        offset: int,
        blocks: Blocks,
        phase: PhaseAt,
    ) -> None:
        seq_len = blocks.seq_len
        self._phase: Callable[[Positions], Phase] = lambda steps: phase(subject, steps, offset)
        self.input = subject.input
        self._rate = terms.rate(subject)
        self.rate = np.abs(self._rate)
        ends = np.array([0, seq_len - 1])
        at_ends = self._phase(ends)
        self._middle = at_ends.known.mean(axis=0)
        self._centre = (at_ends.known - ends[:, None] * self._rate).mean(axis=0)
        aliasing = terms.aliasing(subject, seq_len, offset)
        parts = aliasing, at_ends.known, at_ends.worst
        self.finite = all(bool(np.isfinite(part).all()) for part in parts)
        thetas = terms.stored_frequencies(subject)[1]
        size = np.abs(at_ends.known - self._middle).max(axis=0) + np.ptp(aliasing, axis=0) * thetas
        self.small = np.sqrt(size**2 + at_ends.variance.max(axis=0)) < _SMALL
        if self.finite:
            fine, coarse = blocks.fine, blocks.coarse
            starts = range(0, seq_len, PANEL)
            panels = [self._panel(start, min(start + PANEL, seq_len), fine, coarse) for start in starts]
            largest, sums = zip(*panels, strict=True)
            self.largest = join_panels(largest, fine, np.maximum, 0)
            self.even = self.largest.max(axis=0)
            self.means = join_panels(sums, coarse, np.add, 1) / blocks.sizes[:, None]

    def _panel(
        self,
        start: int,
        stop: int,
        fine: int,
        coarse: int,
    ) -> tuple[Array, Array]:
        """Return largest phase errors by block, sums of weights: (b, p), (5, b, p)."""
        steps = np.arange(start, stop, dtype=np.int64)
        errors = self._phase(steps)
        bounded = errors.known - steps[:, None] * self._rate - self._centre
        largest = np.minimum(2.0, np.abs(bounded) + errors.worst)
        weights, large = np.zeros((5, *largest.shape)), ~self.small
        known = np.subtract(errors.known, self._middle, out=weights[0])
        np.add(known**2, errors.variance, out=weights[1])
        weights[4] = errors.variance
        if large.any():
            damping = np.exp(-errors.variance[:, large] / 2)
            weights[2][:, large] = damping * np.cos(known[:, large])
            weights[3][:, large] = damping * np.sin(known[:, large])
        return reduce_blocks(largest, min(fine, PANEL), np.maximum, 0), reduce_blocks(
            weights, min(coarse, PANEL), np.add, 1
        )


@dataclass(frozen=True, slots=True)
class InputSums:
    """All heads of q, then of k, as an input format holds them.

    pairs, rest: largest squared 2-norms of the rotated pairs and of the other dims (h + g, b).
    squares, rest_squares: sums over other blocks (h + g, b, p), (h + g, b, d - 2p).
    largest: the largest squared pair and other dim (2, h + g).
    weighted: by cell, the largest squared norms of pairs times `PhaseWeights.largest`, times the roots of
    `PhaseWeights.rate` and of `PhaseWeights.even` (3, h + g, b).
    endings: the last bits of the other dims, of some positions.
    """

    pairs: Array
    rest: Array
    squares: Array
    rest_squares: Array
    largest: Array
    weighted: dict[int, Array]
    endings: Endings


class InputSummation:
    """Sums over the inputs of several cells, computed a panel of positions at a time."""

    def __init__(
        self,
        inputs: Inputs,
        setting: RopeSetting,
        cells: Sequence[PhaseWeights],
        blocks: Blocks,
    ) -> None:
        self.inputs, self.setting, self.cells, self.blocks = inputs, setting, cells, blocks
        formats = inputs.distinct(weights.input for weights in cells)
        self.members: dict[Format, list[int]] = {}
        for index, weights in enumerate(cells):
            self.members.setdefault(formats[weights.input], []).append(index)

    def sums(self, mapped: Map) -> dict[int, InputSums]:
        """Return the sums by cell: those in its input format."""
        starts, results = range(0, self.blocks.seq_len, PANEL), dict[int, InputSums]()
        for fmt, members in self.members.items():
            panels = list(mapped(functools.partial(self._panel, fmt), starts))
            results |= dict.fromkeys(members, self._join_panels(panels))
        return results

    @np.errstate(all="ignore")
    def _panel(self, fmt: Format, start: int) -> InputSums:
        """Return the sums of one panel of positions in an input format."""
        stop = min(start + PANEL, self.blocks.seq_len)
        rows, pairs = stop - start, self.setting.pairs
        fine, coarse = min(self.blocks.fine, PANEL), min(self.blocks.coarse, PANEL)
        padded = -(-rows // fine) * fine  # rows of zeros fill the last block
        heads = (*self.inputs.q, *self.inputs.k)
        squares = np.zeros((len(heads), padded, pairs))
        rest = np.zeros((len(heads), padded, self.setting.head_dim - self.setting.rotary_dim))
        endings = Endings()
        for index, x in enumerate(heads):
            exact = round_to(x[start:stop], fmt).astype(np.float64, copy=False)
            a, b = split_pairs(exact, self.setting)
            np.multiply(a, a, out=squares[index, :rows])
            squares[index, :rows] += b * b
            others = exact[:, self.setting.rotary_dim :]
            np.square(others, out=rest[index, :rows])
            endings.add(int(index >= len(self.inputs.q)), others[::_EVERY])
        norms = [reduce_blocks(part.sum(axis=2), fine, np.maximum, 1) for part in (squares, rest)]
        sums = [reduce_blocks(part[:, :rows], coarse, np.add, 1) for part in (squares, rest)]
        largest = np.array([part.max(axis=(1, 2), initial=0.0) for part in (squares, rest)])
        by_block = squares.reshape(len(heads), padded // fine, fine, pairs)
        first = start // self.blocks.fine
        blocks = slice(first, first + padded // fine)
        weighted = {}
        for index in self.members[fmt]:
            cell = self.cells[index]
            phase = cell.largest[blocks] ** 2
            parts = [phase, *(np.broadcast_to(part, phase.shape) for part in (cell.rate, cell.even))]
            most = (by_block @ np.stack(parts, axis=-1)).max(axis=2)  # (h + g, b, c, p) times (b, p, 3)
            weighted[index] = np.moveaxis(most, 2, 0)
        return InputSums(norms[0], norms[1], sums[0], sums[1], largest, weighted, endings)

    def _join_panels(self, parts: Sequence[InputSums]) -> InputSums:
        fine, coarse = self.blocks.fine, self.blocks.coarse

        def joined(name: str, size: int, operation: np.ufunc) -> Array:
            return join_panels([getattr(part, name) for part in parts], size, operation, 1)

        return InputSums(
            joined("pairs", fine, np.maximum),
            joined("rest", fine, np.maximum),
            joined("squares", coarse, np.add),
            joined("rest_squares", coarse, np.add),
            np.max([part.largest for part in parts], axis=0),
            {
                index: join_panels([part.weighted[index] for part in parts], fine, np.maximum, 2)
                for index in parts[0].weighted
            },
            Endings.joined([part.endings for part in parts]),
        )


_blocks = functools.lru_cache(maxsize=8)(Blocks)  # a search asks for them again and again


class _Side(NamedTuple):
    """q or k of all query heads, the attention factor included.

    pairs, rest: norms of rotated pairs and of the other dims. by_phase, by_rate, by_even: of pairs weighted
    by their largest phase errors, by the roots of their rates and of the former. squares, rest_squares: sums.
    largest, largest_rest: of a pair and of another dim.
    Shapes: norms (h, b), squares (h, b, p) and (h, b, d - 2p), largest (h,).
    """

    pairs: Array
    rest: Array
    by_phase: Array
    by_rate: Array
    by_even: Array
    squares: Array
    rest_squares: Array
    largest: Array
    largest_rest: Array

    @classmethod
    def of(cls, sums: InputSums, cell: int, heads: NDArray[np.intp], weight: float) -> _Side:
        """Return some heads of the sums of a cell. weight: the attention factor."""
        by_phase, by_rate, by_even = weight * np.sqrt(sums.weighted[cell][:, heads])
        return cls(
            weight * np.sqrt(sums.pairs[heads]),
            np.sqrt(sums.rest[heads]),
            *(by_phase, by_rate, by_even),
            weight**2 * sums.squares[heads],
            sums.rest_squares[heads],
            weight * np.sqrt(sums.largest[0, heads]),
            np.sqrt(sums.largest[1, heads]),
        )


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
        self.rotated: PairError = terms.rotated_pair(subject)
        self.unrotated: PairError = terms.unrotated_dim(subject, inputs)
        heads = np.arange(inputs.heads)
        self.q, self.k = (
            _Side.of(sums, cell, of_side, self.rotated.weight)
            for of_side in (heads, inputs.heads + heads // inputs.group)
        )
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
        known, own, cosine, sine, noise = self.weights.means
        # half of x y ((known(m) - known(n))^2 + noise(m) + noise(n))
        squares = summed(q.squares * own, k.squares) + summed(q.squares, k.squares * own)
        alike = self.blocks.diagonal(q.squares, k.squares * noise)
        small = squares / 2 - summed(q.squares * known, k.squares * known) - alike
        # x y (1 - mean cosine of the phase error): the mean of |1 - e^(i error)|^2 / 2
        large = both
        for weight in (cosine, sine):
            large = large - summed(q.squares * weight, k.squares * weight)
        large = large + self.blocks.diagonal(q.squares, k.squares * np.expm1(-noise))
        from_phases = np.where(self.weights.small, small, large)
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
        norms = [np.sqrt((side.pairs**2 + side.rest**2).max(axis=1)) for side in both]
        largest = norms[0] * norms[1] * grown * (1 + self.subject.score.unit_roundoff) ** 2
        return not (largest <= self.score.largest).all()

    def _relative(self, pair: PairError) -> float:
        """Return the sum of all relative rounding errors, the factor on |q_i| |k_i|."""
        both = (1 + pair.worst) ** 2
        return both - 1 + self.sum_worst * both + self.score.adds / self.score.grows

    def _largest(self) -> float:
        """Return the largest bound of the error of an unscaled score.

        sum of |q_i| |k_i| min(2, phase_q + phase_k + distance |rate|) + relative errors, by norms.
        """
        largest = 0.0
        for head in range(len(self.q.pairs)):
            for rows, cols, hidden in self.blocks.strips:
                error = self._pair_errors(head, rows, cols)
                error[hidden] = 0.0
                largest = max(largest, float(error.max()))
        rotated, unrotated, setting = self.rotated, self.unrotated, self.setting
        parts = math.sqrt(setting.pairs), math.sqrt(setting.head_dim - setting.rotary_dim)  # 1- from 2-norms
        small = sum(
            rotated.small * (1 + rotated.worst) * parts[0] * float(side.pairs.max())
            + unrotated.small * (1 + unrotated.worst) * parts[1] * float(side.rest.max())
            for side in (self.q, self.k)
        )
        low = self.subject.accumulate.smallest_subnormal
        underflow = small + setting.head_dim * (max(rotated.small, unrotated.small) ** 2 + low)
        return largest + (1 + self.sum_worst) * underflow

    def _pair_errors(self, head: int, rows: slice, cols: slice) -> Array:
        """Return the bound of each pair of blocks of norms. Shapes: -> (r, c)."""
        q, k, distance = self.q, self.k, self.blocks.distance[rows, cols]
        spare = np.empty_like(distance)

        def outer(x: Array, y: Array, out: Array = spare) -> Array:
            return np.multiply(x[head, rows, None], y[head, cols], out=out)

        error = outer(q.by_phase, k.pairs, np.empty_like(distance))
        error += outer(q.pairs, k.by_phase)
        np.minimum(error, np.multiply(2, outer(q.by_even, k.by_even), out=spare), out=error)
        error += np.multiply(distance, outer(q.by_rate, k.by_rate), out=spare)
        np.minimum(error, np.multiply(2, outer(q.pairs, k.pairs), out=spare), out=error)
        error += np.multiply(self._relative(self.rotated) / 2, spare, out=spare)
        if self.setting.rotary_dim < self.setting.head_dim:
            error += np.multiply(self._relative(self.unrotated), outer(q.rest, k.rest), out=spare)
        return error
