"""Scores of subjects and of the reference, a tile at a time, into statistics.

Nothing of the size seq_len² is ever held. Positions are cut into panels; for a pair of panels q and k are
rotated once per subject and offset, then tiles of scores are formed, compared and forgotten. The
reference of a tile does not depend on the offset: it is computed once and used for all offsets
and for all subjects that round their inputs alike. Threads share strips of rows; the statistics are merged in
the order of the strips, so that the result does not depend on how many threads there are.
Arrays are those of a library: NumPy, or torch on a device; there NumPy judges strips 0, 1, 2, 4, 8, ... too.

Letters: h heads, g key-value heads, s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel, plan, scores, tile
from ropeaudit.engine.array_library import NUMPY, A, ArrayLibrary, NumPyArray
from ropeaudit.engine.kernel import ExactScores, Side, Workspace
from ropeaudit.engine.plan import CellIndex, CellStatistics, Key, Plan
from ropeaudit.engine.statistics import Block
from ropeaudit.engine.tile import RotatedPanel, Tile
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.threads import Map

_Kind: TypeAlias = Format | np.dtype[Any]  # a format that rounds x, or a dtype that holds it
CertifiedScores: TypeAlias = tuple[ExactScores[NumPyArray], float]  # of a head, and what they may be off by


def measure(
    cases: Plan[Inputs],
    threads: int,
    progress: Callable[[float], None],
    library: ArrayLibrary[Any] = NUMPY,
) -> dict[CellIndex, CellStatistics]:
    """Return what was measured, for every cell of the plan; `progress` gets the share done.

    library: of the arrays. Raises: EnginesDiffer where another one than NumPy does not agree with it.
    """
    results = {cell: CellStatistics() for cell in cases.cells()}
    scores_in_all = masks.count(cases.mask, cases.seq_len) * cases.inputs.q.shape[0]
    first = next(iter(results.values()))
    with library.running(threads) as mapped:
        for part in _Run(cases, mapped, library).strips():
            for cell, measured in part.items():
                results[cell].merge(measured)
            progress(first.drift.count / scores_in_all)
    return results


def exact(inputs: Inputs, setting: RopeSetting, fmt: Format) -> Iterator[CertifiedScores]:
    """Yield the exact scores (s, s) of each head of q and k, rounded to a format, with their certificate."""
    table = exact_scores.distance_table(np.arange(inputs.seq_len, dtype=np.float64), setting)
    for head, x in enumerate(inputs.q):
        sides = x, inputs.k[head // inputs.group]
        q, k = kernel.exact_factors(sides, fmt, (table, table), setting, "extended")
        yield exact_scores.product(q, k), exact_scores.certificate(q, k)


def of_scores(formed: FloatArray, reference: Iterable[CertifiedScores]) -> CellStatistics:
    """Return the drift of scores that were formed elsewhere, all of which count. Shapes: (h, s, s)."""
    result = CellStatistics()
    for head, (values, (exactly, error)) in enumerate(zip(formed, reference, strict=True)):
        block = Block.tile("full", head, slice(0, values.shape[0]), slice(0, values.shape[1]))
        with np.errstate(invalid="ignore", over="ignore"):
            result.drift.add(kernel.minus_exact(NUMPY, values.astype(np.float64), exactly), block)
        kernel.gather_reference(exactly, error, block, [result])
    return result


class _Job(NamedTuple):
    """One head of q or k, to be rotated over one panel of positions."""

    side: Side
    head: int
    x: FloatArray
    panel: slice


class _Tables(NamedTuple):
    """What rotating a panel of positions needs: of the reference, and of each cell."""

    reference: Any
    cells: dict[CellIndex, Any]


class _Strip(NamedTuple):
    """Some rows of a head against a panel of keys. judged: whether NumPy looks at it too."""

    head: int
    q: RotatedPanel[Any]
    k: RotatedPanel[Any]
    rows: slice
    judged: bool


class _Run(Generic[A]):
    """One pass over all heads and panels of a plan."""

    def __init__(self, cases: Plan[Inputs], mapped: Map, library: ArrayLibrary[A]) -> None:
        self.plan, self.map, self.library = cases, mapped, library
        self.tile = library.tile or (tile.TILE_ROWS, tile.TILE_COLUMNS)
        self.groups, self.strip_numbers = cases.keys(), itertools.count()
        self.workspace: Workspace[A] = Workspace(library)
        self.tables: dict[int, _Tables] = {}

    def strips(self) -> Iterator[dict[CellIndex, CellStatistics]]:
        """Yield the statistics of one strip of rows after the other."""
        size = self.library.panel or plan.PANEL
        for rows, cols in masks.panels(self.plan.mask, self.plan.seq_len, size):
            earlier, self.tables = self.tables, {}
            for panel in (rows, cols):
                if panel.start not in self.tables:
                    self.tables[panel.start] = earlier.get(panel.start) or self._panel_tables(panel)
            for heads in self._batches():
                yield from self._heads(heads, rows, cols)

    def _batches(self) -> Iterator[range]:
        """Yield query heads whose rotated q and k fit in the cache together."""
        cells = sum(1 for _ in self.plan.cells()) + 3 * len(self.groups)  # a Factor is 3 arrays
        size = plan.CACHE_BYTES // (cells * plan.cell_bytes(self.plan.setting, self.plan.seq_len))
        heads = self.plan.inputs.q.shape[0]
        for start in range(0, heads, max(1, size)):
            yield range(start, min(start + max(1, size), heads))

    def _tiles(self, rows: slice, cols: slice) -> Iterator[slice]:
        return masks.tiles(self.plan.mask, rows, cols, self.tile[1], self.plan.seq_len)

    def _panel_tables(self, panel: slice) -> _Tables:
        positions = self.plan.at(panel)
        numbers, cells = (positions + self.plan.origin).astype(np.float64), list(self.plan.cells())

        def table(cell: CellIndex | None) -> Any:
            if cell is None:
                return self.library.taken(exact_scores.distance_table(numbers, self.plan.setting))
            subject = self.plan.subjects[cell[0]]
            of_cell = subject.table(positions, cell[1])
            return self.library.taken(of_cell) if self.library.rotates(subject) else of_cell

        *subjects, reference = self.map(table, [*cells, None])
        return _Tables(reference, dict(zip(cells, subjects, strict=True)))

    def _heads(self, heads: range, rows: slice, cols: slice) -> Iterator[dict[CellIndex, CellStatistics]]:
        inputs = self.plan.inputs
        kv_heads = sorted({head // inputs.group for head in heads})
        jobs = [_Job("q", head, inputs.q[head], rows) for head in heads]
        jobs += [_Job("k", head, inputs.k[head], cols) for head in kv_heads]
        panels = self._rotate_all(jobs)
        q = dict(zip(heads, panels, strict=False))
        k = dict(zip(kv_heads, panels[len(heads) :], strict=True))
        starts = range(rows.start, rows.stop, self.tile[0])
        cuts = [slice(s, min(s + self.tile[0], rows.stop)) for s in starts]
        unmasked = [cut for cut in cuts if any(self._tiles(cut, cols))]
        strips = [
            _Strip(head, q[head], k[head // inputs.group], cut, self._judged())
            for head in heads
            for cut in unmasked
        ]
        yield from self.map(lambda strip: self._strip(strip, rows.start, cols), strips)

    def _judged(self) -> bool:
        number = next(self.strip_numbers)
        return self.library.name != NUMPY.name and number & (number - 1) == 0

    def _rotate_all(self, jobs: list[_Job]) -> list[RotatedPanel[A]]:
        """Rotate every head for every cell and for the reference, all in parallel."""
        numbers, subjects = range(len(jobs)), self.plan.subjects
        formats = {subject.input for subject in subjects} | {key.input for key in self.groups}
        # input format -> to what q and k are converted: to it, or where it changes nothing to its carrier
        kinds = {fmt: fmt.carrier if self.plan.inputs.unchanged_by(fmt) else fmt for fmt in formats}
        to_round = list(itertools.product(numbers, set(kinds.values())))
        rounded = self.map(self._rounded, [(jobs[number], kind) for number, kind in to_round])
        inputs: dict[tuple[int, _Kind], A] = dict(zip(to_round, rounded, strict=True))
        exactly = list(itertools.product(numbers, self.groups))
        by_cell = list(itertools.product(numbers, self.plan.cells()))
        references = self.map(
            self._rotate_exactly,
            [(jobs[number], inputs[number, kinds[key.input]], key) for number, key in exactly],
        )
        kind_of = {cell: kinds[subjects[cell[0]].input] for cell in self.plan.cells()}
        operands = self.map(
            self._rotate, [(jobs[number], inputs[number, kind_of[cell]], cell) for number, cell in by_cell]
        )
        panels: list[RotatedPanel[A]] = [RotatedPanel() for _ in jobs]
        for (number, key), factor in zip(exactly, references, strict=True):
            panels[number].reference[key] = factor
        for (number, cell), (operand, nonfinite) in zip(by_cell, operands, strict=True):
            panels[number].subjects[cell] = operand
            panels[number].nonfinite.update({cell} if nonfinite else ())
        return panels

    def _rounded(self, task: tuple[_Job, _Kind]) -> A:
        """Return the rows of a job as they are rotated."""
        job, kind = task
        x = self.library.taken(job.x[job.panel])
        if isinstance(kind, Format):
            return round_to(x, kind)  # type: ignore[return-value]
        return self.library.converted(x, FP64 if kind == np.float64 else FP32)

    def _rotate_exactly(self, task: tuple[_Job, A, Key]) -> Factor:
        job, x, key = task
        setting, table = self.plan.setting, self.tables[job.panel.start].reference
        scale = setting.scale if job.side == "q" else 1.0
        return kernel.rotate_exactly(x, table, setting, key.precision, scale)  # type: ignore[arg-type]

    def _rotate(self, task: tuple[_Job, A, CellIndex]) -> tuple[A, bool]:
        """Return q (s, d) or k (d, s) as it is multiplied, and whether every row or column holds a nan."""
        job, x, cell = task
        subject, table = self.plan.subjects[cell[0]], self.tables[job.panel.start].cells[cell]
        if self.library.rotates(subject):
            rotated: Any = kernel.rotate(subject, job.side, x, table, job.head)  # type: ignore[arg-type]
        else:
            given = round_to(job.x[job.panel], subject.input)
            rotated = self.library.taken(kernel.rotate(subject, job.side, given, table, job.head))
        nonfinite = self.library.known_nan(rotated)
        operand: Any = scores.operand(rotated, subject)
        return self.library.contiguous(operand.T if job.side == "k" else operand), nonfinite

    def _strip(self, strip: _Strip, first_row: int, cols: slice) -> dict[CellIndex, CellStatistics]:
        """Measure all tiles of some rows of a head against one panel of keys."""
        results = {cell: CellStatistics() for cell in self.plan.cells()}
        head, q, k, rows, judged = strip
        in_q = slice(rows.start - first_row, rows.stop - first_row)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for keys in self._tiles(rows, cols):
                in_k = slice(keys.start - cols.start, keys.stop - cols.start)
                block: Block[A] = Block.tile(self.plan.mask, head, rows, keys, self.library)
                here = Tile(self.plan, block, q, k, in_q, in_k, self.workspace)
                for key, members in self.groups.items():
                    here.measure(key, members, results)
            self.library.settle()
            if judged:
                from ropeaudit.engine import agreement  # in-function: NumPy alone needs none

                agreement.check(here, head, rows, keys)
        return results
