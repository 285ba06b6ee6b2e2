"""What q and k contribute to bounds, gathered by blocks of positions, and how blocks meet.

Letters: h heads, g key-value heads, s positions, d head_dim, p pairs, b blocks, c positions of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import terms
from ropeaudit.bounds.terms import Phase
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

PANEL = 512  # positions at once
_BLOCKS = 256  # of largest norms
_SUMS, _MOST_SUMS = 64, 4096  # blocks of sums of squares, and of those along a narrow window
_LAGS = 12  # more diagonals of blocks than these are summed as a matrix
_SMALL = 1e-2  # phase errors below it count by their squares, for 1 - cos would cancel


# errors of the angles of a subject, at steps (s,) + offset
PhaseAt = Callable[[Emulated, Positions, int], Phase]


class Blocks:
    """How positions are cut: into blocks of `fine` positions for norms, of `coarse` ones for sums.

    Along a window the sums have blocks of a quarter of its width, as long as there are not too many of them.
    """

    def __init__(self, mask: Mask, seq_len: int) -> None:
        """Choose powers of two."""
        self.seq_len, self.fine, self.coarse = seq_len, _size(seq_len, _BLOCKS), _size(seq_len, _SUMS)
        width = masks.reach(mask, seq_len) + 1
        if width < seq_len:
            quarter = 1 << max(0, width.bit_length() - 3)
            self.coarse = max(min(self.coarse, quarter), _size(seq_len, _MOST_SUMS))

    @property
    def sizes(self) -> Array:
        """Positions in each block of sums. Shapes: -> (b,)."""
        return np.diff(_edges(self.seq_len, self.coarse)).astype(np.float64)


class Weights:
    """The phase errors of a subject at an offset: what q and k are multiplied by, block by block.

    finite: whether they all are. rate: |frequency errors| (p,). largest: that of the others in a block,
    up to 2 (b, p). even: the largest of all (p,). small: pairs whose errors are small (p,). means, over other
    blocks: of what is known, of its square with the noise, of cosine and sine of large ones, of the noise
    (5, b, p).
    """

    largest: Array
    even: Array
    means: Array

    def __init__(self, subject: Emulated, offset: int, blocks: Blocks, phase: PhaseAt) -> None:
        """Compute them all."""
        seq_len = blocks.seq_len
        self._phase: Callable[[Positions], Phase] = lambda steps: phase(subject, steps, offset)
        self.input = subject.input
        self._rate = terms.rate(subject)
        self.rate = np.abs(self._rate)
        ends = np.array([0, seq_len - 1])
        result = self._phase(ends)
        self._middle = result.known.mean(axis=0)
        self._centre = (result.known - ends[:, None] * self._rate).mean(axis=0)
        aliasing = terms.aliasing(subject, seq_len, offset)
        parts = aliasing, result.known, result.worst
        self.finite = all(bool(np.isfinite(part).all()) for part in parts)
        size = np.abs(result.known - self._middle).max(axis=0) + np.ptp(aliasing) * terms.thetas(subject)
        self.small = np.sqrt(size**2 + result.variance.max(axis=0)) < _SMALL
        if self.finite:
            fine, coarse = blocks.fine, blocks.coarse
            starts = range(0, seq_len, PANEL)
            panels = [self._panel(start, min(start + PANEL, seq_len), fine, coarse) for start in starts]
            largest, sums = ([panel[place] for panel in panels] for place in (0, 1))
            self.largest = _joined(largest, fine, np.maximum, 0)
            self.even = self.largest.max(axis=0)
            self.means = _joined(sums, coarse, np.add, 1) / blocks.sizes[:, None]

    def _panel(self, start: int, stop: int, fine: int, coarse: int) -> tuple[Array, Array]:
        """What is lost at most, and sums of the weights. Shapes: -> (b, p), (5, b, p)."""
        steps = np.arange(start, stop, dtype=np.int64)
        result = self._phase(steps)
        bounded = result.known - steps[:, None] * self._rate - self._centre
        largest = np.minimum(2.0, np.abs(bounded) + result.worst)
        weights, large = np.zeros((5, *largest.shape)), ~self.small
        known = np.subtract(result.known, self._middle, out=weights[0])
        np.add(known**2, result.variance, out=weights[1])
        weights[4] = result.variance
        if large.any():
            stored = np.exp(-result.variance[:, large] / 2)
            weights[2][:, large] = stored * np.cos(known[:, large])
            weights[3][:, large] = stored * np.sin(known[:, large])
        return _blocks(largest, min(fine, PANEL), np.maximum, 0), _blocks(
            weights, min(coarse, PANEL), np.add, 1
        )


@dataclass(frozen=True, slots=True)
class Gathered:
    """All heads of q, then of k, as an input format holds them.

    pairs, rest: largest squared 2-norms of the rotated pairs and of the other dims (h + g, b).
    squares, rest_squares: sums over other blocks (h + g, b, p), (h + g, b, d - 2p).
    largest: the largest squared pair and other dim (2, h + g).
    weighted: by cell, the largest squared norms of pairs times `Weights.largest`, times the roots of
    `Weights.rate` and of `Weights.even` (3, h + g, b).
    """

    pairs: Array
    rest: Array
    squares: Array
    rest_squares: Array
    largest: Array
    weighted: dict[int, Array]


class Gathering:
    """The inputs of several cells, gathered a panel of positions at a time."""

    def __init__(
        self, inputs: Inputs, setting: RopeSetting, cells: Sequence[Weights], blocks: Blocks
    ) -> None:
        """Keep what is gathered; cells are called by their index."""
        self.inputs, self.setting, self.cells = inputs, setting, cells
        self.size, self.fine, self.coarse = blocks.seq_len, blocks.fine, blocks.coarse
        formats = inputs.distinct(weights.input for weights in cells)
        self.members: dict[Format, list[int]] = {}
        for index, weights in enumerate(cells):
            self.members.setdefault(formats[weights.input], []).append(index)

        self.starts = range(0, self.size, PANEL)

    def panel(self, start: int) -> dict[Format, Gathered]:
        """Gather one panel, in every input format."""
        return {fmt: self._format(fmt, start, min(start + PANEL, self.size)) for fmt in self.members}

    def joined(self, panels: Sequence[dict[Format, Gathered]]) -> dict[int, Gathered]:
        """Bring all panels together; return for every cell what was gathered in its input format."""
        results = {fmt: self._joined([panel[fmt] for panel in panels]) for fmt in self.members}
        return {index: results[fmt] for fmt, members in self.members.items() for index in members}

    def _format(self, fmt: Format, start: int, stop: int) -> Gathered:
        rows, pairs = stop - start, self.setting.pairs
        fine, coarse = min(self.fine, PANEL), min(self.coarse, PANEL)
        whole = -(-rows // fine) * fine  # rows of zeros fill the last block
        heads = (*self.inputs.q, *self.inputs.k)
        squares = np.zeros((len(heads), whole, pairs))
        rest = np.zeros((len(heads), whole, self.setting.head_dim - self.setting.rotary_dim))
        for index, x in enumerate(heads):
            exact = round_to(x[start:stop], fmt).astype(np.float64, copy=False)
            a, b = split_pairs(exact, self.setting)
            np.multiply(a, a, out=squares[index, :rows])
            squares[index, :rows] += b * b
            np.square(exact[:, self.setting.rotary_dim :], out=rest[index, :rows])
        norms = [_blocks(part.sum(axis=2), fine, np.maximum, 1) for part in (squares, rest)]
        sums = [_blocks(part[:, :rows], coarse, np.add, 1) for part in (squares, rest)]
        largest = np.array([part.max(axis=(1, 2), initial=0.0) for part in (squares, rest)])
        by_block = squares.reshape(len(heads), whole // fine, fine, pairs)
        blocks = slice(start // self.fine, start // self.fine + whole // fine)
        weighted = {}
        for index in self.members[fmt]:
            cell = self.cells[index]
            others = cell.largest[blocks] ** 2
            parts = [others, *(np.broadcast_to(part, others.shape) for part in (cell.rate, cell.even))]
            most = (by_block @ np.stack(parts, axis=-1)).max(axis=2)  # (h + g, b, c, p) times (b, p, 3)
            weighted[index] = np.moveaxis(most, 2, 0)
        return Gathered(norms[0], norms[1], sums[0], sums[1], largest, weighted)

    def _joined(self, parts: Sequence[Gathered]) -> Gathered:
        """Bring panels together."""

        def joined(name: str, size: int, operation: np.ufunc) -> Array:
            return _joined([getattr(part, name) for part in parts], size, operation, 1)

        return Gathered(
            joined("pairs", self.fine, np.maximum),
            joined("rest", self.fine, np.maximum),
            joined("squares", self.coarse, np.add),
            joined("rest_squares", self.coarse, np.add),
            np.max([part.largest for part in parts], axis=0),
            {
                index: _joined([part.weighted[index] for part in parts], self.fine, np.maximum, 2)
                for index in parts[0].weighted
            },
        )


class Meeting:
    """Which blocks of queries see which blocks of keys.

    distance: the largest |m - n| between two blocks (b, b). seen: whether any query sees a key (b, b).
    """

    distance: Array
    seen: NDArray[np.bool_]

    def __init__(self, mask: Mask, blocks: Blocks) -> None:
        """Count, for blocks of norms and for blocks of sums."""
        cuts = _edges(blocks.seq_len, blocks.fine)
        rows, cols = (cuts[:-1, None], cuts[1:, None]), (cuts[None, :-1], cuts[None, 1:])
        apart = np.maximum(rows[1] - 1 - cols[0], cols[1] - 1 - rows[0])
        reach = masks.reach(mask, blocks.seq_len)
        self.distance = np.minimum(apart, reach).astype(np.float64)
        self.seen = masks.counts(mask, rows, cols) > 0
        self._sizes, cuts = blocks.sizes, _edges(blocks.seq_len, blocks.coarse)
        count, before = len(self._sizes), reach // blocks.coarse + 2
        self._shares = []
        for lag in range(1 - count if mask == "full" else 0, min(before, count)):
            q, k = slice(max(lag, 0), count + min(lag, 0)), slice(max(-lag, 0), count - max(lag, 0))
            seen = masks.counts(mask, (cuts[:-1][q], cuts[1:][q]), (cuts[:-1][k], cuts[1:][k]))
            self._shares.append((q, k, (seen / (self._sizes[q] * self._sizes[k]))[:, None]))
        self._dense: Array | None = None
        if len(self._shares) > _LAGS:
            self._dense = np.zeros((count, count))
            for q, k, share in self._shares:
                np.einsum("ii->i", self._dense[q, k])[:] = share[:, 0]

    def sum(self, q: Array, k: Array) -> Array:
        """Sum of q(m) k(n) over the visible m, n of all heads; inside a pair of blocks all count alike.

        Shapes: (h, b, p), (h, b, p) -> (p,).
        """
        if self._dense is not None:
            return np.asarray((q * (self._dense @ k)).sum(axis=(0, 1)))
        parts = [(q[:, rows] * share * k[:, cols]).sum(axis=(0, 1)) for rows, cols, share in self._shares]
        return np.asarray(np.sum(parts, axis=0))

    def diagonal(self, q: Array, k: Array) -> Array:
        """Sum of q(m) k(m) of all heads; inside a block all count alike. Shapes: (h, b, p) twice -> (p,)."""
        return np.asarray((q * k / self._sizes[:, None]).sum(axis=(0, 1)))


def _blocks(values: Array, size: int, operation: np.ufunc, axis: int) -> Array:
    """Reduce every `size` neighbours along an axis to one; the last block may be shorter."""
    if size == 1:
        return values
    if values.shape[axis] % size:
        return np.asarray(operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis))
    cut = (*values.shape[:axis], values.shape[axis] // size, size, *values.shape[axis + 1 :])
    return np.asarray(operation.reduce(values.reshape(cut), axis=axis + 1))


def _joined(panels: Sequence[Array], size: int, operation: np.ufunc, axis: int) -> Array:
    """Bring the blocks of panels together; a block may be longer than a panel."""
    return _blocks(np.concatenate(panels, axis=axis), max(1, size // PANEL), operation, axis)


def _size(seq_len: int, most: int) -> int:
    """The smallest power of two that cuts seq_len into at most `most` blocks."""
    return 1 << max(0, math.ceil(math.log2(seq_len / most)))


def _edges(seq_len: int, size: int) -> NDArray[np.int64]:
    return np.array([*range(0, seq_len, size), seq_len], dtype=np.int64)
