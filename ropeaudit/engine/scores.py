"""How a subject forms its scores from rotated q and k: accumulate, scale, store.

Letters: r and c rows and columns of a tile, n pairs, d head_dim.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic import arrays
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.engine.array_library import NUMPY, A, ArrayLibrary
from ropeaudit.subjects import FormsScores, Subject

_SQUARE = 64  # pairs that a subject which forms its scores itself gets at once


def operand(rotated: FloatArray, subject: Subject) -> FloatArray:
    """Return rotated q or k in the dtype in which its products are accumulated."""
    if subject.accumulate is not FP64:
        return rotated
    wide: FloatArray = arrays.of(rotated).wide(rotated)
    return wide


def tile_format(subject: Subject) -> Format:
    """Return the format in which a tile of scores is carried: float32 where float32 BLAS forms it."""
    single = subject.accumulate is FP32 and subject.score.carrier == np.float32
    return FP32 if single else FP64


def formed(library: ArrayLibrary[A], q: A, k: A, subject: Subject, scale: float) -> A:
    """Return the subject's scores of a tile in float64. Shapes: q (r, d), k (d, c) -> (r, c)."""
    out = library.empty((q.shape[0], k.shape[1]), tile_format(subject))
    form(library, q, k, subject, scale, out)
    return library.converted(out, FP64)


def form(
    library: ArrayLibrary[A],
    q: A,
    k: A,
    subject: Subject,
    scale: float,
    out: A,
    scratch: A | None = None,
) -> None:
    """Write the subject's scores of a tile into `out`, which has `tile_format`; so has `scratch`.

    float32 and float64 accumulate in the order of BLAS; a narrower accumulator adds the d products
    one after the other, each sum rounded once: acc = round(acc + q_j * k_j).
    The scale multiplies in the accumulator's arithmetic: before the one store, or after a first
    store (`scale_after_store`) with a second one behind it.
    A subject that forms its scores itself (`FormsScores`) does so instead.
    Shapes: q (r, d), k (d, c) -> out (r, c); a subject that does not may have several of each before them.
    """
    own = getattr(subject, "form", None)  # isinstance of a protocol takes microseconds a tile
    if own is not None:
        own(q, k, scale, out)
        return
    accumulate(library, q, k, subject, out)
    store(library, out, subject, scale, scratch)


def form_pairs(library: ArrayLibrary[A], q: A, k: A, subject: Subject, scale: float, out: A) -> None:
    """Write the subject's scores of rows of q with the same rows of k into `out`, as `form` does.

    float32 and float64 accumulate in products of a few rows, of which the diagonal counts; as their shape is
    another, a kernel may sum in another order than in a tile, with errors of the same size.
    Shapes: q, k (n, d) -> out (n,), in float64.
    """
    if isinstance(subject, FormsScores):
        _own_diagonal(library, q, k, subject, scale, out)
        return
    if native(library, q, subject):
        sums = library.row_products(q, k)
    else:
        sums = _sequential(library, q[:, :, None], k[:, :, None], subject.accumulate)[:, 0]
    sums = library.contiguous(library.converted(sums, tile_format(subject)))
    store(library, sums, subject, scale)
    library.copy(sums, out)


def accumulate(library: ArrayLibrary[A], q: A, k: A, subject: Subject, out: A) -> None:
    """Write q·k, before the scale, into `out`. Shapes: q (..., r, d), k (..., d, c) -> out (..., r, c)."""
    if native(library, q, subject):
        library.matmul(q, k, out)
    else:
        library.copy(_sequential(library, q[..., None], k[..., None, :, :], subject.accumulate), out)


def _own_diagonal(library: ArrayLibrary[A], q: A, k: A, subject: Subject, scale: float, out: A) -> None:
    """Write the scores that a subject forms itself, in squares of which the diagonal counts. Shapes: (n,)."""
    for start in range(0, q.shape[0], _SQUARE):
        rows = slice(start, start + _SQUARE)
        left, right = q[rows], library.contiguous(k[rows].T)
        square = library.empty((left.shape[0], left.shape[0]), tile_format(subject))
        form(library, left, right, subject, scale, square)
        library.copy(square.diagonal(), out[rows])


def native(library: ArrayLibrary[A], q: A, subject: Subject) -> bool:
    """Whether the accumulator's arithmetic is that of the array."""
    single = subject.accumulate is FP32 and library.precision(q) == FP32.precision
    return single or subject.accumulate is FP64


def store(library: ArrayLibrary[A], out: A, subject: Subject, scale: float, scratch: A | None = None) -> None:
    """Scale sums and round them to the score's format, where they lie."""
    if scale != 1.0:
        if subject.scale_after_store:
            _round(library, out, subject.score, scratch)
        _multiply(library, out, scale, subject.accumulate)
    _round(library, out, subject.score, scratch)


def stored(sums: FloatArray, subject: Subject, scale: float) -> FloatArray:
    """Return sums of NumPy's as `store` leaves them, in a new array, float32 once they are."""
    single = tile_format(subject) is FP32
    if single and scale != 1.0 and not subject.scale_after_store:
        out: FloatArray = np.multiply(sums, np.float32(scale)).astype(np.float32, copy=False)
        _round(NUMPY, out, subject.score, None)
        return out
    out = sums.astype(np.float32 if single and sums.dtype == np.float32 else np.float64)
    store(NUMPY, out, subject, scale)
    return out


def _sequential(library: ArrayLibrary[A], q: A, k: A, fmt: Format) -> A:
    """Sum the products along the last axis but one, one by one.

    Shapes: (..., r, d, 1), (..., 1 or r, d, c) -> (..., r, c).
    """
    q, k = library.converted(q, FP64), library.converted(k, FP64)
    total = library.empty((*q.shape[:-2], k.shape[-1]), FP64)
    library.fill(total, 0.0)
    for j in range(q.shape[-2]):
        total = library.add_product(total, q[..., j, :], k[..., j, :], fmt)
    return total


def _multiply(library: ArrayLibrary[A], out: A, scale: float, fmt: Format) -> None:
    """out = out * scale, with a scale and a product in the accumulator's arithmetic.

    A narrower accumulator hands its result to float32 arithmetic, as kernels do.
    """
    if fmt is FP64:
        library.multiply(out, scale, out)
        return
    library.multiply(out, float(np.float32(scale)), out)
    _round(library, out, FP32, None)


def _round(library: ArrayLibrary[A], out: A, fmt: Format, scratch: A | None) -> None:
    if fmt.precision < library.precision(out):
        library.round(out, fmt, scratch)
