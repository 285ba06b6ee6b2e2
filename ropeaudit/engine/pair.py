"""Two ways to turn the same q and k: how far their scores are apart, and which is nearer to the exact ones.

Measured a tile at a time: nothing of the size seq_len² is ever held.
Letters: s positions, d head_dim, r and c rows and columns of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import plan, scores, tile
from ropeaudit.engine.statistics import Differences, Place, Size, hide
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor, Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects import Subject, key_rotation

Name = Literal["q", "k"]

_EQUAL = 0.005  # share by which two RMS drifts must differ for one to be nearer


@dataclass(slots=True)
class Apart:
    """Statistics of two subjects, a and b, over the same scores. Units: score units.

    drifts: of each against its own reference. truths: the exact scores of each. apart: a's scores minus
    b's. nearer: how many scores of each are nearer to the exact ones than the other's. error: the certificate
    of the reference.
    """

    drifts: tuple[Differences, Differences] = field(default_factory=lambda: (Differences(), Differences()))
    truths: tuple[Size, Size] = field(default_factory=lambda: (Size(), Size()))
    apart: Differences = field(default_factory=Differences)
    nearer: tuple[int, int] = (0, 0)
    error: float = 0.0

    def merge(self, later: Apart) -> None:
        """Take in what was gathered over later tiles."""
        for mine, others in zip((*self.drifts, self.apart), (*later.drifts, later.apart), strict=True):
            mine.merge(others)
        for reference, other in zip(self.truths, later.truths, strict=True):
            reference.merge(other)
        self.nearer = self.nearer[0] + later.nearer[0], self.nearer[1] + later.nearer[1]
        self.error = max(self.error, later.error)

    def winner(self) -> int | None:
        """Return 0 or 1, the one with the smaller RMS drift, -1 if they are equal, None if both are nan.

        Equal: to within `_EQUAL`, or within the certified error of the reference.
        """
        first, second = (drift.rms for drift in self.drifts)
        if np.isnan(first) or np.isnan(second):
            return None if np.isnan(first) and np.isnan(second) else int(np.isnan(first))
        alike = max(self.error, _EQUAL * max(first, second))
        return -1 if abs(first - second) <= alike else int(second < first)


class RotationFunction(Protocol):
    """A subject at work on q and k."""

    subject: Subject

    def prepare(self, panels: Sequence[slice]) -> None:
        """Make ready to turn these panels of positions, and no others."""

    def rotated(self, name: Name, head: int, panel: slice) -> FloatArray:
        """Return q or k of a head, rotated and stored. Shapes: -> (panel, d)."""


class Fresh:
    """q and k rotated from scratch, at their positions + offset."""

    def __init__(self, subject: Subject, inputs: Inputs, offset: int) -> None:
        """Keep the subject and its offset; the tables come with `prepare`."""
        self.subject, self.inputs, self.offset = subject, inputs, offset
        self.tables: dict[int, Any] = {}

    def prepare(self, panels: Sequence[slice]) -> None:
        """Hold the tables of these panels."""
        self.tables = {p.start: self.tables.get(p.start) or self._table(p) for p in panels}

    def _table(self, panel: slice) -> Any:
        return self.subject.table(np.arange(panel.start, panel.stop, dtype=np.int64), self.offset)

    def rotated(self, name: Name, head: int, panel: slice) -> FloatArray:
        """Return q or k of a head, rotated and stored. Shapes: -> (panel, d)."""
        x = (self.inputs.q if name == "q" else self.inputs.k)[head][panel]
        rotate = self.subject.rotate if name == "q" else key_rotation(self.subject)
        return rotate(round_to(x, self.subject.input), self.tables[panel.start])


def input_formats(inputs: Inputs, subjects: Sequence[Subject]) -> list[Format]:
    """Return how each subject's q and k are rounded; a format that changes nothing counts as float64."""
    known = inputs.distinct(subject.input for subject in subjects)
    return [known[subject.input] for subject in subjects]


class _Work(NamedTuple):
    """One pair of panels, and what all heads share there."""

    rows: slice
    cols: slice
    tables: tuple[Any, Any]


class Comparison:
    """Two turners on the same q and k. Scores are formed tile by tile, heads in parallel."""

    def __init__(
        self,
        inputs: Inputs,
        setting: RopeSetting,
        mask: Mask,
        pair: tuple[RotationFunction, RotationFunction],
        origin: int = 0,
    ) -> None:
        """Keep what is compared. origin: added to the positions of the reference (it matters with --clip)."""
        self.inputs, self.setting, self.mask, self.pair, self.origin = inputs, setting, mask, pair, origin
        subjects = [rotator.subject for rotator in pair]
        self.formats = input_formats(inputs, subjects)
        wide = max(subject.narrowest for subject in subjects) > FP32.precision
        self.precision: Precision = "extended" if wide else "double"

    def run(self, progress: Callable[[float], None], threads: int | None = None) -> Apart:
        """Return what was measured; progress gets the share that is done, from 0 to 1."""
        heads, size, _ = self.inputs.q.shape
        total, result = masks.count(self.mask, size) * heads, Apart()
        count = min(threads or run_metadata.threads(), heads)
        with mapping(count) as mapped:
            for work in self._panels(size):
                for part in mapped(functools.partial(self._head, work), range(heads)):
                    result.merge(part)
                    progress(result.apart.count / total)
        return result

    def _panels(self, size: int) -> Iterator[_Work]:
        for rows, cols in masks.panels(self.mask, size, plan.PANEL):
            for rotator in self.pair:
                rotator.prepare([rows, cols])
            own = self._distances(rows)
            yield _Work(rows, cols, (own, own if cols == rows else self._distances(cols)))

    def _distances(self, panel: slice) -> Any:
        numbers = np.arange(panel.start, panel.stop, dtype=np.float64) + self.origin
        return exact_scores.distance_table(numbers, self.setting)

    def _head(self, work: _Work, head: int) -> Apart:
        """Compare all tiles of a head within a pair of panels."""
        rows, cols, _ = work
        result, kv_head = Apart(), head // self.inputs.group
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            rotated = []
            for rotator in self.pair:
                q = scores.operand(rotator.rotated("q", head, rows), rotator.subject)
                k = scores.operand(rotator.rotated("k", kv_head, cols), rotator.subject)
                rotated.append((q, np.ascontiguousarray(k.T)))
            exact = {fmt: self._exact(fmt, head, kv_head, work) for fmt in dict.fromkeys(self.formats)}
            result.error = max(exact_scores.certificate(q, k) for q, k in exact.values())
            for top in range(rows.start, rows.stop, tile.TILE_ROWS):
                some = slice(top, min(top + tile.TILE_ROWS, rows.stop))
                for seen in masks.tiles(self.mask, some, cols, tile.TILE_COLUMNS, self.inputs.q.shape[1]):
                    self._tile(result, head, work, (some, seen), rotated, exact)
        return result

    def _exact(self, fmt: Format, head: int, kv_head: int, work: _Work) -> tuple[Factor, Factor]:
        """The reference's q and k of a head, rounded to `fmt` first."""
        q = round_to(self.inputs.q[head][work.rows], fmt).astype(np.float64)
        k = round_to(self.inputs.k[kv_head][work.cols], fmt).astype(np.float64)
        left = exact_scores.rotated(q, work.tables[0], self.setting, self.precision, self.setting.scale)
        return left, exact_scores.rotated(k, work.tables[1], self.setting, self.precision)

    def _tile(
        self,
        results: Apart,
        head: int,
        work: _Work,
        place: tuple[slice, slice],
        rotated: Sequence[tuple[FloatArray, FloatArray]],
        exact: dict[Format, tuple[Factor, Factor]],
    ) -> None:
        rows, cols = place
        in_q = slice(rows.start - work.rows.start, rows.stop - work.rows.start)
        in_k = slice(cols.start - work.cols.start, cols.stop - work.cols.start)
        shape, corner = (rows.stop - rows.start, cols.stop - cols.start), (head, rows.start, cols.start)
        hidden = masks.hidden(self.mask, rows, cols)
        visible = shape[0] * shape[1] - (0 if hidden is None else int(hidden.sum()))
        truths = {
            fmt: exact_scores.product(q.rows(in_q), k.rows(in_k), np.empty(shape), np.empty(shape))
            for fmt, (q, k) in exact.items()
        }
        formed: list[Array] = []
        drifts: list[Array] = []
        for index, (left, right) in enumerate(rotated):
            subject = self.pair[index].subject
            out = np.empty(shape, scores.tile_dtype(subject))
            scores.form(left[in_q], right[:, in_k], subject, self.setting.scale, out, np.empty_like(out))
            formed.append(out.astype(np.float64, copy=False))
            high, low = truths[self.formats[index]]
            drifts.append(formed[index] - high if low is None else (formed[index] - high) - low)
            hide(drifts[index], hidden)
        for index, fmt in enumerate(self.formats):
            hide(whole := exact_scores.joined(*truths[fmt]), hidden)
            results.truths[index].weigh(whole, visible)
        _note(results, formed[0] - formed[1], drifts, hidden, visible, corner)


def _note(
    results: Apart, apart: Array, drifts: Sequence[Array], hidden: Any, visible: int, corner: Place
) -> None:
    """Take in the differences of a tile. Shapes: apart and both drifts (r, c)."""
    hide(apart, hidden)
    scratch = np.empty_like(apart)
    results.apart.gather(apart, scratch, visible, corner)
    for drift, gathered in zip(drifts, results.drifts, strict=True):
        gathered.gather(drift, scratch, visible, corner)
    first, second = np.abs(drifts[0]), np.abs(drifts[1])
    results.nearer = (
        results.nearer[0] + int((first < second).sum()),
        results.nearer[1] + int((second < first).sum()),
    )
