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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ropeaudit import masks, reference, scores
from ropeaudit.formats import FP32, FP64, FloatArray, Format, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.masks import Mask
from ropeaudit.metrics import Differences, Place, Spread, hide
from ropeaudit.reference import Factor, Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject

PANEL = 8192  # positions turned at once
TILE_ROWS, TILE_COLUMNS = 512, 512  # a tile's few arrays stay in a core's cache
CACHE_BYTES = 384 * 2**20  # turned q and k held at once

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
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
        """Return which subjects share a reference: those that see the same q and k.

        An input format that changes nothing counts as float64. A key depends on its subject and on q and k
        alone, so that a case gives the same bits whatever else is measured with it.
        """
        seen = {subject.input: subject.input for subject in self.subjects}
        for fmt in seen:
            if self.inputs.unchanged_by(fmt):
                seen[fmt] = FP64
        groups: dict[Key, list[int]] = {}
        for index, subject in enumerate(self.subjects):
            precision: Precision = "extended" if subject.narrowest > FP32.precision else "double"
            groups.setdefault(Key(seen[subject.input], precision), []).append(index)
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


def measure(plan: Plan, threads: int, progress: Callable[[float], None]) -> dict[tuple[int, int], Measured]:
    """Return what was measured, for every cell of the plan; `progress` hears the share done."""
    found = {cell: Measured() for cell in plan.cells()}
    scores_in_all = masks.count(plan.mask, plan.seq_len) * plan.inputs.q.shape[0]
    first = next(iter(found.values()))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        try:
            for part in _Run(plan, pool).strips():
                for cell, measured in part.items():
                    found[cell].merge(measured)
                progress(first.drift.count / scores_in_all)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """q or k of one head and one panel: turned by every subject and by the reference.

    Turned q are (s, d); turned k are (d, s), so that a tile's product runs over contiguous rows.
    lost: cells in which every row of q or every column of k holds a nan, and so every score is one.
    """

    subjects: dict[tuple[int, int], FloatArray]
    truth: dict[Key, Factor]
    lost: set[tuple[int, int]]


class _Job(NamedTuple):
    """One head of q or k, to be turned over one panel of positions."""

    side: Literal["q", "k"]
    x: FloatArray
    panel: slice
    scale: float


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

    def _heads(self, heads: range, rows: slice, cols: slice) -> Iterator[dict[tuple[int, int], Measured]]:
        inputs = self.plan.inputs
        kv_heads = sorted({head // inputs.group for head in heads})
        jobs = [_Job("q", inputs.q[head], rows, self.plan.setting.scale) for head in heads]
        jobs += [_Job("k", inputs.k[head], cols, 1.0) for head in kv_heads]
        sides = self._turn_all(jobs)
        q = dict(zip(heads, sides, strict=False))
        k = dict(zip(kv_heads, sides[len(heads) :], strict=True))
        starts = range(rows.start, rows.stop, TILE_ROWS)
        strips = [(head, slice(s, min(s + TILE_ROWS, rows.stop))) for head in heads for s in starts]
        yield from self._map(
            lambda job: self._strip(job[0], q[job[0]], k[job[0] // inputs.group], job[1], rows.start, cols),
            strips,
        )

    def _turn_all(self, jobs: list[_Job]) -> list[_Side]:
        """Turn every head by every cell and by the reference, all in parallel."""
        formats = {subject.input for subject in self.plan.subjects}
        formats |= {key.input for key in self.groups}
        rounding = [(number, fmt) for number in range(len(jobs)) for fmt in formats]

        def rounded(task: tuple[int, Format]) -> FloatArray:
            return round_to(jobs[task[0]].x[jobs[task[0]].panel], task[1])

        inputs = dict(zip(rounding, self._map(rounded, rounding), strict=True))
        cells: list[Any] = [*self.groups, *self.plan.cells()]
        tasks = [(number, cell) for number in range(len(jobs)) for cell in cells]

        def turned(task: tuple[int, Any]) -> Any:
            number, cell = task
            fmt = cell.input if isinstance(cell, Key) else self.plan.subjects[cell[0]].input
            return self._turn(jobs[number], inputs[number, fmt], cell)

        sides = [_Side({}, {}, set()) for _ in jobs]
        for (number, cell), result in zip(tasks, self._map(turned, tasks), strict=True):
            side = sides[number]
            if isinstance(cell, Key):
                side.truth[cell] = result
            else:
                side.subjects[cell], lost = result
                side.lost.update({cell} if lost else ())
        return sides

    def _turn(self, job: _Job, x: FloatArray, cell: Any) -> Any:
        tables = self.tables[job.panel.start]
        if isinstance(cell, Key):
            exact, truth = x.astype(np.float64), tables["truth"]
            return reference.turned(exact, truth, self.plan.setting, cell.precision, job.scale)
        subject = self.plan.subjects[cell[0]]
        rotated = subject.rotate(x, tables[cell])
        lost = bool(np.isnan(rotated.min(axis=1)).all())
        operand = scores.operand(rotated, subject)
        return np.ascontiguousarray(operand.T if job.side == "k" else operand), lost

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
                        tile.compare(index, q, k, in_q, in_k)
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
        self.exact: tuple[FloatArray, FloatArray | None]
        self.single: tuple[FloatArray, FloatArray] | None = None

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
        high, _ = self.exact = reference.product(q.rows(in_q), k.rows(in_k), exact, spare)
        self.single = None
        truth, error = Spread(), reference.certificate(q, k)
        if any(scores.tile_dtype(self.plan.subjects[i]) == _SINGLE for i in members):
            self.single = self._array(3, _SINGLE), self._array(4, _SINGLE)
            head, tail = self.single
            np.copyto(head, high, casting="same_kind")
            np.subtract(high, head, out=tail, casting="same_kind")
        if self.hidden is not None:
            hide(high := high.copy(), self.hidden)
        truth.add(high, self.visible, self.corner)
        for index in members:
            single = scores.tile_dtype(self.plan.subjects[index]) == _SINGLE
            for offset in self.plan.offsets[index]:
                measured = self.found[index, offset]
                measured.truth.merge(truth)
                pair = _PAIR_ERROR * q.norm * k.norm if single else 0.0
                measured.error = max(measured.error, error + pair)

    def compare(self, index: int, q: _Side, k: _Side, in_q: slice, in_k: slice) -> None:
        """Form a subject's scores at every offset; gather their drift and self-drift."""
        subject = self.plan.subjects[index]
        dtype = scores.tile_dtype(subject)
        base, formed, scratch = (self._array(number, dtype) for number in range(3))
        high, low = self.single if dtype == _SINGLE and self.single else self.exact
        scale = self.plan.setting.scale
        for number, offset in enumerate(self.plan.offsets[index]):
            cell, found = (index, offset), self.found[index, offset]
            out = formed if number else base
            if cell in q.lost or cell in k.lost:
                found.drift.lose(self.visible)
                found.own.lose(self.visible)
                out.fill(np.nan)
                continue
            left, right = q.subjects[cell][in_q], k.subjects[cell][:, in_k]
            scores.form(left, right, subject, scale, out, scratch)
            if number:
                own = np.subtract(formed, base, out=scratch)
                hide(own, self.hidden)
                found.own.add(own, self.visible, self.corner)
            drift = np.subtract(out, high, out=formed)
            if low is not None:
                np.subtract(drift, low, out=drift)
            hide(drift, self.hidden)
            found.drift.gather(drift, scratch, self.visible, self.corner)
            if number == 0:  # the difference of a score to itself: 0, or nan where it is not finite
                found.own.count, found.own.nonfinite = found.drift.count, found.drift.nonfinite

    def _array(self, number: int, dtype: np.dtype[Any]) -> Any:
        """Scratch array `number` of this thread, in the shape of the tile."""
        size = TILE_ROWS * TILE_COLUMNS
        name = f"{dtype.name}_{number}"
        flat: FloatArray | None = getattr(self.local, name, None)
        if flat is None:
            flat = np.empty(size, dtype)
            setattr(self.local, name, flat)
        return flat[: self.shape[0] * self.shape[1]].reshape(self.shape)
