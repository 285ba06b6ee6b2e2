"""Two ways to rotate the same q and k: how far their scores differ, and which is nearer to the exact ones.

Measured a tile at a time: nothing of the size seq_len² is ever held.
Letters: s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, FloatArray, Format
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.engine import kernel, plan
from ropeaudit.engine.kernel import ExactScores, Side
from ropeaudit.engine.statistics import Block, Moments, Statistics, Values
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.runtime.threads import mapping, worth
from ropeaudit.subjects import Subject

Dims: TypeAlias = NDArray[np.int64]  # an order of dims
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
        """Take in what was gathered over later tiles."""
        for name in ("drifts", "references"):
            for mine, other in zip(getattr(self, name), getattr(later, name), strict=True):
                mine.merge(other)
        self.difference.merge(later.difference)
        self.nearer = self.nearer[0] + later.nearer[0], self.nearer[1] + later.nearer[1]
        self.error = max(self.error, later.error)
        self.elements, self.differing = self.elements + later.elements, self.differing + later.differing

    def winner(self) -> int | None:
        """Return 0 or 1, the one with the smaller RMS drift, -1 if they are equal, None if both are nan.

        Equal: to within `_EQUAL`, or within the certified error of the reference.
        """
        first, second = (drift.rms for drift in self.drifts)
        if np.isnan(first) or np.isnan(second):
            return None if np.isnan(first) and np.isnan(second) else int(np.isnan(first))
        alike = max(self.error, _EQUAL * max(first, second))
        return -1 if abs(first - second) <= alike else int(second < first)


class FreshRotation:
    """A subject, and q and k rotated by it from scratch, at their positions + offset.

    into, back: the orders of dims that bring q and k into its layout, and what it returns into that of the
    case; None where they are the same. Shapes: (d,) each.
    """

    def __init__(
        self, subject: Subject, inputs: Inputs, offset: int, into: Dims | None, back: Dims | None
    ) -> None:
        self.subject, self.inputs, self.offset, self.into, self.back = subject, inputs, offset, into, back
        self.tables: dict[int, Any] = {}

    def prepare(self, panels: Sequence[slice]) -> None:
        """Hold the tables of these panels, and of no others."""
        self.tables = {
            panel.start: self.tables.get(panel.start)
            or self.subject.table(np.arange(panel.start, panel.stop, dtype=np.int64), self.offset)
            for panel in panels
        }

    def rotated(self, side: Side, head: int, panel: slice) -> FloatArray:
        """Return q or k of a head, rotated and stored. Shapes: -> (panel, d)."""
        x = (self.inputs.q if side == "q" else self.inputs.k)[head][panel]
        x = round_to(x if self.into is None else x[:, self.into], self.subject.input)
        y = kernel.rotate(self.subject, side, x, self.tables[panel.start], head)
        return y if self.back is None else np.ascontiguousarray(y[:, self.back])


class Comparison:
    """Two rotations of the same q and k. Scores are formed tile by tile, heads in parallel."""

    def __init__(
        self,
        inputs: Inputs,
        setting: RopeSetting,
        mask: Mask,
        pair: tuple[FreshRotation, FreshRotation],
        origin: int,
        bits: Format,
    ) -> None:
        """Remember what is compared.

        origin: added to the positions of the reference; it matters where angles are clipped. bits: the format
        in which rotated q and k are compared bit by bit.
        """
        self.bits = bits
        self.inputs, self.setting, self.mask, self.pair, self.origin = inputs, setting, mask, pair, origin
        subjects = [rotator.subject for rotator in pair]
        distinct = inputs.distinct(subject.input for subject in subjects)
        self.formats = [distinct[subject.input] for subject in subjects]
        wide = max(subject.narrowest for subject in subjects) > FP32.precision
        self.precision: Precision = "extended" if wide else "double"

    def run(self, progress: Callable[[float], None]) -> PairStatistics:
        """Return what was measured; progress gets the share that is done, from 0 to 1."""
        heads, size, _ = self.inputs.q.shape
        total, result = masks.count(self.mask, size) * heads, PairStatistics()
        with mapping(worth(min(run_metadata.threads(), heads), size)) as mapped:
            for panels in self._panels(size):
                for part in mapped(functools.partial(self._head, *panels), range(heads)):
                    result.merge(part)
                    progress(result.difference.count / total)
        return result

    def _panels(self, size: int) -> Iterator[tuple[slice, slice, tuple[Any, Any], tuple[bool, bool]]]:
        """Yield rows, columns, their tables, and whether q, and k, are there the first time."""
        seen: tuple[set[int], set[int]] = set(), set()
        for rows, cols in masks.panels(self.mask, size, plan.PANEL):
            for rotator in self.pair:
                rotator.prepare([rows, cols])
            own, new = self._distances(rows), (rows.start not in seen[0], cols.start not in seen[1])
            seen[0].add(rows.start)
            seen[1].add(cols.start)
            yield rows, cols, (own, own if cols == rows else self._distances(cols)), new

    def _distances(self, panel: slice) -> Any:
        numbers = np.arange(panel.start, panel.stop, dtype=np.float64) + self.origin
        return exact_scores.distance_table(numbers, self.setting)

    def _head(
        self, rows: slice, cols: slice, tables: tuple[Any, Any], new: tuple[bool, bool], head: int
    ) -> PairStatistics:
        """Compare all tiles of a head within a pair of panels."""
        result, kv_head = PairStatistics(), head // self.inputs.group
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            rotated, sides = [], []
            for rotator in self.pair:
                sides.append((rotator.rotated("q", head, rows), rotator.rotated("k", kv_head, cols)))
                q, k = (kernel.operand(x, rotator.subject) for x in sides[-1])
                rotated.append((q, np.ascontiguousarray(k.T)))
            alone = head % self.inputs.group == 0  # several heads share those of k
            for index in [index for index, on in enumerate((new[0], new[1] and alone)) if on]:
                result.elements += sides[0][index].size
                first, second = (round_to(side[index], self.bits) for side in sides)
                result.differing += int(np.count_nonzero(bits_differ(first, second)))
            given = self.inputs.q[head][rows], self.inputs.k[kv_head][cols]
            exact = {
                fmt: kernel.exact_factors(given, fmt, tables, self.setting, self.precision)
                for fmt in dict.fromkeys(self.formats)
            }
            result.error = max(exact_scores.certificate(q, k) for q, k in exact.values())
            for top in range(rows.start, rows.stop, plan.TILE_ROWS):
                queries = slice(top, min(top + plan.TILE_ROWS, rows.stop))
                in_q = slice(queries.start - rows.start, queries.stop - rows.start)
                for keys in masks.tiles(self.mask, queries, cols, plan.TILE_COLUMNS, self.inputs.seq_len):
                    in_k = slice(keys.start - cols.start, keys.stop - cols.start)
                    block = Block.tile(self.mask, head, queries, keys)
                    scores = {
                        fmt: exact_scores.product(q.rows(in_q), k.rows(in_k)) for fmt, (q, k) in exact.items()
                    }
                    self._gather(result, block, scores, [(q[in_q], k[:, in_k]) for q, k in rotated])
        return result

    def _gather(
        self,
        result: PairStatistics,
        block: Block,
        exact: dict[Format, ExactScores],
        rotated: Sequence[tuple[FloatArray, FloatArray]],
    ) -> None:
        """Form both scores of a tile and take in their differences. rotated: q (r, d), k (d, c)."""
        formed, drifts = list[Values](), list[Values]()
        for rotator, fmt, (q, k) in zip(self.pair, self.formats, rotated, strict=True):
            formed.append(kernel.formed(q, k, rotator.subject, self.setting.scale))
            drifts.append(kernel.minus_exact(formed[-1], exact[fmt], block.hidden))
        for reference, fmt in zip(result.references, self.formats, strict=True):
            kernel.gather_exact(reference, exact[fmt], block)
        difference = kernel.minus_exact(formed[0], (formed[1], None), block.hidden)
        scratch = np.empty_like(difference)
        result.difference.add(difference, block, scratch)
        for drift, gathered in zip(drifts, result.drifts, strict=True):
            gathered.add(drift, block, scratch)
        first, second = np.abs(drifts[0]), np.abs(drifts[1])
        result.nearer = (
            result.nearer[0] + int((first < second).sum()),
            result.nearer[1] + int((second < first).sum()),
        )
