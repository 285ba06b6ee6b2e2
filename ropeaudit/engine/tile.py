"""One tile of scores: the reference, every subject's scores, and their differences.

Letters: s positions, d head_dim, r and c rows and columns of the tile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.engine import scores
from ropeaudit.engine.plan import Key, Measured, Plan
from ropeaudit.engine.statistics import Place, Size, hide
from ropeaudit.inputs import masks
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor

TILE_ROWS, TILE_COLUMNS = 512, 512  # a tile's few arrays stay in a core's cache

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class Side:
    """q or k of one head and one panel: rotated by every subject and by the reference.

    Rotated q are (s, d); rotated k are (d, s), so that a tile's product runs over contiguous rows.
    nonfinite: cells in which every row of q or every column of k holds a nan, and so every score is one.
    """

    subjects: dict[tuple[int, int], FloatArray]
    reference: dict[Key, Factor]
    nonfinite: set[tuple[int, int]]


class Tile:
    """The arrays of one tile, reused from tile to tile by one thread."""

    def __init__(
        self,
        plan: Plan[Any],
        local: threading.local,
        results: dict[tuple[int, int], Measured],
        head: int,
    ) -> None:
        self.plan, self.local, self.results, self.head = plan, local, results, head
        self.shape = (0, 0)
        self.corner: Place = (0, 0, 0)
        self.hidden: NDArray[np.bool_] | None = None
        self.visible = 0
        self.exact: tuple[Array, Array | None]

    def place(self, rows: slice, cols: slice) -> None:
        """Move to another tile."""
        self.shape = (rows.stop - rows.start, cols.stop - cols.start)
        self.corner = (self.head, rows.start, cols.start)
        self.hidden = masks.hidden(self.plan.mask, rows, cols)
        hidden = 0 if self.hidden is None else int(self.hidden.sum())
        self.visible = self.shape[0] * self.shape[1] - hidden

    def judge(self, q: Factor, k: Factor, in_q: slice, in_k: slice, members: Sequence[int]) -> None:
        """Compute the reference of the tile and note its statistics for the subjects in `members`."""
        exact, spare = self._array(3, _DOUBLE), self._array(4, _DOUBLE)
        self.exact = exact_scores.product(q.rows(in_q), k.rows(in_k), exact, spare)
        reference, error = Size(), exact_scores.certificate(q, k)
        whole = exact_scores.joined(*self.exact, out=self._array(0, _DOUBLE))
        hide(whole, self.hidden)  # the differences to it are hidden later
        reference.weigh(whole, self.visible)
        for index in members:
            for offset in self.plan.offsets[index]:
                measured = self.results[index, offset]
                measured.reference.merge(reference)
                measured.error = float(np.maximum(measured.error, error))  # nan stays nan

    def compare(self, index: int, q: Side, k: Side, in_q: slice, in_k: slice) -> None:
        """Form a subject's scores at every offset; gather their drift and self-drift."""
        subject = self.plan.subjects[index]
        dtype = scores.tile_dtype(subject)
        base, formed, spare = (self._array(number, dtype) for number in range(3))
        wide, scratch = (formed, spare) if dtype == _DOUBLE else (self._array(n, _DOUBLE) for n in range(2))
        (high, low), scale = self.exact, self.plan.setting.scale
        for number, offset in enumerate(self.plan.offsets[index]):
            cell, result = (index, offset), self.results[index, offset]
            out = formed if number else base
            if cell in q.nonfinite or cell in k.nonfinite:
                result.drift.lose(self.visible)
                result.own.lose(self.visible)
                out.fill(np.nan)
                continue
            left, right = q.subjects[cell][in_q], k.subjects[cell][:, in_k]
            scores.form(left, right, subject, scale, out, spare)
            if number:
                own = np.subtract(formed, base, out=spare)
                hide(own, self.hidden)
                result.own.add(own, self.visible, self.corner, scratch)
            if dtype != _DOUBLE:
                np.copyto(wide, out)
                out = wide
            drift = np.subtract(out, high, out=wide)
            if low is not None:
                np.subtract(drift, low, out=drift)
            hide(drift, self.hidden)
            result.drift.gather(drift, scratch, self.visible, self.corner)
            if number == 0:  # the difference of a score to itself: 0, or nan where it is not finite
                result.own.count, result.own.nonfinite = result.drift.count, result.drift.nonfinite

    def _array(self, number: int, dtype: np.dtype[Any]) -> Any:
        """Scratch array `number` of this thread, in the shape of the tile."""
        size = TILE_ROWS * TILE_COLUMNS
        name = f"{dtype.name}_{number}"
        flat: FloatArray | None = getattr(self.local, name, None)
        if flat is None:
            flat = np.empty(size, dtype)
            setattr(self.local, name, flat)
        return flat[: self.shape[0] * self.shape[1]].reshape(self.shape)
