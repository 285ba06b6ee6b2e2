"""The kernel: rotate, form scores, subtract the exact ones, gather statistics.

All measurements use it: full tiles, sampled pairs, two rotations against each other (`measure`), rows of
attention (`attention_pass`), variants of a recipe, scores by distance.

Letters: s positions, d head_dim, r and c rows and columns of a tile, n pairs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_in_place, round_to
from ropeaudit.engine.plan import CellStatistics
from ropeaudit.engine.statistics import Block, Moments, Statistics, Values
from ropeaudit.inputs import masks
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor, Precision
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject

Side = Literal["q", "k"]
ExactScores: TypeAlias = tuple[Values, Values | None]  # exact scores: high + low


class Workspace:
    """Arrays of a block's size, which each thread reuses."""

    def __init__(self) -> None:
        self.local = threading.local()

    def array(self, number: int, fmt: Format, shape: tuple[int, ...]) -> Values:
        """Return array `number` of this thread, with its old content."""
        name, size = f"{fmt.name}_{number}", math.prod(shape)
        flat: Values | None = getattr(self.local, name, None)
        if flat is None or flat.size < size:
            flat = np.empty(size, fmt.carrier)
            setattr(self.local, name, flat)
        return flat[:size].reshape(shape)


def rotate(
    subject: Subject,
    side: Side,
    x: FloatArray,
    table: Any,
    head: int | None = None,
) -> FloatArray:
    """Return q or k of a head, rounded to the subject's input format already, as the subject rotates it.

    Shapes: (s, d) -> (s, d).
    """
    of_head: Callable[..., FloatArray] | None = getattr(subject, "rotate_head", None)
    return of_head(x, table, side == "k", head) if of_head else subject.rotate(x, table)


def rotate_exactly(
    x: FloatArray,
    table: Any,
    setting: RopeSetting,
    precision: Precision,
    scale: float = 1.0,
) -> Factor:
    """Return q or k, rounded to an input format already, rotated exactly.

    Shapes: (s, d) -> Factor of (s, d).
    """
    with np.errstate(invalid="ignore", over="ignore"):  # inputs may have overflowed in their format
        return exact_scores.rotated(x.astype(np.float64, copy=False), table, setting, precision, scale)


def exact_factors(
    sides: tuple[FloatArray, FloatArray],
    fmt: Format,
    tables: tuple[Any, Any],
    setting: RopeSetting,
    precision: Precision,
    scale: float | None = None,
) -> tuple[Factor, Factor]:
    """Round q and k to `fmt` and rotate them exactly; q is multiplied by `scale`, by default the setting's.

    Shapes: two of (s, d) -> two Factors of (s, d).
    """
    q, k = (round_to(x, fmt) for x in sides)
    left = rotate_exactly(q, tables[0], setting, precision, setting.scale if scale is None else scale)
    return left, rotate_exactly(k, tables[1], setting, precision)


def minus_exact(
    formed: Values,
    exact: ExactScores,
    hidden: Any = None,
    out: Values | None = None,
) -> Values:
    """Return scores minus the exact ones, 0 if hidden; `out` may be `formed`."""
    high, low = exact
    difference: Values = np.subtract(formed, high, out=out)
    if low is not None:
        np.subtract(difference, low, out=difference)
    masks.hide(difference, hidden)
    return difference


def gather_exact(
    statistics: Statistics,
    exact: ExactScores,
    block: Block,
    out: Values | None = None,
) -> None:
    """Add the exact scores of a block to statistics; overwrites them if they are one array."""
    joined = exact_scores.joined(*exact, out)
    masks.hide(joined, block.hidden)
    statistics.add(joined, block)


def gather_reference(
    exact: ExactScores,
    error: float,
    block: Block,
    results: Sequence[CellStatistics],
    out: Values | None = None,
) -> None:
    """Add a block's exact scores to results. error: their certificate. See `gather_exact`."""
    gathered = Statistics(Moments.SQUARES, weighted=block.weights is not None)
    gather_exact(gathered, exact, block, out)
    for result in results:
        result.reference.merge(gathered)
        result.error = float(np.maximum(result.error, error))  # nan stays nan


def measure(
    subject: Subject,
    operands: Iterable[tuple[FloatArray, FloatArray] | None],
    scale: float,
    exact: ExactScores,
    block: Block,
    results: Sequence[CellStatistics],
    workspace: Workspace,
) -> None:
    """Form a subject's scores of a block at every offset, the first one 0; gather drift and change from it.

    operands: rotated q and k at each offset, None where all scores are known to be nan; of a tile (r, d) and
    (d, c), of pairs (n, d) twice. results: of each offset.
    """
    paired = block.weights is not None
    fmt = FP64 if paired else tile_format(subject)
    base, formed, spare = (workspace.array(number, fmt, block.shape) for number in range(3))
    wide, scratch = formed, spare
    if fmt is not FP64:
        wide, scratch = (workspace.array(number, FP64, block.shape) for number in range(2))
    for number, (factors, result) in enumerate(zip(operands, results, strict=True)):
        out = formed if number else base
        if factors is None:
            result.drift.add_nonfinite(block.visible)
            result.self_drift.add_nonfinite(block.visible)
            out.fill(math.nan)
            continue
        if paired:
            form_pairs(*factors, subject, scale, out)
        else:
            accumulate(*factors, subject, out)
            store(out, subject, scale, spare)
        if number:
            own = np.subtract(formed, base, out=spare)
            masks.hide(own, block.hidden)
            result.self_drift.add(own, block, scratch)
        result.drift.add(minus_exact(out, exact, block.hidden, wide), block, scratch)
        if number == 0:
            own_drift = result.self_drift  # of each score to itself: 0, or nan where it is not finite
            own_drift.count, own_drift.nonfinite = result.drift.count, result.drift.nonfinite


_SQUARE = 64  # pairs whose scores are the diagonal of one product


def operand(rotated: FloatArray, subject: Subject) -> FloatArray:
    """Return rotated q or k in the dtype in which its products are accumulated."""
    return rotated.astype(np.float64, copy=False) if subject.accumulate is FP64 else rotated


def tile_format(subject: Subject) -> Format:
    """Return the format of a tile: float32 where float32 BLAS forms it."""
    single = subject.accumulate is FP32 and subject.score.carrier == np.float32
    return FP32 if single else FP64


def formed(q: FloatArray, k: FloatArray, subject: Subject, scale: float) -> Values:
    """Return a tile's float64 scores. Shapes: q (r, d), k (d, c) -> (r, c)."""
    out = np.empty((q.shape[0], k.shape[1]), tile_format(subject).carrier)
    accumulate(q, k, subject, out)
    store(out, subject, scale)
    return out.astype(np.float64, copy=False)


def form_pairs(
    q: FloatArray,
    k: FloatArray,
    subject: Subject,
    scale: float,
    out: Values,
) -> None:
    """Write the subject's scores of rows of q with the same rows of k into `out`, as `formed` does.

    float32 and float64 accumulate in products of a few rows, of which the diagonal counts; as their shape is
    another, a kernel may sum in another order than in a tile, with errors of the same size.
    Shapes: q, k (n, d) -> out (n,), in float64.
    """
    if native(q, subject):
        (count, d), padded = q.shape, -(-len(q) // _SQUARE) * _SQUARE
        left, right = np.zeros((2, padded, d), q.dtype)
        left[:count], right[:count] = q, k
        left, right = (x.reshape(-1, _SQUARE, d) for x in (left, right))
        squares = left @ np.ascontiguousarray(right.transpose(0, 2, 1))
        sums = np.array(np.diagonal(squares, axis1=1, axis2=2).reshape(-1)[:count])
    else:
        sums = _sequential(q[:, :, None], k[:, :, None], subject.accumulate)[:, 0]
    sums = np.ascontiguousarray(sums, tile_format(subject).carrier)
    store(sums, subject, scale)
    np.copyto(out, sums)


def accumulate(q: FloatArray, k: FloatArray, subject: Subject, out: Values) -> None:
    """Write unscaled q·k of a tile into `out`, which has `tile_format`.

    float32 and float64 accumulate in the order of BLAS; a narrower accumulator adds the d products
    one after the other, each sum rounded once: acc = round(acc + q_j * k_j).
    Shapes: q (..., r, d), k (..., d, c) -> out (..., r, c).
    """
    if not native(q, subject):
        out[...] = _sequential(q[..., None], k[..., None, :, :], subject.accumulate)
    elif q.dtype == out.dtype:
        np.matmul(q, k, out=out)
    else:
        out[...] = q @ k


def native(q: FloatArray, subject: Subject) -> bool:
    """Return whether the array's own arithmetic is that of the accumulator."""
    return subject.accumulate is FP64 or (subject.accumulate is FP32 and q.dtype == np.float32)


def store(out: Values, subject: Subject, scale: float, scratch: Values | None = None) -> None:
    """Scale sums and round them to the score's format, in place; `scratch` is an array like them.

    The scale multiplies in the accumulator's arithmetic: before the one store, or after a first
    store (`scale_after_store`) with a second one behind it.
    """
    if scale != 1.0:
        if subject.scale_after_store:
            _round(out, subject.score, scratch)
        if subject.accumulate is FP64:
            np.multiply(out, scale, out=out)
        else:  # a narrower accumulator hands its result to float32 arithmetic, as kernels do
            np.multiply(out, float(np.float32(scale)), out=out)
            _round(out, FP32, None)
    _round(out, subject.score, scratch)


def stored(sums: FloatArray, subject: Subject, scale: float) -> Values:
    """Return sums as `store` leaves them, in a new array, float32 where they are."""
    single = tile_format(subject) is FP32 and sums.dtype == np.float32
    out: Values = sums.astype(np.float32 if single else np.float64)
    store(out, subject, scale)
    return out


def _sequential(q: FloatArray, k: FloatArray, fmt: Format) -> Values:
    """Sum the products along the last axis but one, one by one.

    Shapes: (..., r, d, 1), (..., 1 or r, d, c) -> (..., r, c).
    """
    q, k = q.astype(np.float64, copy=False), k.astype(np.float64, copy=False)
    total = np.zeros((*q.shape[:-2], k.shape[-1]))
    for j in range(q.shape[-2]):
        product, error = dd.two_product(q[..., j, :], k[..., j, :])
        high, low = dd.two_sum(total, product)
        total = round_to(dd.to_odd((high, low + error)), fmt).astype(np.float64)
    return total


def _round(out: Values, fmt: Format, scratch: Values | None) -> None:
    if fmt.precision >= (FP32 if out.dtype == np.float32 else FP64).precision:
        return
    if fmt is FP32:
        out[...] = out.astype(np.float32, copy=False)  # one IEEE conversion
    else:
        round_in_place(out, fmt, scratch)
