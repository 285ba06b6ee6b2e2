"""What the kernel needs of an array library, and NumPy as one.

Arrays have one or two dimensions, are float32 or float64, and stay where they are: results go to `out` where
it is given. Only the numbers that statistics are made of leave the library.
Letters: r and c rows and columns, d head_dim, n pairs.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.arithmetic.rounding import round_in_place, round_to

NumPyArray: TypeAlias = NDArray[Any]

_SQUARE = 64  # rows that pairs are multiplied in


class AnyArray(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""

    @property
    def T(self) -> Any:
        """The transposed array, a view."""

    def __getitem__(self, index: Any, /) -> Any:
        """A view of some of the elements."""

    def diagonal(self) -> Any:
        """A view of the diagonal of a square."""


A = TypeVar("A", bound=AnyArray)


class ArrayLibrary(Protocol[A]):
    """Operations on arrays of one library, on one device."""

    def empty(self, shape: tuple[int, ...], fmt: Format) -> A:
        """Return an array, not initialized, that carries float32 or float64."""

    def precision(self, x: A) -> int:
        """Return the significant bits of an array's dtype."""

    def converted(self, x: A, fmt: Format) -> A:
        """Return x in the dtype of float32 or float64; x itself where it has it."""

    def contiguous(self, x: A) -> A:
        """Return x with its rows behind each other in memory."""

    def copy(self, x: A, out: A) -> A:
        """Write x into `out`, in the dtype of `out`."""

    def fill(self, x: A, value: float) -> None:
        """Set every element to `value`."""

    def add(self, a: A, b: A, out: A | None = None) -> A:
        """Return a + b."""

    def subtract(self, a: A, b: A, out: A | None = None) -> A:
        """Return a - b."""

    def multiply(self, a: A, b: A | float, out: A | None = None) -> A:
        """Return a * b, elementwise."""

    def matmul(self, a: A, b: A, out: A) -> A:
        """Return the product of two matrices; where `out` has another dtype, converted to it."""

    def row_products(self, a: A, b: A) -> A:
        """Return the products of rows of a with the same rows of b. Shapes: (n, d) twice -> (n,)."""

    def add_product(self, total: A | float, a: A, b: A, fmt: Format) -> A:
        """Return total + a * b of float64 arrays, rounded once to `fmt`, in float64."""

    def round(self, x: A, fmt: Format, scratch: A | None = None) -> None:
        """Round x to `fmt` where it lies; `scratch`, an array like it, is overwritten."""

    def hide(self, x: A, hidden: A | None, value: float = 0.0) -> None:
        """Set to `value`, where it lies, what the mask hides."""

    def absolute(self, x: A, out: A | None = None) -> A:
        """Return |x|."""

    def largest(self, x: A) -> float:
        """Return the largest element; nan where one is nan."""

    def largest_size(self, x: A) -> float:
        """Return the largest absolute value; nan where one is nan."""

    def argmax(self, x: A) -> int:
        """Return the number of the largest element, row by row."""

    def finite(self, x: A) -> int:
        """Count the finite elements."""

    def total(self, x: A) -> float:
        """Return the sum of all elements."""

    def dot(self, a: A, b: A) -> float:
        """Return the sum of all products of elements."""


class _NumPy:
    """Implement `ArrayLibrary` on NumPy arrays."""

    def empty(self, shape: tuple[int, ...], fmt: Format) -> NumPyArray:
        return np.empty(shape, fmt.carrier)

    def precision(self, x: NumPyArray) -> int:
        return 24 if x.dtype == np.float32 else 53

    def converted(self, x: NumPyArray, fmt: Format) -> NumPyArray:
        return x.astype(fmt.carrier, copy=False)

    def contiguous(self, x: NumPyArray) -> NumPyArray:
        return np.ascontiguousarray(x)

    def copy(self, x: NumPyArray, out: NumPyArray) -> NumPyArray:
        np.copyto(out, x, casting="same_kind")
        return out

    def fill(self, x: NumPyArray, value: float) -> None:
        x.fill(value)

    def add(self, a: NumPyArray, b: NumPyArray, out: NumPyArray | None = None) -> NumPyArray:
        return np.asarray(np.add(a, b, out=out))

    def subtract(self, a: NumPyArray, b: NumPyArray, out: NumPyArray | None = None) -> NumPyArray:
        return np.asarray(np.subtract(a, b, out=out))

    def multiply(self, a: NumPyArray, b: NumPyArray | float, out: NumPyArray | None = None) -> NumPyArray:
        return np.asarray(np.multiply(a, b, out=out))

    def matmul(self, a: NumPyArray, b: NumPyArray, out: NumPyArray) -> NumPyArray:
        if a.dtype == out.dtype:
            return np.asarray(np.matmul(a, b, out=out))
        out[...] = a @ b
        return out

    def row_products(self, a: NumPyArray, b: NumPyArray) -> NumPyArray:
        # the diagonals of BLAS products of `_SQUARE` rows
        (count, d), padded = a.shape, -(-len(a) // _SQUARE) * _SQUARE
        left, right = np.zeros((2, padded, d), a.dtype)
        left[:count], right[:count] = a, b
        left, right = (x.reshape(-1, _SQUARE, d) for x in (left, right))
        squares = left @ np.ascontiguousarray(right.transpose(0, 2, 1))
        return np.array(np.diagonal(squares, axis1=1, axis2=2).reshape(-1)[:count])

    def add_product(self, total: NumPyArray | float, a: NumPyArray, b: NumPyArray, fmt: Format) -> NumPyArray:
        product, error = dd.two_product(a, b)
        high, low = dd.two_sum(total, product)
        return round_to(dd.to_odd((high, low + error)), fmt).astype(np.float64)

    def round(self, x: NumPyArray, fmt: Format, scratch: NumPyArray | None = None) -> None:
        if fmt is FP32:
            x[...] = round_to(x, fmt)
        else:
            round_in_place(x, fmt, scratch)

    def hide(self, x: NumPyArray, hidden: NumPyArray | None, value: float = 0.0) -> None:
        if hidden is not None:
            np.copyto(x, value, where=hidden)

    def absolute(self, x: NumPyArray, out: NumPyArray | None = None) -> NumPyArray:
        return np.asarray(np.abs(x, out=out))

    def largest(self, x: NumPyArray) -> float:
        return float(x.max())

    def largest_size(self, x: NumPyArray) -> float:
        low, high = float(x.min()), float(x.max())
        return high if high >= -low else -low

    def argmax(self, x: NumPyArray) -> int:
        return int(x.argmax())

    def finite(self, x: NumPyArray) -> int:
        return int(np.isfinite(x).sum())

    def total(self, x: NumPyArray) -> float:
        rows = x @ np.ones(x.shape[1]) if x.ndim == 2 else x  # a product by rows is the fastest sum
        return float(rows.sum())

    def dot(self, a: NumPyArray, b: NumPyArray) -> float:
        return float(np.dot(a.reshape(-1), b.reshape(-1)))


NUMPY = _NumPy()
