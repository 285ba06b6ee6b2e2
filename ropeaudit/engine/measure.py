"""Scores of subjects and of the reference, or of two subjects, a tile at a time, into statistics.

No array of the size seq_len² is ever in memory. Positions are cut into panels; for a pair of panels q and k
are rotated once per subject and offset, then tiles of scores are formed, compared and dropped. The reference
of a tile does not depend on the offset: it is computed once for all offsets and all subjects that round their
inputs alike. Threads share strips of rows; statistics are merged in the order of the strips, so that the
result does not depend on the number of threads.

Letters: h heads, g key-value heads, s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.engine import kernel, plan
from ropeaudit.engine.kernel import ExactScores, Side, Workspace
from ropeaudit.engine.plan import CellIndex, CellStatistics, Key, Plan
from ropeaudit.engine.statistics import Block, Moments, Statistics
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing, run_metadata
from ropeaudit.runtime.threads import Map, mapping, useful_threads

CertifiedScores: TypeAlias = tuple[ExactScores, float]  # of a head, and their largest error
Measured: TypeAlias = dict[CellIndex, CellStatistics]
T = TypeVar("T")


def measure(cases: Plan[Inputs], threads: int) -> Measured:
    """Return every cell's statistics."""
    results = {cell: CellStatistics() for cell in cases.cells()}
    scores_in_all = masks.count(cases.mask, cases.inputs.seq_len) * cases.inputs.heads
    first = next(iter(results.values()))
    with mapping(threads) as mapped:
        for part in _CellTiles(cases, mapped).strips():
            for cell, measured in part.items():
                results[cell].merge(measured)
            doing.step(first.drift.count / scores_in_all)
    return results


def exact(inputs: Inputs, setting: RopeSetting, fmt: Format) -> Iterator[CertifiedScores]:
    """Yield the exact scores (s, s) of each head, with their certificate."""
    table = exact_scores.distance_table(np.arange(inputs.seq_len, dtype=np.float64), setting)
    for head, x in enumerate(inputs.q):
        sides = x, inputs.k[head // inputs.group]
        q, k = kernel.exact_factors(sides, fmt, (table, table), setting, "extended")
        yield exact_scores.product(q, k), exact_scores.certificate(q, k)


def of_scores(formed: FloatArray, reference: Iterable[CertifiedScores]) -> CellStatistics:
    """Return the drift of scores that other code formed, none masked. Shapes: (h, s, s)."""
    result = CellStatistics()
    for head, (values, (exactly, error)) in enumerate(zip(formed, reference, strict=True)):
        block = Block.tile("full", head, slice(0, values.shape[0]), slice(0, values.shape[1]))
        with np.errstate(invalid="ignore", over="ignore"):
            result.drift.add(kernel.minus_exact(values.astype(np.float64), exactly), block)
        kernel.gather_reference(exactly, error, block, [result])
    return result


@dataclass(frozen=True, slots=True)
class Rotated:
    """q or k of one head and one panel, rotated by every subject and by the reference.

    subjects: in the dtype in which products are accumulated; of q (s, d), of k (d, s), so that a tile's
    product runs over contiguous rows. nonfinite: cells in which every row of q or every column of k holds a
    nan, and so every score is one.
    """

    subjects: dict[CellIndex, FloatArray] = field(default_factory=dict)
    reference: dict[Key, Factor] = field(default_factory=dict)
    nonfinite: set[CellIndex] = field(default_factory=set)


class Rotation:
    """Rotates q and k of a plan, with the tables of a panel made once for all heads."""

    def __init__(self, cases: Plan[Inputs], mapped: Map) -> None:
        self.plan, self.map, self.groups = cases, mapped, cases.keys()
        self.tables: dict[int, dict[CellIndex | None, Any]] = {}  # by panel; None for the reference

    def prepare(self, *panels: slice) -> None:
        """Make the tables of these panels, and drop those of others."""
        earlier, self.tables = self.tables, {}
        for panel in panels:
            if panel.start not in self.tables:
                self.tables[panel.start] = earlier.get(panel.start) or self._tables(panel)

    def _tables(self, panel: slice) -> dict[CellIndex | None, Any]:
        positions = self.plan.at(panel)
        numbers = (positions + self.plan.origin).astype(np.float64)
        cells = [*self.plan.cells(), None]

        def table(cell: CellIndex | None) -> Any:
            if cell is None:
                return exact_scores.distance_table(numbers, self.plan.setting)
            return self.plan.subjects[cell[0]].table(positions, cell[1])

        return dict(zip(cells, self.map(table, cells), strict=True))

    def rotated(self, side: Side, head: int, panel: slice) -> Rotated:
        """Return a panel of a head rotated by each cell and the reference."""
        inputs, setting, tables = self.plan.inputs, self.plan.setting, self.tables[panel.start]
        x = (inputs.q if side == "q" else inputs.k)[head][panel]
        rounded: dict[Format | np.dtype[Any], FloatArray] = {}

        def rounded_to(fmt: Format) -> FloatArray:
            """Return x in a format, or in its carrier if that changes nothing."""
            kind = fmt.carrier if inputs.unchanged_by(fmt) else fmt
            if kind not in rounded:
                rounded[kind] = round_to(x, kind) if isinstance(kind, Format) else x.astype(kind, copy=False)
            return rounded[kind]

        result, scale = Rotated(), setting.scale if side == "q" else 1.0
        for key in self.groups:
            given = rounded_to(key.input)
            result.reference[key] = kernel.rotate_exactly(given, tables[None], setting, key.precision, scale)
        for cell in self.plan.cells():
            subject = self.plan.subjects[cell[0]]
            given = rounded_to(subject.input)
            with np.errstate(invalid="ignore"):  # inputs may have overflowed in their format
                rotated = kernel.rotate(subject, side, given, tables[cell], head)
            if np.isnan(rotated.min(axis=1)).all():
                result.nonfinite.add(cell)
            operand = kernel.operand(rotated, subject)
            result.subjects[cell] = np.ascontiguousarray(operand.T if side == "k" else operand)
        return result


class Tile(NamedTuple):
    """A tile of a head: q and k of its panels, its rows and columns, its scores."""

    q: Rotated
    k: Rotated
    rows: slice
    cols: slice
    block: Block

    def operands(self, cell: CellIndex) -> tuple[FloatArray, FloatArray]:
        """Return a cell's rotated q and k. Shapes: -> (r, d), (d, c)."""
        return self.q.subjects[cell][self.rows], self.k.subjects[cell][:, self.cols]

    def factors(self, key: Key) -> tuple[Factor, Factor]:
        """Return exactly rotated q and k, under the norms of the whole panels."""
        return self.q.reference[key].rows(self.rows), self.k.reference[key].rows(self.cols)


class Tiles(Rotation, Generic[T]):
    """A pass over heads, panels and tiles of a plan; each strip of rows gathers a T, at first `empty()`."""

    empty: Callable[[], T]

    def gather(self, tile: Tile, result: T) -> None:
        """Add a tile to the result."""
        raise NotImplementedError

    def strips(self) -> Iterator[T]:
        """Yield the result of each strip of rows, in order."""
        cells, inputs = (
            len(self.plan.cells()) + 3 * len(self.groups),
            self.plan.inputs,
        )  # a Factor is 3 arrays
        # query heads whose rotated q and k fit in the cache together
        fitting = max(1, plan.CACHE_BYTES // (cells * plan.cell_bytes(self.plan.setting, inputs.seq_len)))
        for rows, cols in masks.panels(self.plan.mask, inputs.seq_len, plan.PANEL):
            self.prepare(rows, cols)
            for start in range(0, inputs.heads, fitting):
                yield from self._strips_of_heads(range(start, min(start + fitting, inputs.heads)), rows, cols)

    def _tiles(self, rows: slice, cols: slice) -> Iterator[slice]:
        return masks.tiles(self.plan.mask, rows, cols, plan.TILE_COLUMNS, self.plan.inputs.seq_len)

    def _strips_of_heads(
        self,
        heads: range,
        rows: slice,
        cols: slice,
    ) -> Iterator[T]:
        group = self.plan.inputs.group
        kv_heads = sorted({head // group for head in heads})
        jobs = [*(("q", head, rows) for head in heads), *(("k", head, cols) for head in kv_heads)]
        panels = list(self.map(self.rotated, *zip(*jobs, strict=True)))
        k = dict(zip(kv_heads, panels[len(heads) :], strict=True))
        starts = range(rows.start, rows.stop, plan.TILE_ROWS)
        cuts = [slice(s, min(s + plan.TILE_ROWS, rows.stop)) for s in starts]
        unmasked = [cut for cut in cuts if any(self._tiles(cut, cols))]
        strips = [
            (head, q, k[head // group], cut)
            for head, q in zip(heads, panels, strict=False)
            for cut in unmasked
        ]
        of_panels = functools.partial(self._gather_strip, rows.start, cols)
        yield from self.map(of_panels, *zip(*strips, strict=True))

    def _gather_strip(
        self,
        first_row: int,
        cols: slice,
        head: int,
        q: Rotated,
        k: Rotated,
        rows: slice,
    ) -> T:
        """Gather all tiles of some rows of a head against one panel of keys."""
        result, in_q = self.empty(), slice(rows.start - first_row, rows.stop - first_row)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for keys in self._tiles(rows, cols):
                in_k = slice(keys.start - cols.start, keys.stop - cols.start)
                self.gather(Tile(q, k, in_q, in_k, Block.tile(self.plan.mask, head, rows, keys)), result)
        return result


class _CellTiles(Tiles[Measured]):
    """Each cell against its reference, and against itself at offset 0."""

    def __init__(self, cases: Plan[Inputs], mapped: Map) -> None:
        super().__init__(cases, mapped)
        self.workspace = Workspace()
        self.empty = lambda: {cell: CellStatistics() for cell in cases.cells()}

    def gather(self, tile: Tile, result: Measured) -> None:
        """Compare the subjects of each reference in a tile with it."""
        joined, high, low = (self.workspace.array(number, FP64, tile.block.shape) for number in (0, 3, 4))
        unknown = tile.q.nonfinite | tile.k.nonfinite
        for key, members in self.groups.items():
            q, k = tile.factors(key)
            exactly = exact_scores.product(q, k, high, low)
            cells = {index: [(index, n) for n in self.plan.offsets[index]] for index in members}
            of_key = [result[cell] for some in cells.values() for cell in some]
            kernel.gather_reference(exactly, exact_scores.certificate(q, k), tile.block, of_key, joined)
            for index, some in cells.items():
                operands = (None if cell in unknown else tile.operands(cell) for cell in some)
                measured, subject = [result[cell] for cell in some], self.plan.subjects[index]
                scale = self.plan.setting.scale
                kernel.measure(subject, operands, scale, exactly, tile.block, measured, self.workspace)


BLOCK = 2048  # pairs at once


def measure_sampled(cases: Plan[SampledInputs], threads: int) -> Measured:
    """Return every cell's statistics."""
    sampled, origin, setting, groups = cases.inputs, cases.origin, cases.setting, cases.keys()
    count, chosen, workspace = len(sampled), sampled.pairs, Workspace()

    def operands(
        index: int, sides: tuple[FloatArray, FloatArray], rows: slice
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield the rotated q and k of pairs at every offset. Shapes: (n, d) twice."""
        subject = cases.subjects[index]
        x, y = (round_to(side, subject.input) for side in sides)
        for offset in cases.offsets[index]:
            q = kernel.rotate(subject, "q", x, subject.table(chosen.query[rows], offset))
            k = kernel.rotate(subject, "k", y, subject.table(chosen.key[rows], offset))
            yield kernel.operand(q, subject), kernel.operand(k, subject)

    def measure_block(rows: slice) -> Measured:
        """Measure all cells over some of the pairs."""
        of_block = {cell: CellStatistics.sampled() for cell in cases.cells()}
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            tables = (
                exact_scores.distance_table((chosen.query[rows] + origin).astype(np.float64), setting),
                exact_scores.distance_table((chosen.key[rows] + origin).astype(np.float64), setting),
            )
            sides = (sampled.q[rows], sampled.k[rows])
            block = Block.pairs(rows.start, chosen.weight[rows])
            for key, members in groups.items():
                q, k = kernel.exact_factors(sides, key.input, tables, setting, key.precision)
                exact, error = exact_scores.paired(q, k), exact_scores.certificate(q, k)
                for index in members:
                    cells = [of_block[index, offset] for offset in cases.offsets[index]]
                    kernel.gather_reference(exact, error, block, cells)
                    rotated, subject = operands(index, sides, rows), cases.subjects[index]
                    kernel.measure(subject, rotated, setting.scale, exact, block, cells, workspace)
        return of_block

    results = {cell: CellStatistics.sampled() for cell in cases.cells()}
    blocks = [slice(i, min(i + BLOCK, count)) for i in range(0, count, BLOCK)]
    with mapping(threads) as mapped:
        for rows, part in zip(blocks, mapped(measure_block, blocks), strict=True):
            for cell, measured in part.items():
                results[cell].merge(measured)
            doing.step(rows.stop / count)
    for measured in results.values():
        for statistics in (measured.drift, measured.self_drift):
            if statistics.place is not None:
                at = statistics.place[2]
                statistics.place = int(chosen.head[at]), int(chosen.query[at]), int(chosen.key[at])
    return results


_EQUAL = 0.005  # share by which two RMS drifts must differ for one to be nearer


@dataclass(slots=True)
class PairStatistics:
    """Statistics of two subjects, a and b, over the same scores. Units: score units.

    drifts: of each against its own reference. references: the exact scores of each. difference: a's scores
    minus b's. nearer: how many scores of each are nearer to the exact ones than the other's. error: the
    certificate of the reference. elements: how many of rotated q and k were compared bit by bit; differing:
    how many of these are not the same.
    """

    drifts: tuple[Statistics, Statistics] = field(default_factory=lambda: (Statistics(), Statistics()))
    references: tuple[Statistics, Statistics] = field(
        default_factory=lambda: (Statistics(Moments.SQUARES), Statistics(Moments.SQUARES))
    )
    difference: Statistics = field(default_factory=Statistics)
    nearer: tuple[int, int] = (0, 0)
    error: float = 0.0
    elements: int = 0
    differing: int = 0

    def merge(self, later: PairStatistics) -> None:
        """Add the statistics of later tiles."""
        for name in ("drifts", "references"):
            for mine, other in zip(getattr(self, name), getattr(later, name), strict=True):
                mine.merge(other)
        self.difference.merge(later.difference)
        self.nearer = self.nearer[0] + later.nearer[0], self.nearer[1] + later.nearer[1]
        self.error = max(self.error, later.error)

    def winner(self) -> int | None:
        """Return the subject, 0 or 1, with the smaller RMS drift, -1 if equal, None if both are nan.

        Equal: to within `_EQUAL`, or within the certified error of the reference.
        """
        first, second = (drift.rms for drift in self.drifts)
        if np.isnan(first) or np.isnan(second):
            return None if np.isnan(first) and np.isnan(second) else int(np.isnan(first))
        alike = max(self.error, _EQUAL * max(first, second))
        return -1 if abs(first - second) <= alike else int(second < first)


def compare(cases: Plan[Inputs], bits: Format) -> PairStatistics:
    """Compare the two subjects of a plan, at one offset.

    bits: the format in which rotated q and k are compared bit by bit.
    """
    inputs, result = cases.inputs, PairStatistics()
    total = masks.count(cases.mask, inputs.seq_len) * inputs.heads
    with mapping(useful_threads(min(run_metadata.threads(), inputs.heads), inputs.seq_len)) as mapped:
        tiles = _PairTiles(cases, mapped, bits)
        for part in tiles.strips():
            result.merge(part)
            doing.step(result.difference.count / total)
    result.elements = sum(elements for elements, _ in tiles.compared.values())
    result.differing = sum(differing for _, differing in tiles.compared.values())
    return result


class _PairTiles(Tiles[PairStatistics]):
    """The scores of two subjects against each other.

    compared: how many elements of rotated q and k there are, and how many differ, by side, head and panel.
    """

    def __init__(self, cases: Plan[Inputs], mapped: Map, bits: Format) -> None:
        super().__init__(cases, mapped)
        self.bits, self.cells, self.empty = bits, cases.cells(), PairStatistics
        keys = {index: key for key, members in self.groups.items() for index in members}
        self.keys = [keys[index] for index, _ in self.cells]
        self.compared: dict[tuple[Side, int, int], tuple[int, int]] = {}

    def rotated(self, side: Side, head: int, panel: slice) -> Rotated:
        result, where = super().rotated(side, head, panel), (side, head, panel.start)
        if where not in self.compared:
            first, second = (round_to(result.subjects[cell], self.bits) for cell in self.cells)
            self.compared[where] = first.size, int(np.count_nonzero(bits_differ(first, second)))
        return result

    def gather(self, tile: Tile, result: PairStatistics) -> None:
        """Form both scores of a tile and add their differences to the result."""
        exact = {key: tile.factors(key) for key in self.groups}
        result.error = max(result.error, *(exact_scores.certificate(q, k) for q, k in exact.values()))
        scores = {key: exact_scores.product(q, k) for key, (q, k) in exact.items()}
        subjects = [self.plan.subjects[index] for index, _ in self.cells]
        formed = [
            kernel.formed(*tile.operands(cell), subject, self.plan.setting.scale)
            for cell, subject in zip(self.cells, subjects, strict=True)
        ]
        block, sizes = tile.block, []
        difference = kernel.minus_exact(formed[0], (formed[1], None), block.hidden)
        scratch = np.empty_like(difference)
        result.difference.add(difference, block, scratch)
        for index, key in enumerate(self.keys):
            kernel.gather_exact(result.references[index], scores[key], block)
            drift = kernel.minus_exact(formed[index], scores[key], block.hidden)
            result.drifts[index].add(drift, block, scratch)
            sizes.append(np.abs(drift))
        nearer = int((sizes[0] < sizes[1]).sum()), int((sizes[1] < sizes[0]).sum())
        result.nearer = result.nearer[0] + nearer[0], result.nearer[1] + nearer[1]
