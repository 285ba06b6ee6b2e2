"""What q and k contribute to bounds, summed by blocks of positions.

Letters: h heads, g key-value heads, s positions, d head_dim, p pairs, b blocks, c positions of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import phases
from ropeaudit.bounds.blocks import PANEL, Blocks, join_panels, reduce_blocks
from ropeaudit.bounds.endings import Endings
from ropeaudit.bounds.phases import Phase
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

_EVERY = 8  # of how many positions the last bits are counted: a share is asked for
_SMALL = 1e-2  # phase errors below it count by their squares, for 1 - cos would cancel


# errors of the angles of a subject, at steps (s,) + offset
PhaseAt = Callable[[Emulated, Positions, int], Phase]


class PhaseWeights:
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
        seq_len = blocks.seq_len
        self._phase: Callable[[Positions], Phase] = lambda steps: phase(subject, steps, offset)
        self.input = subject.input
        self._rate = phases.rate(subject)
        self.rate = np.abs(self._rate)
        ends = np.array([0, seq_len - 1])
        at_ends = self._phase(ends)
        self._middle = at_ends.known.mean(axis=0)
        self._centre = (at_ends.known - ends[:, None] * self._rate).mean(axis=0)
        aliasing = phases.aliasing(subject, seq_len, offset)
        parts = aliasing, at_ends.known, at_ends.worst
        self.finite = all(bool(np.isfinite(part).all()) for part in parts)
        size = np.abs(at_ends.known - self._middle).max(axis=0) + np.ptp(aliasing, axis=0) * phases.thetas(
            subject
        )
        self.small = np.sqrt(size**2 + at_ends.variance.max(axis=0)) < _SMALL
        if self.finite:
            fine, coarse = blocks.fine, blocks.coarse
            starts = range(0, seq_len, PANEL)
            panels = [self._panel(start, min(start + PANEL, seq_len), fine, coarse) for start in starts]
            largest, sums = ([panel[place] for panel in panels] for place in (0, 1))
            self.largest = join_panels(largest, fine, np.maximum, 0)
            self.even = self.largest.max(axis=0)
            self.means = join_panels(sums, coarse, np.add, 1) / blocks.sizes[:, None]

    def _panel(self, start: int, stop: int, fine: int, coarse: int) -> tuple[Array, Array]:
        """Return the largest phase errors by block, and sums of the weights. Shapes: -> (b, p), (5, b, p)."""
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
    """The inputs of several cells, gathered a panel of positions at a time."""

    def __init__(
        self, inputs: Inputs, setting: RopeSetting, cells: Sequence[PhaseWeights], blocks: Blocks
    ) -> None:
        self.inputs, self.setting, self.cells = inputs, setting, cells
        self.size, self.fine, self.coarse = blocks.seq_len, blocks.fine, blocks.coarse
        formats = inputs.distinct(weights.input for weights in cells)
        self.members: dict[Format, list[int]] = {}
        for index, weights in enumerate(cells):
            self.members.setdefault(formats[weights.input], []).append(index)

        self.starts = range(0, self.size, PANEL)

    def panel(self, start: int) -> dict[Format, InputSums]:
        """Return the sums of one panel of positions, by input format."""
        return {fmt: self._panel_in(fmt, start, min(start + PANEL, self.size)) for fmt in self.members}

    def join(self, panels: Sequence[dict[Format, InputSums]]) -> dict[int, InputSums]:
        """Return the sums of all panels together, by cell: those in its input format."""
        by_format = {fmt: self._join([panel[fmt] for panel in panels]) for fmt in self.members}
        return {index: by_format[fmt] for fmt, members in self.members.items() for index in members}

    def _panel_in(self, fmt: Format, start: int, stop: int) -> InputSums:
        rows, pairs = stop - start, self.setting.pairs
        fine, coarse = min(self.fine, PANEL), min(self.coarse, PANEL)
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
        blocks = slice(start // self.fine, start // self.fine + padded // fine)
        weighted = {}
        for index in self.members[fmt]:
            cell = self.cells[index]
            phase = cell.largest[blocks] ** 2
            parts = [phase, *(np.broadcast_to(part, phase.shape) for part in (cell.rate, cell.even))]
            most = (by_block @ np.stack(parts, axis=-1)).max(axis=2)  # (h + g, b, c, p) times (b, p, 3)
            weighted[index] = np.moveaxis(most, 2, 0)
        return InputSums(norms[0], norms[1], sums[0], sums[1], largest, weighted, endings)

    def _join(self, parts: Sequence[InputSums]) -> InputSums:
        """Return the sums of panels together."""

        def joined(name: str, size: int, operation: np.ufunc) -> Array:
            return join_panels([getattr(part, name) for part in parts], size, operation, 1)

        return InputSums(
            joined("pairs", self.fine, np.maximum),
            joined("rest", self.fine, np.maximum),
            joined("squares", self.coarse, np.add),
            joined("rest_squares", self.coarse, np.add),
            np.max([part.largest for part in parts], axis=0),
            {
                index: join_panels([part.weighted[index] for part in parts], self.fine, np.maximum, 2)
                for index in parts[0].weighted
            },
            Endings.joined([part.endings for part in parts]),
        )
