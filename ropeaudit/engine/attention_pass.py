"""Rows of attention of subjects and of the reference, a strip of queries at a time.

It is a separate pass, as a softmax needs all keys of a row at once. q and k are rotated once per cell, a few
heads at a time; a strip of rows is then compared against all keys that it sees. The reference of a strip is
computed once, for all subjects with the same q and k and for all offsets. In memory are rotated q and k, and
for each thread a few arrays of a strip. Strips do not depend on the number of threads, and are merged in
order.

Letters: h heads, g key-value heads, s positions, d head_dim, r and c rows and columns of a strip.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel, plan
from ropeaudit.engine.measure import Rotated, Rotation
from ropeaudit.engine.plan import CellIndex, Plan
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing
from ropeaudit.runtime.threads import Map, mapping

STRIP = 2**17  # scores of a strip, where that leaves FEW rows
LARGEST_STRIP = 2**21  # scores of a strip of FEW rows
FEW = 32  # rows
ARRAYS = 16  # of a strip, held at once by a thread

Heads: TypeAlias = Mapping[tuple[str, int], Rotated]  # q or k, and which head


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of the comparison of rows.

    anchor: the offset whose weights D compares with. behind: the distance of the token that a row should
    attend to. roundings: of each subject's softmax, None for float64.
    """

    anchor: int
    behind: int | None
    roundings: Sequence[Rounding | None]


def measure(cases: Plan[Inputs], options: RowOptions, threads: int) -> dict[CellIndex, Attention]:
    """Return the attention of every cell of the plan."""
    cells = cases.cells()
    results = {cell: Attention() for cell in cells}
    done = 0
    with mapping(threads) as mapped:
        for some in _chunks(cases, cells):
            offsets: list[list[int]] = [[] for _ in cases.subjects]
            for index, offset in some:  # before those of each subject the anchor
                offsets[index] = list(dict.fromkeys([options.anchor, *offsets[index], offset]))
            chunk = replace(cases, offsets=offsets, precision="double")
            for share, part in _strips(chunk, options, mapped):
                for cell in some:
                    results[cell].merge(part[cell])
                doing.step((done + share * len(some)) / len(cells))
            done += len(some)
    return results


def bytes_needed(setting: RopeSetting, seq_len: int, threads: int) -> int:
    """Estimate the memory of the pass: the cache, a panel and the strips."""
    strip = min(seq_len, rows_of_strip(seq_len)) * seq_len * 8
    smallest = 3 * _cell_bytes(setting, seq_len)  # the reference, the anchor and one more
    panel = 8 * plan.cell_bytes(setting, seq_len)
    return max(plan.CACHE_BYTES, smallest) + panel + threads * ARRAYS * strip


def rows_of_strip(seq_len: int) -> int:
    """Return how many rows are compared at once."""
    return max(1, STRIP // seq_len, min(FEW, LARGEST_STRIP // seq_len))


def _cell_bytes(setting: RopeSetting, seq_len: int) -> int:
    """Return the bytes of one cell: rotated q and k of a head, in float64."""
    return 2 * seq_len * setting.head_dim * 8


def _chunks(cases: Plan[Inputs], cells: Sequence[CellIndex]) -> Iterator[list[CellIndex]]:
    """Cut the cells into lists that fit the cache, one head at a time."""
    room = plan.CACHE_BYTES // _cell_bytes(cases.setting, cases.inputs.seq_len)
    chunk: list[CellIndex] = []
    for cell in cells:
        subjects = {index for index, _ in (*chunk, cell)}
        formats = {cases.subjects[index].input for index in subjects}
        if chunk and len(chunk) + 1 + len(subjects) + len(formats) > room:
            yield chunk
            chunk = []
        chunk.append(cell)
    yield chunk


def _strips(
    cases: Plan[Inputs], options: RowOptions, mapped: Map
) -> Iterator[tuple[float, dict[CellIndex, Attention]]]:
    """Yield the share done and the statistics of each strip of rows, in order."""
    size, heads, done = cases.inputs.seq_len, cases.inputs.heads, 0
    rows = [slice(i, min(i + rows_of_strip(size), size)) for i in range(0, size, rows_of_strip(size))]
    strips = [(some, masks.columns(cases.mask, some, size)) for some in rows]
    one = (len(cases.cells()) + len(cases.keys())) * _cell_bytes(cases.setting, size)
    step, rotation = max(1, plan.CACHE_BYTES // one), Rotation(cases, mapped)
    for start in range(0, heads, step):
        batch = range(start, min(start + step, heads))
        rotated = _rotate_heads(rotation, batch)
        jobs = [(head, *strip) for head in batch for strip in strips]
        strip_of = functools.partial(_strip, cases, options, rotated)
        for part in mapped(strip_of, *zip(*jobs, strict=True)):
            done += 1
            yield done / (heads * len(strips)), part


def _rotate_heads(rotation: Rotation, heads: range) -> Heads:
    """Rotate some heads of q, and the heads of k that they read, at all positions."""
    inputs, size = rotation.plan.inputs, rotation.plan.inputs.seq_len
    kv_heads = sorted({head // inputs.group for head in heads})
    jobs = [*(("q", head) for head in heads), *(("k", head) for head in kv_heads)]
    parts: list[list[Rotated]] = []
    for start in range(0, size, plan.PANEL):
        panel = slice(start, min(start + plan.PANEL, size))
        rotation.prepare(panel)
        parts.append(list(rotation.map(rotation.rotated, *zip(*jobs, strict=True), [panel] * len(jobs))))
    return {
        job: _join_panels(some, int(job[0] == "k"))
        for job, some in zip(jobs, zip(*parts, strict=True), strict=True)
    }


def _join_panels(parts: Sequence[Rotated], axis: int) -> Rotated:
    """Join the panels of a head. axis: of the positions."""
    if len(parts) == 1:
        return parts[0]
    subjects = {
        cell: np.concatenate([part.subjects[cell] for part in parts], axis) for cell in parts[0].subjects
    }
    factors = {key: [part.reference[key] for part in parts] for key in parts[0].reference}
    reference = {
        key: Factor(np.concatenate([one.whole for one in some]), None, None, max(one.norm for one in some))
        for key, some in factors.items()
    }
    return Rotated(subjects, reference)


def _strip(
    cases: Plan[Inputs],
    options: RowOptions,
    rotated: Heads,
    head: int,
    rows: slice,
    cols: slice,
) -> dict[CellIndex, Attention]:
    """Compare every cell with its reference over one strip of rows of a query head."""
    results: dict[CellIndex, Attention] = {}
    q, k = rotated["q", head], rotated["k", head // cases.inputs.group]
    hidden = masks.hidden(cases.mask, rows, cols)
    places = np.arange(rows.start, rows.stop)
    right = None if options.behind is None else places - options.behind - cols.start
    keys = np.arange(cols.start, cols.stop)
    everyone = (np.array(0), np.array(cases.inputs.seq_len))
    share = 1.0 / masks.counts(cases.mask, everyone, (keys, keys + 1))  # of a query of a key

    def formed(cell: CellIndex) -> Array:
        """Return the subject's float64 scores, hidden ones -inf. -> (r, c)."""
        sides = q.subjects[cell][rows], k.subjects[cell][:, cols]
        own = kernel.formed(*sides, cases.subjects[cell[0]], cases.setting.scale)
        return masks.hide(own, hidden, -np.inf)

    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for key, members in cases.keys().items():
            exactly = q.reference[key].rows(rows), k.reference[key].rows(cols)
            slack = 2 * exact_scores.certificate(*exactly)
            exact = masks.hide(exact_scores.product(*exactly)[0], hidden, -np.inf)
            reference = ReferenceRows(exact, slack, right)
            for index in members:
                rounding = options.roundings[index]
                base = formed((index, options.anchor))
                at_anchor, weights = reference.compare(base, rounding)
                results[index, options.anchor] = at_anchor
                for offset in cases.offsets[index][1:]:
                    own = formed((index, offset))
                    compared, weights_here = reference.compare(own, rounding)
                    results[index, offset] = compared
                    compared.d = float(np.abs(weights_here - weights).sum(axis=0) @ share)
                    if cols.start == 0:
                        seen = slice(None) if hidden is None else ~hidden[:, 0]
                        compared.d_logit = float(np.abs(own[seen, 0] - base[seen, 0]).sum() * share[0])
                    if at_anchor.nonfinite:
                        compared.d = compared.d_logit = np.nan
    return results


# beta(entropy), highest power first. Source: softmax is not enough, arXiv 2410.01104.
TEMPERATURE = (-0.037, 0.481, -2.3, 4.917, -1.791)


class Rounding(NamedTuple):
    """The formats of a softmax: of every step, and of stored weights."""

    computed: Format
    stored: Format


@np.errstate(all="ignore")
def softmax(scores: Array, rounding: Rounding | None = None) -> tuple[Array, Array]:
    """Return the weights of every row and their natural logarithms; -inf where a weight is 0.

    Without `rounding` in float64. Else the scores, score minus largest of the row, exp, sum and quotient are
    rounded once each to `computed`, and the weights to `stored`; the sum is formed in float64 first, for
    kernels accumulate wider than they store. Shapes: (r, c) -> two of (r, c).
    """
    if rounding is None:
        logs = scores - scores.max(axis=1, keepdims=True)
        weights = np.exp(logs)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        return weights, np.subtract(logs, np.log(total), out=logs)
    gone = np.isneginf(scores)

    def once(x: Array) -> Array:
        return round_to(x, rounding.computed).astype(np.float64)

    stored = once(np.where(gone, 0.0, scores))
    largest = np.where(gone, -np.inf, stored).max(axis=1, keepdims=True)
    powers = once(np.where(gone, 0.0, np.exp(once(np.where(gone, 0.0, stored - largest)))))
    total = once(powers.sum(axis=1, keepdims=True))
    weights = round_to(once(powers / total), rounding.stored).astype(np.float64)
    return weights, np.log(weights)


def entropies(weights: Array, logs: Array) -> Array:
    """Return -Σ p log(p) by row in nats, 0 log 0 = 0. Shapes: two (r, c) -> (r,)."""
    result: Array = -np.einsum("rc,rc->r", weights, np.maximum(logs, -1e300))  # 0 * -inf is nan
    return result


def beta(entropy: Array) -> Array:
    """Return the inverse temperature for rows of some entropy, nats; 1 up to 0.5 and from 5.95 on.

    Source: softmax is not enough, arXiv 2410.01104.
    """
    return np.where(entropy > 0.5, np.maximum(np.polyval(TEMPERATURE, entropy), 1.0), 1.0)


@np.errstate(all="ignore")
def adapted(scores: Array, weights: Array, rounding: Rounding | None = None) -> Array:
    """Return weights at each row's adaptive temperature. Shapes: all (r, c)."""
    sharper = beta(entropies(weights, np.log(weights + 1e-9)))
    return softmax(scores * sharper[:, None], rounding)[0]


@dataclass(slots=True)
class Attention:
    """Sums and maxima over rows and heads; `columns` turns them into those of a record.

    nonfinite: rows with a score or weight that is not finite. right_rows: rows with a right token.
    """

    rows: int = 0
    nonfinite: int = 0
    tv_max: float = 0.0
    tv: float = 0.0
    adaptive_tv: float = 0.0
    kl_max: float = 0.0
    flips: int = 0
    entropy_reference: float = 0.0
    entropy: float = 0.0
    weight_reference: float = 0.0
    weight: float = 0.0
    right: int = 0
    right_rows: int = 0
    d: float = 0.0
    d_logit: float = 0.0

    def merge(self, later: Attention) -> None:
        """Add the statistics of later rows."""
        for name in (field.name for field in fields(self)):
            mine, other = getattr(self, name), getattr(later, name)
            setattr(self, name, max(mine, other) if name.endswith("_max") else mine + other)

    def columns(self) -> dict[str, float | None]:
        """Return the attention columns of a record; all nan where a row is nonfinite."""
        rows = max(self.rows, 1)
        results = {
            "attention_tv_max": self.tv_max,
            "attention_tv_mean": self.tv / rows,
            "attention_kl_max": self.kl_max,
            "top1_flips": self.flips,
            "entropy_reference": self.entropy_reference / rows,
            "entropy": self.entropy / rows,
            "weight_reference": self.weight_reference / rows,
            "weight": self.weight / rows,
            "right_token": self.right / self.right_rows if self.right_rows else None,
            "attention_adaptive_tv_mean": self.adaptive_tv / rows,
            "attention_d": self.d,
            "attention_d_logit": self.d_logit,
        }
        return dict.fromkeys(results, math.nan) if self.nonfinite else results


class ReferenceRows:
    """The exact scores of some rows, their weights, and values derived from them.

    slack: scores nearer than that to the largest of a row tie with it.
    right: the column that each row should attend to, -1 for none; None if no row has one.
    """

    @np.errstate(all="ignore")
    def __init__(
        self,
        scores: Array,
        slack: float = 0.0,
        right: NDArray[np.int64] | None = None,
    ) -> None:
        self.scores, self.right = scores, right
        self.weights, self.logs = softmax(scores)
        self.adapted = adapted(scores, self.weights)
        self.first = scores >= scores.max(axis=1, keepdims=True) - slack
        self.gone = np.isneginf(scores).sum(axis=1)
        self.entropy = float(entropies(self.weights, self.logs).sum())
        self.weight = float(self.weights.max(axis=1).sum())

    @np.errstate(all="ignore")
    def compare(self, scores: Array, rounding: Rounding | None = None) -> tuple[Attention, Array]:
        """Compare scores with the exact ones; return statistics and weights."""
        result = Attention(rows=len(scores), entropy_reference=self.entropy, weight_reference=self.weight)
        weights, logs = softmax(scores, rounding)
        fine = np.isfinite(self.weights.sum(axis=1) + weights.sum(axis=1))
        fine &= np.isneginf(scores).sum(axis=1) == self.gone
        result.nonfinite = int(fine.size - fine.sum())
        if result.nonfinite:
            return result, weights
        distances = _total_variation(weights, self.weights)
        result.tv_max, result.tv = float(distances.max()), float(distances.sum())
        result.adaptive_tv = float(_total_variation(adapted(scores, weights, rounding), self.adapted).sum())
        result.kl_max = float(divergences(self.weights, self.logs, weights, logs).max())
        largest = weights.max(axis=1)
        result.flips = int((np.where(self.first, weights, -1.0).max(axis=1) < largest).sum())
        result.entropy, result.weight = float(entropies(weights, logs).sum()), float(largest.sum())
        if self.right is not None:
            rows = np.flatnonzero(self.right >= 0)
            own = weights[rows, self.right[rows]]
            alone = (weights[rows] >= own[:, None]).sum(axis=1) == 1  # no other weight is as large
            result.right, result.right_rows = int(alone.sum()), int(rows.size)
        return result, weights


@np.errstate(all="ignore")
def divergences(exact: Array, exact_logs: Array, weights: Array, logs: Array) -> Array:
    """Return Σ p* log(p*/p) + Σ p - Σ p* of every row, without cancellation where p is near p*.

    That is KL(p*||p) where both add up to 1. Rounded weights do not: then it is the generalised divergence,
    which is 0 for p = p* alone, while Σ p* log(p*/p) may be below 0. inf where a weight vanished that is not
    0. Shapes: all (r, c) -> (r,). Units: nats.
    """
    ratio = logs - exact_logs
    np.copyto(ratio, 0.0, where=exact + weights == 0)
    terms = np.expm1(ratio)
    terms -= ratio
    terms *= exact
    far = np.abs(ratio) > 0.5
    if far.any():
        np.copyto(terms, weights - exact - exact * ratio, where=far)
    result: Array = np.maximum(terms.sum(axis=1), 0.0)
    return result


def _total_variation(weights: Array, others: Array) -> Array:
    """Return the total variation Σ|p - p'|/2 of every row. Shapes: two of (r, c) -> (r,)."""
    difference = weights - others
    result: Array = np.abs(difference, out=difference).sum(axis=1) / 2
    return result
