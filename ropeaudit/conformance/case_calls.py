"""The calls of a case of vectors: runs at offsets, and calls as servers make them.

Letters: b batch elements, h heads of q, g of k, s positions, d head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.subjects import Positions

SERVED_LEAST = 48  # tokens of a case, from which on the rows of its served calls stand apart
_ROWS, _DECODED = 4, 33  # of a ragged batch, and of one with a token each

Key: TypeAlias = int | str  # of a call: its offset, or the name of a served one


@dataclass(frozen=True, slots=True)
class CaseCall:
    """One call of a case: its sizes, and where its tokens stand.

    key: in the names of its files. first: the position of the first token; step: from one batch element to
    the next. bounds: where packed sequences begin and end in the row, each at position 0; none: a run.
    """

    key: Key
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    first: int
    step: int = 0
    bounds: tuple[int, ...] = ()

    @property
    def served(self) -> bool:
        """Whether it has sizes of its own, and positions for each batch element."""
        return isinstance(self.key, str)

    def row(self) -> Positions:
        """Return the positions of the first batch element. Shapes: -> (s,)."""
        at: Positions = np.arange(self.seq_len, dtype=np.int64) + self.first
        for start in self.bounds[1:-1]:
            at[start:] = np.arange(self.seq_len - start)
        return at

    def positions(self) -> Positions:
        """Return the positions as they are given. Shapes: -> (s,), of served calls (b, s)."""
        rows: Positions = self.row() + self.step * np.arange(self.batch, dtype=np.int64)[:, None]
        return rows if self.served else rows[0]

    def part(self, x: FloatArray, key: bool) -> FloatArray:
        """Return its q, or k: as many numbers as it has, the first ones of all that are given."""
        shape = (self.batch, self.kv_heads if key else self.heads, self.seq_len, x.shape[-1])
        return x.reshape(-1)[: math.prod(shape)].reshape(shape)


def served_calls(heads: int, kv_heads: int, seq_len: int, end: int) -> tuple[CaseCall, ...]:
    """Return the calls of a case as servers make them, at positions below `end`.

    The first row of a batch is the farthest, so that its positions are none to which those of others are cut
    off or wrapped. No call has more numbers of q or k than two batch elements of the case.
    """
    half = seq_len // 2

    def ragged(key: str, batch: int, length: int) -> CaseCall:
        first = end - length
        step = (first // (batch + 1) - 1) | 1  # odd: none of a wrap
        return CaseCall(key, batch, heads, kv_heads, length, first, -step)

    bounds = 0, half, half + 1, seq_len + seq_len // 4, 2 * seq_len  # one sequence of a token too
    return (
        ragged("ragged", _ROWS, half),
        ragged("one-token", _DECODED, 1),
        CaseCall("packed", 1, heads, kv_heads, 2 * seq_len, 0, bounds=bounds),
        CaseCall("groups", 1, 4 * heads, max(kv_heads, 2), half, end - half),
        CaseCall("one-key-head", 1, 4 * heads, 1, half, end - half),
    )
