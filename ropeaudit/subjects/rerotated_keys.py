"""Recipes whose keys are rotated again and again from their stored values, instead of once.

After N turns of `by` tokens a key has been rounded N + 1 times: its error grows, and where the cos and sin of
a turn are rounded, cos² + sin² is not 1, and its norm grows or shrinks by the same factor at every turn.
This is what llama.cpp does to shift a context (K-shift), and what position-independent reuse of a KV cache
does to place one. Queries are rotated once, where the keys end.

Letters: g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import threads
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated, Table

BY = -16  # tokens of a turn
MOST_TURNS = 100_000
_BLOCK = 512  # keys that take all turns together, within the processor's cache


class Turns(NamedTuple):
    """How often stored keys are rotated again, and by how many tokens each time."""

    number: int
    by: int

    def start(self, offset: int) -> int:
        """Return the offset at which keys that end at `offset` are stored first."""
        return offset - self.number * self.by

    def __str__(self) -> str:
        return f"{self.number} x {self.by}"


def turns(count: int | None, by: int | None) -> Turns | None:
    """Return the turns of a case, None where keys are stored once. Raises: UsageError."""
    if count is None:
        if by is not None:
            raise UsageError(f"--turn {by} says how far a turn moves stored keys; add --rerotate 64")
        return None
    if not 0 <= count <= MOST_TURNS:
        raise UsageError(
            f"--rerotate {count} is not a number from 0 to {MOST_TURNS}; try --rerotate 1,16,64,256"
        )
    return Turns(count, BY if by is None else by)


class RerotatedTable(NamedTuple):
    """Cos and sin of some positions: where q and k end, and where k is stored first. offset: the former's."""

    fresh: Table
    stored: Table
    positions: Positions
    offset: int


class RerotatedKeys(Emulated):
    """A recipe whose stored k is rotated again; implements `ropeaudit.subjects.StoresKeys`."""

    def __init__(
        self, recipe: Resolved, setting: RopeSetting, axes: Axes | None, turns: Turns, inputs: object
    ) -> None:
        """Prepare the table of a turn. inputs: q and k; the norms of a sample's k are not kept."""
        super().__init__(recipe, setting, axes)
        self.turns = turns
        if attention_factor(setting.scaling) != 1.0:  # it is in the stored keys, and must not come in again
            setting = replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))
        self._turned = Emulated(recipe, setting, axes)
        self._turn = self._turned.table(np.zeros(1, dtype=np.int64), turns.by)
        self._shape = inputs.k.shape[:2] if isinstance(inputs, Inputs) else None
        self._growth: dict[int, FloatArray] = {}  # offset -> |k| over its exact norm, (g, s)

    def table(self, positions: Positions, offset: int) -> RerotatedTable:  # type: ignore[override]
        """Return cos and sin as stored, at both ends of the turns. Shapes: (s,) -> of (s, p)."""
        fresh = super().table(positions, offset)
        return RerotatedTable(fresh, super().table(positions, self.turns.start(offset)), positions, offset)

    def rotate(self, x: FloatArray, table: RerotatedTable) -> FloatArray:  # type: ignore[override]
        """Return x rotated once, as q. Shapes: (s, d) -> (s, d)."""
        return super().rotate(x, table.fresh)

    def store_key(self, x: FloatArray, table: RerotatedTable, head: int | None) -> FloatArray:
        """Return x of a head of k, stored and then rotated turn by turn. Shapes: (s, d) -> (s, d)."""
        keys = super().rotate(x, table.stored)
        for start in range(0, len(keys), _BLOCK):
            block = keys[start : start + _BLOCK]
            for _ in range(self.turns.number):
                if threads.dropped():
                    break
                block = self._turned.rotate(block, self._turn)
            keys[start : start + _BLOCK] = block
        if self._shape is not None and head is not None:
            growth = self._growth.setdefault(table.offset, np.full(self._shape, np.nan))
            growth[head, table.positions] = self._grown(x, keys)
        return keys

    def _grown(self, x: FloatArray, keys: FloatArray) -> FloatArray:
        """Return the norm of each key over that of x rotated exactly, -1 for x of 0. Shapes: -> (s,)."""
        rotary = self.setting.rotary_dim
        exact = x.astype(np.float64)
        exact[:, :rotary] *= attention_factor(self.setting.scaling)
        norms, own = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (exact, keys))
        ratios: FloatArray = np.divide(own, norms, out=np.full(len(norms), -1.0), where=norms > 0)
        return ratios

    def norm_growth(self, offset: int) -> float | None:
        """Return the mean relative change of the norms of keys that are not 0, None of a sample.

        nan where one is not finite, or all are 0.
        """
        if self._shape is None:
            return None
        growth = self._growth[offset]
        kept = growth[growth != -1]
        return float(np.mean(kept - 1)) if kept.size else float("nan")
