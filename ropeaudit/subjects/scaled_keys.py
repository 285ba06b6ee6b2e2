"""Recipes whose keys are stored with scales, before or after rotation, as in 8-bit caches.

The reference sees k as it was before: what storing does to it counts as drift.
Letters: g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Recipe, Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import threads
from ropeaudit.subjects import Positions, Subject
from ropeaudit.subjects.emulated import Emulated, Table

BY = -16  # tokens of a turn
MOST_TURNS = 100_000
_TURNED_AT_ONCE = 512  # keys that take all turns together, within the processor's cache
_BLOCK = 8192  # positions rotated at once

TableAt = tuple[Table, int]  # cos and sin, and the offset that they are of


class ScaledKeys(Emulated):
    """A recipe whose k is stored with scales; implements `ropeaudit.subjects.RotatesHeads`."""

    def __init__(
        self,
        recipe: Resolved,
        setting: RopeSetting,
        axes: Axes | None,
        k: FloatArray | None,
    ) -> None:
        """Keep k, which gives the scales. Shapes: k (g, s, d), None of a sample."""
        super().__init__(recipe, setting, axes)
        assert recipe.recipe.keys is not None  # noqa: S101 for mypy
        stage, self.scaled = recipe.recipe.keys
        self.before = stage == "input"
        self.k = k
        self._largest: dict[int, FloatArray] = {}
        self._lock = threading.Lock()

    def table(self, positions: Positions, offset: int) -> TableAt:  # type: ignore[override]
        """Return cos and sin as stored, and the offset. Shapes: (s,) -> two of (s, p)."""
        return super().table(positions, offset), offset

    def rotate(self, x: FloatArray, table: TableAt) -> FloatArray:  # type: ignore[override]
        """Return x rotated, as q. Shapes: (s, d) -> (s, d)."""
        return super().rotate(x, table[0])

    def rotate_head(self, x: FloatArray, table: TableAt, key: bool, head: int | None) -> FloatArray:
        """Return x rotated, and stored if it is k. head: None in a sample. Shapes: (s, d) -> (s, d)."""
        if not key:
            return self.rotate(x, table)
        if self.before:
            largest = self._of_group(x, 0, head)
            return self.rotate(round_to(self.scaled.stored(x, largest), self.recipe.input), table)
        rotated = self.rotate(x, table)
        largest = self._of_group(rotated, table[1], head)
        return round_to(self.scaled.stored(rotated, largest), self.recipe.output)

    def _of_group(self, x: FloatArray, offset: int, head: int | None) -> FloatArray:
        """Return the largest |x| of each group. Shapes: (s, d) -> what broadcasts to it."""
        if self.scaled.group == "token":
            return np.asarray(np.abs(x).max(axis=1, keepdims=True))
        with self._lock:
            if offset not in self._largest:
                self._largest[offset] = self._by_channel(offset)
        largest = self._largest[offset]
        if self.scaled.group == "tensor":
            return np.asarray(largest.max())
        of_head: FloatArray = largest[0 if head is None else head]
        return of_head if self.scaled.group == "channel" else np.asarray(of_head.max())

    def _by_channel(self, offset: int) -> FloatArray:
        """Return the largest |k| of each dim of each head. Shapes: (g, d)."""
        assert self.k is not None  # noqa: S101 a sample has scales by token alone
        heads, size, _ = self.k.shape
        largest = np.zeros((heads, self.setting.head_dim))
        for start in range(0, size, _BLOCK):
            at = np.arange(start, min(start + _BLOCK, size), dtype=np.int64)
            table = None if self.before else self.table(at, offset)
            for head in range(heads):
                x = round_to(self.k[head][start : start + _BLOCK], self.recipe.input)
                x = x if table is None else self.rotate(x, table)
                largest[head] = np.maximum(largest[head], np.abs(x).max(axis=0))  # nan stays nan
        return largest


def stored(subject: Subject, inputs: object) -> Subject:
    """Return the subject, with scales from these q and k if its recipe has any."""
    if not isinstance(subject, Emulated) or subject.recipe.recipe.keys is None:
        return subject
    k = inputs.k if isinstance(inputs, Inputs) else None
    return ScaledKeys(subject.recipe, subject.setting, subject.axes, k)


def check_sampled(recipe: Recipe) -> None:
    """Raise UsageError for a recipe whose scales need all of k, not a sample."""
    if recipe.keys and recipe.keys[1].group != "token":
        codes = str(recipe.keys[1]).partition(":")[0]
        raise UsageError(
            f"{recipe.keys[0]}={recipe.keys[1]} takes scales from all tokens, and --sample forms scores of "
            f"some; leave out --sample, or give {codes}:token"
        )


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
    """Cos and sin where q and k end, and where k is stored first. offset: the former's."""

    fresh: Table
    stored: Table
    positions: Positions
    offset: int


class RerotatedKeys(Emulated):
    """A recipe whose stored k is rotated again; implements `ropeaudit.subjects.RotatesHeads`."""

    def __init__(
        self,
        recipe: Resolved,
        setting: RopeSetting,
        axes: Axes | None,
        turns: Turns,
        inputs: object,
    ) -> None:
        """Prepare the table of a turn. inputs: q and k; a sample has no norms."""
        super().__init__(recipe, setting, axes)
        self.turns = turns
        if attention_factor(setting.scaling) != 1.0:  # the stored keys have it
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

    def rotate_head(
        self,
        x: FloatArray,
        table: RerotatedTable,
        key: bool,
        head: int | None,
    ) -> FloatArray:
        """Return x rotated, or of k stored and then rotated turn by turn. Shapes: (s, d) -> (s, d)."""
        if not key:
            return self.rotate(x, table)
        keys = super().rotate(x, table.stored)
        for start in range(0, len(keys), _TURNED_AT_ONCE):
            block = keys[start : start + _TURNED_AT_ONCE]
            for _ in range(self.turns.number):
                if threads.dropped():
                    break
                block = self._turned.rotate(block, self._turn)
            keys[start : start + _TURNED_AT_ONCE] = block
        if self._shape is not None and head is not None:
            growth = self._growth.setdefault(table.offset, np.full(self._shape, np.nan))
            exact = x.astype(np.float64)
            exact[:, : self.setting.rotary_dim] *= attention_factor(self.setting.scaling)
            norms, own = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (exact, keys))
            none = np.full(len(norms), -1.0)  # where x is 0
            growth[head, table.positions] = np.divide(own, norms, out=none, where=norms > 0)
        return keys

    def norm_growth(self, offset: int) -> float | None:
        """Return the mean relative change of the norms of keys that are not 0, None of a sample."""
        if self._shape is None:
            return None
        growth = self._growth[offset]
        kept = growth[growth != -1]
        return float(np.mean(kept - 1)) if kept.size else float("nan")
