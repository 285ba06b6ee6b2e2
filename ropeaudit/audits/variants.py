"""Many variants of one recipe on the same q and k, sharing tables, rotated q and k, and sums.

Letters: h heads, g key-value heads, n sampled positions, d head_dim.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel
from ropeaudit.engine.kernel import ExactScores, Side
from ropeaudit.engine.statistics import Block, Moments, Statistics
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor, Precision
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated, Table

MOST_POSITIONS = 256
_BUDGET = 5e9  # nanoseconds of one thread, at the rates below
_FEW_HEADS, _FEW_POSITIONS, _FEWEST_POSITIONS = 4, 64, 16
TABLE = ("position", "frequency", "angle", "trig", "table")  # stages without q and k
ROTATION = ("rotation", "output")
_BELOW = tuple(field.name for field in fields(Resolved) if field.name not in TABLE)  # the table


@dataclass(frozen=True, slots=True)
class Sample:
    """Which positions (n,) and query heads are looked at."""

    positions: Positions
    heads: tuple[int, ...]

    def covers(self, inputs: Inputs) -> bool:
        """Return whether nothing is left out."""
        return (len(self.heads), self.positions.size) == inputs.q.shape[:2]


def sample(inputs: Inputs, setting: RopeSetting, variants: Sequence[Resolved]) -> Sample:
    """Return as many positions and heads as there is time for, evenly spread."""
    heads, size, _ = inputs.q.shape
    distinct = {tuple(getattr(v, name) for name in (*TABLE, *ROTATION, "accumulate")) for v in variants}
    slow = sum(1 for key in distinct if key[-1].precision < FP32.precision)  # sums step by step
    cost = (len(distinct) - slow) * (0.15 * setting.head_dim + 15.0) + slow * 45.0 * setting.head_dim
    allowed = max(1, int(_BUDGET / max(cost, 1.0)))
    count = min(size, MOST_POSITIONS)
    for fewest, some in ((_FEW_POSITIONS, _FEW_HEADS), (_FEWEST_POSITIONS, 1)):
        if allowed // count**2 < min(some, heads):
            count = min(count, max(fewest, math.isqrt(allowed // min(some, heads))))
    stored = max(1, min(heads, allowed // count**2))
    spread = [np.linspace(0, most - 1, some).round() for most, some in ((size, count), (heads, stored))]
    return Sample(spread[0].astype(np.int64), tuple(spread[1].astype(np.int64).tolist()))


class ExactHead(NamedTuple):
    """A head of q and k, rounded to the input format, (n, d), and its exact scores, (n, n)."""

    q: FloatArray
    k: FloatArray
    block: Block
    scores: ExactScores


class Bench:
    """Measures the drift of a recipe's variants on the same rounded q and k."""

    def __init__(
        self,
        inputs: Inputs,
        setting: RopeSetting,
        mask: Mask,
        axes: Axes | None,
        offset: int,
        sample: Sample,
        recipe: Resolved,
    ) -> None:
        """Compute the exact scores of the sampled heads, which no variant changes."""
        self.inputs, self.setting, self.mask, self.axes = inputs, setting, mask, axes
        self.offset, self.sample, self.input = offset, sample, recipe.input
        self.precision: Precision = "extended" if recipe.narrowest > FP32.precision else "double"
        places = sample.positions.astype(np.float64) + (offset if setting.clipped else 0)
        self.distances = exact_scores.distance_table(places, setting)
        self.reference, self.error = Statistics(Moments.LARGEST), 0.0
        with mapping(1):
            self.exact = {head: self._exact(head) for head in sample.heads}
        self.known: dict[Resolved, Statistics] = {}

    def factors(
        self,
        q: FloatArray,
        k: FloatArray,
        scale: float | None = None,
    ) -> tuple[Factor, Factor]:
        """Return q (times `scale`) and k rotated exactly. Shapes: two of (n, d)."""
        tables = self.distances, self.distances
        return kernel.exact_factors((q, k), self.input, tables, self.setting, self.precision, scale)

    def _exact(self, head: int) -> ExactHead:
        """Compute the exact scores of a head and note their statistics."""
        rows, every = self.sample.positions, slice(0, self.sample.positions.size)
        block = Block.tile(self.mask, head, every, every)
        given = self.inputs.q[head][rows], self.inputs.k[head // self.inputs.group][rows]
        x, y = (round_to(side, self.input) for side in given)
        q, k = self.factors(x, y)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = exact_scores.product(q, k)
            self.error = float(np.maximum(self.error, exact_scores.certificate(q, k)))
        kernel.gather_exact(self.reference, exact, block)
        return ExactHead(x, y, block, exact)

    def drifts(
        self,
        variants: Iterable[Resolved],
        progress: Callable[[float], None] = lambda share: None,
        moments: Moments = Moments.LARGEST,
    ) -> list[Statistics]:
        """Return each variant's drift, at least these moments, and remember it."""
        requested, known, group = list(variants), self.known, self.inputs.group
        new = [one for one in dict.fromkeys(requested) if one not in known or known[one].moments < moments]
        results = {variant: Statistics(moments) for variant in new}
        together = [list(some) for _, some in itertools.groupby(self.sample.heads, lambda h: h // group)]
        with mapping(1):  # a sample is short: see `threads.worth`
            tables: dict[bytes, tuple[Table, list[Resolved]]] = {}  # those of the same bits are one
            for alike in _grouped(new, TABLE):
                table = self.table(alike[0])
                bits = b"".join(np.ascontiguousarray(part, np.float64).tobytes() for part in table)
                tables.setdefault(bits, (table, []))[1].extend(alike)
            jobs = [(heads, *one, moments) for one in tables.values() for heads in together]
            for done, job in enumerate(jobs, 1):
                for variant, statistics in self._job(*job).items():
                    results[variant].merge(statistics)
                progress(done / len(jobs))
        known |= results
        return [known[variant] for variant in requested]

    def table(self, variant: Resolved) -> Table:
        """Return cos and sin at the sampled positions. Shapes: -> two of (n, p)."""
        subject = Emulated(variant, self.setting, self.axes)
        return subject.table(self.sample.positions, self.offset)

    def _job(
        self,
        heads: Sequence[int],
        table: Table,
        variants: Sequence[Resolved],
        moments: Moments,
    ) -> dict[Resolved, Statistics]:
        """Measure variants of one table on the query heads of one key-value head."""
        same = {alike[0]: alike for alike in _grouped(variants, _BELOW)}
        results = {variant: Statistics(moments) for variant in same}
        for alike in _grouped(list(same), ROTATION):
            k = self.rotated("k", heads[0], table, alike[0])
            for head in heads:
                q = self.rotated("q", head, table, alike[0])
                for variant, out in self._scores(q, k, alike):
                    results[variant].add(self.drift(head, out), self.exact[head].block)
        return {variant: results[one] for one, alike in same.items() for variant in alike}

    def rotated(
        self,
        side: Side,
        head: int,
        table: Table,
        variant: Resolved,
    ) -> FloatArray:
        """Return q or k of a query head as the variant stores it. Shapes: -> (n, d)."""
        x = self.exact[head].q if side == "q" else self.exact[head].k
        return kernel.rotate(Emulated(variant, self.setting, self.axes), side, x, table)

    def _scores(
        self, q: FloatArray, k: FloatArray, variants: Sequence[Resolved]
    ) -> Iterator[tuple[Resolved, Array]]:
        """Yield the scores of variants that rotate q and k alike. Shapes: (n, d) -> (n, n)."""

        @functools.cache
        def exact_sums() -> FloatArray:
            return np.asarray(q.astype(np.float64) @ np.ascontiguousarray(k.T, dtype=np.float64))

        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for alike in _grouped(variants, ("accumulate",)):
                total = summed(q, k, Emulated(alike[0], self.setting), exact_sums)
                for variant in alike:
                    out = kernel.stored(total, Emulated(variant, self.setting), self.setting.scale)
                    yield variant, out.astype(np.float64, copy=False)

    def formed(self, q: FloatArray, k: FloatArray, variant: Resolved) -> Array:
        """Return the variant's scores, masked ones too. (n, d) -> (n, n)."""
        return next(iter(self._scores(q, k, [variant])))[1]

    def drift(self, head: int, out: Array) -> Array:
        """Return `out` less a head's exact scores, in place; 0 if masked."""
        exact = self.exact[head]
        with np.errstate(invalid="ignore"):
            return kernel.minus_exact(out, exact.scores, exact.block.hidden, out)


def summed(
    q: FloatArray,
    k: FloatArray,
    subject: Emulated,
    exact: Callable[[], FloatArray],
) -> FloatArray:
    """Return q·k as the subject's accumulator sums it, float32 where q is. Shapes: two of (n, d) -> (n, n).

    Where that alone is float32, the error of float32 sums of rounded q and k is added to the exact ones.
    """
    if subject.accumulate is FP64:
        return exact()
    if subject.accumulate is not FP32 or q.dtype == np.float32:
        out = np.empty((len(q), len(k)), np.float32 if subject.accumulate is FP32 else np.float64)
        kernel.accumulate(q, np.ascontiguousarray(k.T), subject, out)
        return out
    # the error of float32 sums of rounded q and k is added to the exact ones
    single, other = q.astype(np.float32), k.astype(np.float32)
    own: FloatArray = single @ other.T
    if np.array_equal(single, q) and np.array_equal(other, k):
        return own.astype(np.float64)
    return np.asarray(own - single.astype(np.float64) @ other.astype(np.float64).T + exact())


def _grouped(variants: Sequence[Resolved], stages: Sequence[str]) -> list[list[Resolved]]:
    """Return the variants in lists within which these stages have the same formats."""
    groups: dict[Any, list[Resolved]] = {}
    for variant in variants:
        groups.setdefault(tuple(getattr(variant, stage) for stage in stages), []).append(variant)
    return list(groups.values())
