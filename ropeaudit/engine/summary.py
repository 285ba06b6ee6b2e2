"""The few numbers of a block of values that statistics are made of, and NumPy's way to them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Wanted(NamedTuple):
    """What of a block of values is requested besides the sum of their squares.

    largest: the largest absolute value, and where it stands. means: the sums of the values and of their
    sizes. least: a largest value up to it is of no interest. weights: of sampled values. scratch: a float64
    array like the values, overwritten.
    """

    largest: bool
    means: bool
    least: float = 0.0
    weights: Any = None
    scratch: Any = None


class Summary(NamedTuple):
    """The numbers of a block of values; without the sums where they are meaningless.

    number: of the largest absolute value, row by row; -1 if it is of no interest. fourths: the squares of the
    weighted squares; of weighted values alone.
    """

    nonfinite: int = 0
    squares: float = 0.0
    fourths: float = 0.0
    largest: float = 0.0
    number: int = -1
    total: float = 0.0
    absolute: float = 0.0


def of_arrays(values: Array, wanted: Wanted) -> Summary:
    """Return the numbers of a block of values; where some are not finite, how many, and no sums."""
    _, means, least, weights, scratch = wanted
    sizes = np.abs(values, out=scratch) if means else None
    largest, number = 0.0, -1
    if wanted.largest:
        largest = float(sizes.max()) if sizes is not None else _largest_size(values)
        if not math.isfinite(largest):
            return Summary(nonfinite=_nonfinite(values))
        if largest > least:
            number = int((np.abs(values) if sizes is None else sizes).argmax())
    if values.dtype != np.float64:
        values = _copied(values, scratch)
    total, absolute, fourths = 0.0, 0.0, 0.0
    if weights is None:
        squares = _dot(values, values)
        if sizes is not None:
            total, absolute = _total(values), _total(sizes)
    else:
        each = (weights * values) * values
        squares, fourths = _total(each), _dot(each, each)
        if sizes is not None:
            total, absolute = _dot(weights, values), _dot(weights, sizes)
    unsure = not wanted.largest and not math.isfinite(squares)
    nonfinite = _nonfinite(values) if unsure else 0
    return Summary(nonfinite, squares, fourths, largest, number, total, absolute)


def _largest_size(x: Array) -> float:
    low, high = float(x.min()), float(x.max())
    return high if high >= -low else -low


def _nonfinite(x: Array) -> int:
    return x.size - int(np.isfinite(x).sum())


def _total(x: Array) -> float:
    rows = x @ np.ones(x.shape[1]) if x.ndim == 2 else x  # a product by rows is the fastest sum
    return float(rows.sum())


def _dot(a: Array, b: Array) -> float:
    return float(np.dot(a.reshape(-1), b.reshape(-1)))


def _copied(values: Array, scratch: Array | None) -> Array:
    if scratch is None:
        return values.astype(np.float64)
    np.copyto(scratch, values, casting="same_kind")
    return scratch
