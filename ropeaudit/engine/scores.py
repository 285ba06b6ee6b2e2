"""How a subject forms its scores from rotated q and k: accumulate, scale, store.

Letters: r and c rows and columns of a tile, n pairs, d head_dim.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_in_place, round_to
from ropeaudit.engine.statistics import Values
from ropeaudit.subjects import Subject

_SQUARE = 64  # pairs whose scores are the diagonal of one product


def operand(rotated: FloatArray, subject: Subject) -> FloatArray:
    """Return rotated q or k in the dtype in which its products are accumulated."""
    return rotated.astype(np.float64, copy=False) if subject.accumulate is FP64 else rotated


def tile_format(subject: Subject) -> Format:
    """Return the format in which a tile of scores is carried: float32 where float32 BLAS forms it."""
    single = subject.accumulate is FP32 and subject.score.carrier == np.float32
    return FP32 if single else FP64


def formed(q: FloatArray, k: FloatArray, subject: Subject, scale: float) -> Values:
    """Return the subject's scores of a tile in float64. Shapes: q (r, d), k (d, c) -> (r, c)."""
    out = np.empty((q.shape[0], k.shape[1]), tile_format(subject).carrier)
    form(q, k, subject, scale, out)
    return out.astype(np.float64, copy=False)


def form(
    q: FloatArray,
    k: FloatArray,
    subject: Subject,
    scale: float,
    out: Values,
    scratch: Values | None = None,
) -> None:
    """Write the subject's scores of a tile into `out`, which has `tile_format`; so has `scratch`.

    float32 and float64 accumulate in the order of BLAS; a narrower accumulator adds the d products
    one after the other, each sum rounded once: acc = round(acc + q_j * k_j).
    The scale multiplies in the accumulator's arithmetic: before the one store, or after a first
    store (`scale_after_store`) with a second one behind it.
    Shapes: q (..., r, d), k (..., d, c) -> out (..., r, c).
    """
    accumulate(q, k, subject, out)
    store(out, subject, scale, scratch)


def form_pairs(q: FloatArray, k: FloatArray, subject: Subject, scale: float, out: Values) -> None:
    """Write the subject's scores of rows of q with the same rows of k into `out`, as `form` does.

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
    """Write q·k, before the scale, into `out`. Shapes: q (..., r, d), k (..., d, c) -> out (..., r, c)."""
    if not native(q, subject):
        out[...] = _sequential(q[..., None], k[..., None, :, :], subject.accumulate)
    elif q.dtype == out.dtype:
        np.matmul(q, k, out=out)
    else:
        out[...] = q @ k


def native(q: FloatArray, subject: Subject) -> bool:
    """Whether the accumulator's arithmetic is that of the array."""
    return subject.accumulate is FP64 or (subject.accumulate is FP32 and q.dtype == np.float32)


def store(out: Values, subject: Subject, scale: float, scratch: Values | None = None) -> None:
    """Scale sums and round them to the score's format, where they lie."""
    if scale != 1.0:
        if subject.scale_after_store:
            _round(out, subject.score, scratch)
        _multiply(out, scale, subject.accumulate)
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


def _multiply(out: Values, scale: float, fmt: Format) -> None:
    """out = out * scale, with a scale and a product in the accumulator's arithmetic.

    A narrower accumulator hands its result to float32 arithmetic, as kernels do.
    """
    if fmt is FP64:
        np.multiply(out, scale, out=out)
        return
    np.multiply(out, float(np.float32(scale)), out=out)
    _round(out, FP32, None)


def _round(out: Values, fmt: Format, scratch: Values | None) -> None:
    if fmt.precision >= (FP32 if out.dtype == np.float32 else FP64).precision:
        return
    if fmt is FP32:
        out[...] = out.astype(np.float32, copy=False)  # one IEEE conversion
    else:
        round_in_place(out, fmt, scratch)
