"""How a subject forms its scores from rotated q and k: accumulate, scale, store.

Letters: r and c rows and columns of a tile, d head_dim.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_in_place, round_to
from ropeaudit.subjects import FormsScores, Subject

_SQUARE = 64  # rows of q and k that pairs are multiplied in


def operand(rotated: FloatArray, subject: Subject) -> FloatArray:
    """Return rotated q or k in the dtype in which its products are accumulated."""
    return rotated.astype(np.float64, copy=False) if subject.accumulate is FP64 else rotated


def tile_dtype(subject: Subject) -> np.dtype[Any]:
    """The dtype in which a tile of scores is carried: float32 where float32 BLAS forms it."""
    single = subject.accumulate is FP32 and subject.score.carrier == np.float32
    return np.dtype(np.float32 if single else np.float64)


def form(
    q: FloatArray,
    k: FloatArray,
    subject: Subject,
    scale: float,
    out: FloatArray,
    scratch: FloatArray | None = None,
) -> None:
    """Write the subject's scores of a tile into `out`, which has `tile_dtype`; so has `scratch`.

    float32 and float64 accumulate in the order of BLAS; a narrower accumulator adds the d products
    one after the other, each sum rounded once: acc = round(acc + q_j * k_j).
    The scale multiplies in the accumulator's arithmetic: before the one store, or after a first
    store (`scale_after_store`) with a second one behind it.
    A subject that forms its scores itself (`FormsScores`) does so instead.
    Shapes: q (r, d), k (d, c) -> out (r, c).
    """
    own = getattr(subject, "form", None)  # isinstance of a protocol takes microseconds a tile
    if own is not None:
        own(q, k, scale, out)
        return
    summed(q, k, subject, out)
    stored(out, subject, scale, scratch)


def summed(q: FloatArray, k: FloatArray, subject: Subject, out: FloatArray) -> None:
    """Write q·k, before the scale, into `out`. Shapes: q (r, d), k (d, c) -> out (r, c)."""
    if not _native(q, subject):
        out[...] = _sequential(q[:, :, None], k[None, :, :], subject.accumulate)
    elif q.dtype == out.dtype:
        np.matmul(q, k, out=out)
    else:
        out[...] = q @ k


def form_pairs(q: FloatArray, k: FloatArray, subject: Subject, scale: float) -> FloatArray:
    """Return the subject's scores of rows of q with the same rows of k, as `form` does.

    float32 and float64 accumulate in BLAS products of `_SQUARE` rows, of which the diagonal counts; as their
    shape is another, a kernel may sum in another order than in a tile, with errors of the same size.
    Shapes: q, k (n, d) -> (n,), in float64.
    """
    if isinstance(subject, FormsScores):
        return _own_diagonal(q, k, subject, scale, tile_dtype(subject))
    if _native(q, subject):
        out = _diagonal(q, k).astype(tile_dtype(subject))
    else:
        out = _sequential(q[:, :, None], k[:, :, None], subject.accumulate)[:, 0]
        out = np.ascontiguousarray(out, dtype=tile_dtype(subject))
    stored(out, subject, scale)
    return np.asarray(out, dtype=np.float64)


def _diagonal(q: FloatArray, k: FloatArray) -> FloatArray:
    """Return the products of rows of q with the same rows of k. Shapes: (n, d), (n, d) -> (n,)."""
    (count, d), whole = q.shape, -(-len(q) // _SQUARE) * _SQUARE
    left, right = np.zeros((2, whole, d), q.dtype)
    left[:count], right[:count] = q, k
    left, right = (x.reshape(-1, _SQUARE, d) for x in (left, right))
    squares = left @ np.ascontiguousarray(right.transpose(0, 2, 1))
    return np.asarray(np.diagonal(squares, axis1=1, axis2=2).reshape(-1)[:count])


def _own_diagonal(
    q: FloatArray, k: FloatArray, subject: FormsScores, scale: float, dtype: np.dtype[Any]
) -> FloatArray:
    """Return the scores that a subject forms itself, in squares as `_diagonal` does. Shapes: -> (n,)."""
    out = np.empty(len(q))
    for start in range(0, len(q), _SQUARE):
        some = slice(start, start + _SQUARE)
        square = np.empty((len(q[some]), len(q[some])), dtype)
        subject.form(q[some], np.ascontiguousarray(k[some].T), scale, square)
        out[some] = square.diagonal()
    return out


def _native(q: FloatArray, subject: Subject) -> bool:
    """Whether the accumulator's arithmetic is that of the array."""
    return subject.accumulate is FP64 or (subject.accumulate is FP32 and q.dtype == np.float32)


def stored(out: FloatArray, subject: Subject, scale: float, scratch: FloatArray | None = None) -> None:
    """Scale sums and round them to the score's format, where they lie."""
    if scale != 1.0:
        if subject.scale_after_store:
            _store(out, subject.score, scratch)
        _multiply(out, scale, subject.accumulate)
    _store(out, subject.score, scratch)


def _sequential(q: FloatArray, k: FloatArray, fmt: Format) -> FloatArray:
    """Sum the products along the second axis one by one. Shapes: (r, d, 1), (1 or r, d, c) -> (r, c)."""
    total = np.zeros((q.shape[0], k.shape[2]))
    q, k = q.astype(np.float64), k.astype(np.float64)
    for j in range(q.shape[1]):
        product, error = dd.two_product(q[:, j], k[:, j])
        high, low = dd.two_sum(total, product)
        total = round_to(dd.to_odd((high, low + error)), fmt).astype(np.float64)
    return total


def _multiply(out: FloatArray, scale: float, fmt: Format) -> None:
    """out = out * scale, with a scale and a product in the accumulator's arithmetic.

    A narrower accumulator hands its result to float32 arithmetic, as kernels do.
    """
    if fmt is FP64:
        np.multiply(out, scale, out=out)
    elif out.dtype == np.float32:
        np.multiply(out, np.float32(scale), out=out)
    else:
        out[...] = round_to(out * float(np.float32(scale)), FP32)


def _store(out: FloatArray, fmt: Format, scratch: FloatArray | None) -> None:
    if fmt.precision >= np.finfo(out.dtype).nmant + 1:
        return
    if fmt is FP32:
        out[...] = out.astype(np.float32)
    else:
        round_in_place(out, fmt, scratch)
