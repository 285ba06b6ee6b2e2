"""How positions are cut into blocks, and which blocks of queries see which blocks of keys.

Letters: h heads, p pairs, b blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask

PANEL = 512  # positions at once
_BLOCKS = 256  # of largest norms
_SUMS, _MOST_SUMS = 64, 4096  # blocks of sums of squares, and of those along a narrow window
_ROWS = 64  # blocks of queries at once
_LAGS = 12  # more diagonals of blocks than these are summed as a matrix


class Blocks:
    """How positions are cut: into blocks of `fine` positions for norms, of `coarse` ones for sums.

    Along a window the sums have blocks of a quarter of its width, as long as there are not too many of them.
    """

    def __init__(self, mask: Mask, seq_len: int) -> None:
        self.seq_len = seq_len
        self.fine, self.coarse = _block_size(seq_len, _BLOCKS), _block_size(seq_len, _SUMS)
        width = masks.reach(mask, seq_len) + 1
        if width < seq_len:
            quarter = 1 << max(0, width.bit_length() - 3)
            self.coarse = max(min(self.coarse, quarter), _block_size(seq_len, _MOST_SUMS))

    @property
    def sizes(self) -> Array:
        """The number of positions in each block of sums. Shapes: (b,)."""
        return np.diff(_edges(self.seq_len, self.coarse)).astype(np.float64)


class BlockPairs:
    """Which blocks of queries see which blocks of keys.

    distance: the largest |m - n| between two blocks (b, b). strips: rows and columns of the pairs where any
    query sees a key, a few rows at a time, which stay in a core's cache; and where, in each, none does.
    """

    distance: Array
    strips: list[tuple[slice, slice, NDArray[np.bool_]]]

    def __init__(self, mask: Mask, blocks: Blocks) -> None:
        """Count the visible scores of pairs of blocks: of norms, and of sums."""
        cuts = _edges(blocks.seq_len, blocks.fine)
        rows, cols = (cuts[:-1, None], cuts[1:, None]), (cuts[None, :-1], cuts[None, 1:])
        farthest = np.maximum(rows[1] - 1 - cols[0], cols[1] - 1 - rows[0])
        reach = masks.reach(mask, blocks.seq_len)
        self.distance = np.minimum(farthest, reach).astype(np.float64)
        self.strips = list(_strips(masks.counts(mask, rows, cols) > 0))
        self._sizes, cuts = blocks.sizes, _edges(blocks.seq_len, blocks.coarse)
        count, lags = len(self._sizes), reach // blocks.coarse + 2
        self._shares = []
        for lag in range(1 - count if mask == "full" else 0, min(lags, count)):
            q, k = slice(max(lag, 0), count + min(lag, 0)), slice(max(-lag, 0), count - max(lag, 0))
            seen = masks.counts(mask, (cuts[:-1][q], cuts[1:][q]), (cuts[:-1][k], cuts[1:][k]))
            self._shares.append((q, k, (seen / (self._sizes[q] * self._sizes[k]))[:, None]))
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
        return np.asarray((q * k / self._sizes[:, None]).sum(axis=(0, 1)))


def _strips(seen: NDArray[np.bool_]) -> Iterator[tuple[slice, slice, NDArray[np.bool_]]]:
    """Yield rows, the columns that any of them sees, and where none is seen. Shapes: seen (b, b)."""
    for start in range(0, len(seen), _ROWS):
        rows = slice(start, min(start + _ROWS, len(seen)))
        columns = np.flatnonzero(seen[rows].any(axis=0))
        if columns.size:
            cols = slice(int(columns[0]), int(columns[-1]) + 1)
            yield rows, cols, ~seen[rows, cols]


def reduce_blocks(values: Array, size: int, operation: np.ufunc, axis: int) -> Array:
    """Reduce every `size` neighbours along an axis to one; the last block may be shorter."""
    if size == 1:
        return values
    if values.shape[axis] % size:
        return np.asarray(operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis))
    cut = (*values.shape[:axis], values.shape[axis] // size, size, *values.shape[axis + 1 :])
    return np.asarray(operation.reduce(values.reshape(cut), axis=axis + 1))


def join_panels(panels: Sequence[Array], size: int, operation: np.ufunc, axis: int) -> Array:
    """Bring the blocks of panels together; a block may be longer than a panel."""
    return reduce_blocks(np.concatenate(panels, axis=axis), max(1, size // PANEL), operation, axis)


def _block_size(seq_len: int, most: int) -> int:
    """Return the smallest power of two that cuts seq_len into at most `most` blocks."""
    return 1 << max(0, math.ceil(math.log2(seq_len / most)))


def _edges(seq_len: int, size: int) -> NDArray[np.int64]:
    return np.array([*range(0, seq_len, size), seq_len], dtype=np.int64)
