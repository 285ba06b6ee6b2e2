"""Drifts of variants of a recipe on a sample of q and k; shared stages are computed once.

Letters: h query heads, g key-value heads, n positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel
from ropeaudit.engine.statistics import Block, Moments, Statistics
from ropeaudit.inputs import masks
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

MOST_HEADS, MOST_POSITIONS = 8, 128
_TABLE = ("position", "frequency", "angle", "trig", "table")  # stages without q and k
_ROTATION = ("rotation", "output")
_BELOW = tuple(field.name for field in fields(Resolved) if field.name not in _TABLE)  # the table


@dataclass(frozen=True, slots=True)
class Sample:
    """A selection of positions (n,) and query heads."""

    positions: Positions
    heads: tuple[int, ...]

    def covers(self, inputs: Inputs) -> bool:
        """Return whether the sample is all of q and k."""
        return (len(self.heads), self.positions.size) == inputs.q.shape[:2]


def sample(inputs: Inputs) -> Sample:
    """Select evenly spaced heads, and positions at random, as even steps may fall on a grid."""
    heads, size, _ = inputs.q.shape
    positions = np.arange(size, dtype=np.int64)
    if size > MOST_POSITIONS:
        chosen = np.random.default_rng(0).choice(size, MOST_POSITIONS, replace=False)
        positions = np.sort(chosen).astype(np.int64)
    spread = np.linspace(0, heads - 1, min(heads, MOST_HEADS)).round()
    return Sample(positions, tuple(spread.astype(np.int64).tolist()))


class Bench:
    """Rounded q and k of a sample, and exact scores, from which variants of a recipe drift.

    vectors: rounded q of the query heads, then k of their key-value heads, (h + g, n, d).
    exact: their exact scores, (h, n, n). reference: statistics of these. error: their certificate.
    """

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
        self.setting, self.axes, self.offset = setting, axes, offset
        at, heads = sample.positions, list(sample.heads)
        kv_heads = sorted({head // inputs.group for head in heads})
        self.positions = at
        self.key_of = [len(heads) + kv_heads.index(head // inputs.group) for head in heads]
        selected = inputs.q[heads][:, at], inputs.k[kv_heads][:, at]
        self.vectors = round_to(np.concatenate(selected), recipe.input)
        first, last = masks.key_range(mask, at, inputs.seq_len)
        hidden = (at < first[:, None]) | (at > last[:, None])
        self.hidden = hidden if hidden.any() else None
        visible = len(heads) * int((~hidden).sum())
        self.block = Block((len(heads) * at.size, at.size), visible)
        self.precision: Precision = "extended" if recipe.narrowest > FP32.precision else "double"
        distances = at.astype(np.float64) + (offset if setting.clipped else 0)
        self.circle = exact_scores.distance_table(distances, setting)
        self.reference, self.error = Statistics(Moments.SQUARES), 0.0
        self.drift_by_variant: dict[Resolved, Statistics] = {}
        with mapping(1), np.errstate(invalid="ignore", over="ignore"):
            factors = self.factors(setting.scale)
            sides = [(factors[head], factors[key]) for head, key in enumerate(self.key_of)]
            products = [exact_scores.product(q, k) for q, k in sides]
            high = np.stack([one for one, _ in products])
            low = [one for _, one in products if one is not None]
            self.exact = high, np.stack(low) if low else None
            self.error = float(np.max([exact_scores.certificate(q, k) for q, k in sides]))
            joined = masks.hide(exact_scores.joined(*self.exact).copy(), self.hidden)
            self.reference.add(joined, self.block)

    def factors(self, scale: float) -> list[Factor]:
        """Return the vectors rotated exactly, q times `scale`: h + g of (n, d)."""
        scales = [scale] * len(self.key_of) + [1.0] * (len(self.vectors) - len(self.key_of))
        rest = self.circle, self.setting, self.precision
        return [kernel.rotate_exactly(x, *rest, by) for x, by in zip(self.vectors, scales, strict=True)]

    def drifts(self, variants: Iterable[Resolved]) -> list[Statistics]:
        """Return the drift of each variant; drifts are cached."""
        requested = list(variants)
        new = [variant for variant in dict.fromkeys(requested) if variant not in self.drift_by_variant]
        with mapping(1):  # a sample is short: see `threads.worth`
            tables: dict[bytes, tuple[Table, list[Resolved]]] = {}  # by their bits
            for alike in _grouped_by_stages(new, _TABLE):
                table = self._table(alike[0])
                parts = (np.ascontiguousarray(part, np.float64) for part in table)
                bits = b"".join(part.tobytes() for part in parts)
                tables.setdefault(bits, (table, []))[1].extend(alike)
            for table, sharing in tables.values():
                same = {alike[0]: alike for alike in _grouped_by_stages(sharing, _BELOW)}
                for rotated_alike in _grouped_by_stages(list(same), _ROTATION):
                    q, k = self._rotate(rotated_alike[0], table)
                    for variant, values in self._drifts(q, k, rotated_alike):
                        statistics = Statistics(Moments.LARGEST)
                        statistics.add(values, self.block)
                        self.drift_by_variant |= dict.fromkeys(same[variant], statistics)
        return [self.drift_by_variant[variant] for variant in requested]

    def rotated_and_drift(self, recipe: Resolved) -> tuple[FloatArray, FloatArray, Array]:
        """Return q and k that a recipe rotated, and the drift of their scores, 0 if masked.

        Shapes: -> two of (h, n, d), (h, n, n).
        """
        with mapping(1):
            q, k = self._rotate(recipe, self._table(recipe))
            ((_, drift),) = self._drifts(q, k, [recipe])
        return q, k, drift

    def _table(self, recipe: Resolved) -> Table:
        return Emulated(recipe, self.setting, self.axes).table(self.positions, self.offset)

    def _rotate(self, recipe: Resolved, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return rotated q and k of each query head, as stored. Shapes: -> two of (h, n, d)."""
        cos, sin = (np.tile(part, (len(self.vectors), 1)) for part in table)
        rows = self.vectors.reshape(-1, self.vectors.shape[-1])
        subject = Emulated(recipe, self.setting, self.axes)
        rotated = subject.rotate(rows, (cos, sin)).reshape(self.vectors.shape)
        return rotated[: len(self.key_of)], rotated[self.key_of]

    def _drifts(
        self, q: FloatArray, k: FloatArray, variants: Sequence[Resolved]
    ) -> Iterator[tuple[Resolved, Array]]:
        """Yield the drift of variants of q and k alike, 0 if masked. Shapes: -> (h, n, n)."""
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for alike in _grouped_by_stages(variants, ("accumulate",)):
                sums = summed(q, k, Emulated(alike[0], self.setting))
                for variant in alike:
                    out = kernel.stored(sums, Emulated(variant, self.setting), self.setting.scale)
                    out = out.astype(np.float64, copy=False)
                    yield variant, kernel.minus_exact(out, self.exact, self.hidden, out)


def summed(q: FloatArray, k: FloatArray, subject: Emulated) -> FloatArray:
    """Return q·k as the subject's accumulator sums it, float32 where q is.

    Shapes: (h, n, d) -> (h, n, n).
    If only the accumulator is float32, the error of float32 sums is added to float64 sums.
    """
    columns = k.swapaxes(-1, -2)
    if subject.accumulate is FP64:
        return np.asarray(q.astype(np.float64) @ columns.astype(np.float64))
    if subject.accumulate is not FP32 or q.dtype == np.float32:
        kind = subject.accumulate.carrier if subject.accumulate is FP32 else np.float64
        out = np.empty((*q.shape[:-1], k.shape[-2]), kind)
        kernel.accumulate(q, np.ascontiguousarray(columns), subject, out)
        return out
    single, other = q.astype(np.float32), columns.astype(np.float32)
    exact = single.astype(np.float64) @ other.astype(np.float64)
    return np.asarray(single @ other - exact + q @ columns)


def _grouped_by_stages(variants: Sequence[Resolved], stages: Sequence[str]) -> list[list[Resolved]]:
    groups: dict[Any, list[Resolved]] = {}
    for variant in variants:
        key = tuple(getattr(variant, stage) for stage in stages)
        groups.setdefault(key, []).append(variant)
    return list(groups.values())
