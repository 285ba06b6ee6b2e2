"""Scores of subjects and of the reference, a tile at a time, into statistics.

Nothing of the size seq_len² is ever held. Positions are cut into panels; for a pair of panels q and k are
turned once per subject and offset, then tiles of scores are formed, compared and forgotten. The
reference of a tile does not depend on the offset: it is computed once and used for all offsets
and for all subjects that round their inputs alike. Threads share strips of rows; the statistics are merged in
the order of the strips, so that the result does not depend on how many threads there are.

Letters: h heads, g key-value heads, s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ropeaudit import masks, reference, scores
from ropeaudit.doubledouble import Pair
from ropeaudit.formats import FloatArray, Format, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.masks import Mask
from ropeaudit.metrics import Differences, Place, Spread, hide
from ropeaudit.reference import Factor, Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject

PANEL = 8192  # positions turned at once
TILE_ROWS, TILE_COLUMNS = 256, 512  # a tile's few arrays stay in a core's cache
CACHE_BYTES = 256 * 2**20  # turned q and k held at once

_SINGLE = np.dtype(np.float32)
_PAIR_ERROR = 2.0**-48  # a float64 score held as two float32 numbers


@dataclass(slots=True)
class Measured:
    """What was measured of one subject at one offset.

    drift: against the reference. own: against the same subject at offset 0.
    truth: the reference's scores. error: the certificate of the reference.
    """

    drift: Differences = field(default_factory=Differences)
    own: Spread = field(default_factory=Spread)
    truth: Spread = field(default_factory=Spread)
    error: float = 0.0

    def merge(self, later: Measured) -> None:
        """Take in what was measured over later tiles."""
        self.drift.merge(later.drift)
        self.own.merge(later.own)
        self.truth.merge(later.truth)
        self.error = max(self.error, later.error)


class Key(NamedTuple):
    """What a reference depends on besides q and k: how they were rounded, how exact it must be."""

    input: Format
    precision: Precision


@dataclass(frozen=True, slots=True)
class Plan:
    """Subjects and offsets that are measured together; each subject's first offset is 0."""

    subjects: Sequence[Subject]
    offsets: Sequence[Sequence[int]]
    inputs: Inputs
    setting: RopeSetting
    mask: Mask

    @property
    def seq_len(self) -> int:
        """s: the number of positions."""
        return int(self.inputs.q.shape[1])

    def cells(self) -> Iterator[tuple[int, int]]:
        """Yield (index of the subject, offset) in order."""
        for index, offsets in enumerate(self.offsets):
            for offset in offsets:
                yield index, offset

    def keys(self) -> dict[Key, list[int]]:
        """Return which subjects share a reference."""
        groups: dict[Key, list[int]] = {}
        for index, subject in enumerate(self.subjects):
            precision: Precision = "extended" if subject.narrowest > 24 else "double"
            groups.setdefault(Key(subject.input, precision), []).append(index)
        return groups


def cells_at_once(setting: RopeSetting, seq_len: int) -> int:
    """How many (subject, offset) cells fit in the cache together, one head at a time."""
    return max(2, CACHE_BYTES // _cell_bytes(setting, seq_len))


def bytes_needed(setting: RopeSetting, heads: int, kv_heads: int, seq_len: int) -> int:
    """Estimate the peak memory of an audit: q and k in float64, the caches and one head's factors."""
    inputs = (heads + kv_heads) * seq_len * setting.head_dim * 8
    cell = _cell_bytes(setting, seq_len)
    return inputs + max(CACHE_BYTES, 2 * cell) + 8 * cell + 64 * 2**20


def _cell_bytes(setting: RopeSetting, seq_len: int) -> int:
    return 2 * min(seq_len, PANEL) * (setting.head_dim + 2 * setting.pairs) * 8


def measure(plan: Plan, threads: int) -> dict[tuple[int, int], Measured]:
    """Return what was measured, for every cell of the plan."""
    found = {cell: Measured() for cell in plan.cells()}
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        try:
            for part in _Run(plan, pool).strips():
                for cell, measured in part.items():
                    found[cell].merge(measured)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """q or k of one head and one panel: turned by every subject and by the reference."""

    subjects: dict[tuple[int, int], FloatArray]
    truth: dict[Key, Factor]


class _Run:
    """One pass over all heads and panels of a plan."""

    def __init__(self, plan: Plan, pool: ThreadPoolExecutor) -> None:
        self.plan, self.pool = plan, pool
        self.groups = plan.keys()
        self.local = threading.local()
        size = plan.seq_len
        self.panels = [slice(i, min(i + PANEL, size)) for i in range(0, size, PANEL)]
        self.tables: dict[int, Any] = {}

    def strips(self) -> Iterator[dict[tuple[int, int], Measured]]:
        """Yield the statistics of one strip of rows after the other."""
        for rows in self.panels:
            reach = masks.columns(self.plan.mask, rows, self.plan.seq_len)
            for cols in self.panels:
                if cols.start < reach:
                    self._keep_tables(rows, cols)
                    for heads in self._batches():
                        yield from self._heads(heads, rows, cols)

    def _batches(self) -> Iterator[range]:
        """Query heads whose turned q and k fit in the cache together."""
        cells = sum(1 for _ in self.plan.cells()) + 3 * len(self.groups)  # a Factor is 3 arrays
        size = CACHE_BYTES // (cells * _cell_bytes(self.plan.setting, self.plan.seq_len))
        heads = self.plan.inputs.q.shape[0]
        for start in range(0, heads, max(1, size)):
            yield range(start, min(start + max(1, size), heads))

    def _map(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> Iterator[Any]:
        return self.pool.map(function, *arguments)

    def _keep_tables(self, *panels: slice) -> None:
        """Hold the tables of these panels, and of no others."""
        wanted = {panel.start: panel for panel in panels}
        self.tables = {start: t for start, t in self.tables.items() if start in wanted}
        for start, panel in wanted.items():
            if start not in self.tables:
                self.tables[start] = self._panel_tables(panel)

    def _panel_tables(self, panel: slice) -> dict[Any, Any]:
        positions = np.arange(panel.start, panel.stop, dtype=np.int64)
        cells: list[Any] = [*self.plan.cells(), "truth"]

        def one(cell: Any) -> Any:
            if cell == "truth":
                return reference.distance_table(positions.astype(np.float64), self.plan.setting)
            return self.plan.subjects[cell[0]].table(positions + cell[1])

        return dict(zip(cells, self._map(one, cells), strict=True))

    def _heads(
        self, heads: range, rows: slice, cols: slice
    ) -> Iterator[dict[tuple[int, int], Measured]]:
        inputs = self.plan.inputs
        kv_heads = sorted({head // inputs.group for head in heads})
        jobs = [(inputs.q[head], rows, self.plan.setting.scale) for head in heads]
        jobs += [(inputs.k[head], cols, 1.0) for head in kv_heads]
        sides = self._turn_all(jobs)
        q = dict(zip(heads, sides, strict=False))
        k = dict(zip(kv_heads, sides[len(heads) :], strict=True))
        starts = range(rows.start, rows.stop, TILE_ROWS)
        strips = [(head, slice(s, min(s + TILE_ROWS, rows.stop))) for head in heads for s in starts]
        yield from self._map(
            lambda job: self._strip(
                job[0], q[job[0]], k[job[0] // inputs.group], job[1], rows.start, cols
            ),
            strips,
        )

    def _turn_all(self, jobs: list[tuple[FloatArray, slice, float]]) -> list[_Side]:
        """Turn every head by every cell and by the reference, all in parallel."""
        tasks: list[tuple[int, Any]] = []
        for number in range(len(jobs)):
            tasks += [(number, cell) for cell in [*self.groups, *self.plan.cells()]]

        def one(task: tuple[int, Any]) -> Any:
            x, panel, scale = jobs[task[0]]
            return self._turn(x[panel], self.tables[panel.start], task[1], scale)

        sides = [_Side({}, {}) for _ in jobs]
        for (number, cell), turned in zip(tasks, self._map(one, tasks), strict=True):
            side = sides[number]
            (side.truth if isinstance(cell, Key) else side.subjects)[cell] = turned
        return sides

    def _turn(self, x: FloatArray, tables: dict[Any, Any], cell: Any, scale: float) -> Any:
        if isinstance(cell, Key):
            exact = round_to(x, cell.input).astype(np.float64)
            return reference.turned(
                exact, tables["truth"], self.plan.setting, cell.precision, scale
            )
        subject = self.plan.subjects[cell[0]]
        return scores.operand(subject.rotate(round_to(x, subject.input), tables[cell]), subject)

    def _strip(
        self, head: int, q: _Side, k: _Side, rows: slice, first_row: int, cols: slice
    ) -> dict[tuple[int, int], Measured]:
        """Measure all tiles of some rows of a head against one panel of keys."""
        found = {cell: Measured() for cell in self.plan.cells()}
        tile = _Tile(self.plan, self.local, found, head)
        last = min(cols.stop, masks.columns(self.plan.mask, rows, self.plan.seq_len))
        in_q = slice(rows.start - first_row, rows.stop - first_row)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for start in range(cols.start, last, TILE_COLUMNS):
                stop = min(start + TILE_COLUMNS, last)
                in_k = slice(start - cols.start, stop - cols.start)
                tile.place(rows, slice(start, stop))
                for key, members in self.groups.items():
                    tile.judge(q.truth[key], k.truth[key], in_q, in_k, members)
                    for index in members:
                        tile.compare(index, q.subjects, k.subjects, in_q, in_k)
        return found


class _Tile:
    """The arrays of one tile, reused from tile to tile by one thread."""

    def __init__(
        self,
        plan: Plan,
        local: threading.local,
        found: dict[tuple[int, int], Measured],
        head: int,
    ) -> None:
        self.plan, self.local, self.found, self.head = plan, local, found, head
        self.shape = (0, 0)
        self.corner: Place = (0, 0, 0)
        self.hidden: NDArray[np.bool_] | None = None
        self.visible = 0
        self.exact: Pair | None = None
        self.single: tuple[FloatArray, FloatArray] | None = None

    def place(self, rows: slice, cols: slice) -> None:
        """Move to another tile."""
        self.shape = (rows.stop - rows.start, cols.stop - cols.start)
        self.corner = (self.head, rows.start, cols.start)
        self.hidden = masks.hidden(self.plan.mask, rows, cols)
        hidden = 0 if self.hidden is None else int(self.hidden.sum())
        self.visible = self.shape[0] * self.shape[1] - hidden

    def judge(
        self, q: Factor, k: Factor, in_q: slice, in_k: slice, members: Sequence[int]
    ) -> None:
        """Compute the reference of the tile and note its statistics for the subjects in `members`."""
        high, low = self.exact = reference.product(q.rows(in_q), k.rows(in_k))
        self.single = None
        if any(scores.tile_dtype(self.plan.subjects[i]) == _SINGLE for i in members):
            head = high.astype(np.float32)
            self.single = head, (high - head + low).astype(np.float32)
        truth, error = Spread(), reference.certificate(q, k)
        hide(high := high if self.hidden is None else high.copy(), self.hidden)
        truth.add(high, self.visible, self.corner)
        for index in members:
            single = scores.tile_dtype(self.plan.subjects[index]) == _SINGLE
            for offset in self.plan.offsets[index]:
                measured = self.found[index, offset]
                measured.truth.merge(truth)
                pair = _PAIR_ERROR * q.norm * k.norm if single else 0.0
                measured.error = max(measured.error, error + pair)

    def compare(
        self,
        index: int,
        q: dict[tuple[int, int], FloatArray],
        k: dict[tuple[int, int], FloatArray],
        in_q: slice,
        in_k: slice,
    ) -> None:
        """Form a subject's scores at every offset; gather their drift and self-drift."""
        subject = self.plan.subjects[index]
        dtype = scores.tile_dtype(subject)
        base, formed, difference, scratch = (self._array(n, dtype) for n in range(4))
        high, low = self.single if dtype == _SINGLE and self.single else self.exact  # type: ignore[misc]
        bits = scratch.view(np.uint32 if dtype == _SINGLE else np.uint64)
        for number, offset in enumerate(self.plan.offsets[index]):
            out = base if number == 0 else formed
            cell = index, offset
            scores.form(q[cell][in_q], k[cell][in_k], subject, self.plan.setting.scale, out, bits)
            np.subtract(out, high, out=difference)
            if low.ndim:
                np.subtract(difference, low, out=difference)
            hide(difference, self.hidden)
            found = self.found[cell]
            found.drift.gather(difference, scratch, self.visible, self.corner)
            if number:
                np.subtract(out, base, out=difference)
                hide(difference, self.hidden)
                found.own.add(difference, self.visible, self.corner)
            else:
                found.own.count += self.visible
                found.own.nonfinite = found.drift.nonfinite

    def _array(self, number: int, dtype: np.dtype[Any]) -> FloatArray:
        """Scratch array `number` of this thread, in the shape of the tile."""
        size = TILE_ROWS * TILE_COLUMNS
        name = f"{dtype.name}_{number}"
        flat: FloatArray | None = getattr(self.local, name, None)
        if flat is None:
            flat = np.empty(size, dtype)
            setattr(self.local, name, flat)
        return flat[: self.shape[0] * self.shape[1]].reshape(self.shape)
