"""Scores of subjects and of the reference, a tile at a time, into statistics.

Nothing of the size seq_len² is ever held. Positions are cut into panels; for a pair of panels q and k are
rotated once per subject and offset, then tiles of scores are formed, compared and forgotten. The
reference of a tile does not depend on the offset: it is computed once and used for all offsets
and for all subjects that round their inputs alike. Threads share strips of rows; the statistics are merged in
the order of the strips, so that the result does not depend on how many threads there are.

Letters: h heads, g key-value heads, s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import plan, scores, tile
from ropeaudit.engine.plan import Key, Measured, Plan
from ropeaudit.engine.tile import Side, Tile
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.runtime.threads import Map, mapping
from ropeaudit.subjects import key_rotation


def measure(
    cases: Plan[Inputs], threads: int, progress: Callable[[float], None]
) -> dict[tuple[int, int], Measured]:
    """Return what was measured, for every cell of the plan; `progress` gets the share done."""
    results = {cell: Measured() for cell in cases.cells()}
    scores_in_all = masks.count(cases.mask, cases.seq_len) * cases.inputs.q.shape[0]
    first = next(iter(results.values()))
    with mapping(threads) as mapped:
        for part in _Run(cases, mapped).strips():
            for cell, measured in part.items():
                results[cell].merge(measured)
            progress(first.drift.count / scores_in_all)
    return results


class _Job(NamedTuple):
    """One head of q or k, to be rotated over one panel of positions."""

    side: Literal["q", "k"]
    x: FloatArray
    panel: slice
    scale: float


class _Run:
    """One pass over all heads and panels of a plan."""

    def __init__(self, cases: Plan[Inputs], mapped: Map) -> None:
        self.plan, self.map = cases, mapped
        self.groups = cases.keys()
        self.local = threading.local()
        self.tables: dict[int, Any] = {}

    def strips(self) -> Iterator[dict[tuple[int, int], Measured]]:
        """Yield the statistics of one strip of rows after the other."""
        for rows, cols in masks.panels(self.plan.mask, self.plan.seq_len, plan.PANEL):
            self._keep_tables(rows, cols)
            for heads in self._batches():
                yield from self._heads(heads, rows, cols)

    def _batches(self) -> Iterator[range]:
        """Query heads whose rotated q and k fit in the cache together."""
        cells = sum(1 for _ in self.plan.cells()) + 3 * len(self.groups)  # a Factor is 3 arrays
        size = plan.CACHE_BYTES // (cells * plan.cell_bytes(self.plan.setting, self.plan.seq_len))
        heads = self.plan.inputs.q.shape[0]
        for start in range(0, heads, max(1, size)):
            yield range(start, min(start + max(1, size), heads))

    def _tiles(self, rows: slice, cols: slice) -> Iterator[slice]:
        return masks.tiles(self.plan.mask, rows, cols, tile.TILE_COLUMNS, self.plan.seq_len)

    def _keep_tables(self, *panels: slice) -> None:
        """Hold the tables of these panels, and of no others."""
        requested = {panel.start: panel for panel in panels}
        self.tables = {start: t for start, t in self.tables.items() if start in requested}
        for start, panel in requested.items():
            if start not in self.tables:
                self.tables[start] = self._panel_tables(panel)

    def _panel_tables(self, panel: slice) -> dict[Any, Any]:
        positions = np.arange(panel.start, panel.stop, dtype=np.int64)
        cells: list[Any] = [*self.plan.cells(), "truth"]

        def one(cell: Any) -> Any:
            if cell == "truth":
                numbers = (positions + self.plan.origin).astype(np.float64)
                return exact_scores.distance_table(numbers, self.plan.setting)
            return self.plan.subjects[cell[0]].table(positions, cell[1])

        return dict(zip(cells, self.map(one, cells), strict=True))

    def _heads(self, heads: range, rows: slice, cols: slice) -> Iterator[dict[tuple[int, int], Measured]]:
        inputs = self.plan.inputs
        kv_heads = sorted({head // inputs.group for head in heads})
        jobs = [_Job("q", inputs.q[head], rows, self.plan.setting.scale) for head in heads]
        jobs += [_Job("k", inputs.k[head], cols, 1.0) for head in kv_heads]
        sides = self._rotate_all(jobs)
        q = dict(zip(heads, sides, strict=False))
        k = dict(zip(kv_heads, sides[len(heads) :], strict=True))
        starts = range(rows.start, rows.stop, tile.TILE_ROWS)
        cuts = [slice(s, min(s + tile.TILE_ROWS, rows.stop)) for s in starts]
        seen = [some for some in cuts if any(self._tiles(some, cols))]
        strips = [(head, some) for head in heads for some in seen]
        yield from self.map(
            lambda job: self._strip(job[0], q[job[0]], k[job[0] // inputs.group], job[1], rows.start, cols),
            strips,
        )

    def _rotate_all(self, jobs: list[_Job]) -> list[Side]:
        """Turn every head by every cell and by the reference, all in parallel."""
        formats = {subject.input for subject in self.plan.subjects} | {key.input for key in self.groups}
        held = {fmt: fmt.carrier if self.plan.inputs.unchanged_by(fmt) else fmt for fmt in formats}
        rounding = [(number, how) for number in range(len(jobs)) for how in set(held.values())]

        def rounded(task: tuple[int, Any]) -> FloatArray:
            number, how = task
            x = jobs[number].x[jobs[number].panel]
            return round_to(x, how) if isinstance(how, Format) else x.astype(how)

        inputs = dict(zip(rounding, self.map(rounded, rounding), strict=True))
        cells: list[Any] = [*self.groups, *self.plan.cells()]
        tasks = [(number, cell) for number in range(len(jobs)) for cell in cells]

        def rotated(task: tuple[int, Any]) -> Any:
            number, cell = task
            fmt = cell.input if isinstance(cell, Key) else self.plan.subjects[cell[0]].input
            return self._rotate(jobs[number], inputs[number, held[fmt]], cell)

        sides = [Side({}, {}, set()) for _ in jobs]
        for (number, cell), result in zip(tasks, self.map(rotated, tasks), strict=True):
            side = sides[number]
            if isinstance(cell, Key):
                side.reference[cell] = result
            else:
                side.subjects[cell], nonfinite = result
                side.nonfinite.update({cell} if nonfinite else ())
        return sides

    def _rotate(self, job: _Job, x: FloatArray, cell: Any) -> Any:
        tables = self.tables[job.panel.start]
        if isinstance(cell, Key):
            exact, reference = x.astype(np.float64), tables["truth"]
            with np.errstate(invalid="ignore"):  # inputs may have overflowed in their format
                return exact_scores.rotated(exact, reference, self.plan.setting, cell.precision, job.scale)
        subject = self.plan.subjects[cell[0]]
        rotate = key_rotation(subject) if job.side == "k" else subject.rotate
        rotated = rotate(x, tables[cell])
        nonfinite = bool(np.isnan(rotated.min(axis=1)).all())
        operand = scores.operand(rotated, subject)
        return np.ascontiguousarray(operand.T if job.side == "k" else operand), nonfinite

    def _strip(
        self, head: int, q: Side, k: Side, rows: slice, first_row: int, cols: slice
    ) -> dict[tuple[int, int], Measured]:
        """Measure all tiles of some rows of a head against one panel of keys."""
        results = {cell: Measured() for cell in self.plan.cells()}
        here = Tile(self.plan, self.local, results, head)
        in_q = slice(rows.start - first_row, rows.stop - first_row)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for some in self._tiles(rows, cols):
                in_k = slice(some.start - cols.start, some.stop - cols.start)
                here.place(rows, some)
                for key, members in self.groups.items():
                    here.judge(q.reference[key], k.reference[key], in_q, in_k, members)
                    for index in members:
                        here.compare(index, q, k, in_q, in_k)
        return results
