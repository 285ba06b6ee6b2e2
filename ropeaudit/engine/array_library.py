"""What the kernel needs of an array library, and NumPy as one.

Arrays have one or two dimensions, are float32 or float64, and stay where they are: results go to `out` where
it is given. Only the numbers that statistics are made of leave the library (`Summary`): NumPy's at once,
those of a device together, when a strip is done (`settle`). `torch_library` is the other library.
Letters: r and c rows and columns, d head_dim, n pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.arithmetic.rounding import round_in_place, round_to
from ropeaudit.engine import summary
from ropeaudit.engine.summary import Summary, Wanted
from ropeaudit.runtime.threads import Map, mapping
from ropeaudit.subjects import Subject

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

    @property
    def name(self) -> str:
        """numpy or torch."""

    @property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of a tile; None for those that suit a core's cache."""

    @property
    def panel(self) -> int | None:
        """How many positions are rotated at once; None for those that suit a host's memory."""

    def running(self, threads: int) -> AbstractContextManager[Map]:
        """Return a context with a `map` that works on as many of the threads as are of use."""

    def taken(self, arrays: Any) -> Any:
        """Return NumPy arrays, or nested tuples of them, as arrays of the library; nothing is rounded."""

    def given_back(self, x: A) -> NumPyArray:
        """Return x as a new NumPy array."""

    def arange(self, start: int, stop: int) -> Any:
        """Return the integers from start to stop - 1."""

    def rotates(self, subject: Subject) -> bool:
        """Return whether a subject rotates arrays of the library; else it is given NumPy's."""

    def known_nan(self, rotated: A) -> bool:
        """Return whether every row is known to hold a nan. False says nothing."""

    def summarize(self, values: A, wanted: Wanted, then: Callable[[Summary], None]) -> None:
        """Give the numbers of a block to `then`: now or at the next `settle`, in the order of the calls."""

    def afterwards(self, then: Callable[[], None]) -> None:
        """Call `then` once the numbers that were requested before are there."""

    def settle(self) -> None:
        """Fetch the numbers that this thread's calls left on the device."""

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


class _NumPy:
    """Implement `ArrayLibrary` on NumPy arrays."""

    name, tile, panel = "numpy", None, None

    def running(self, threads: int) -> AbstractContextManager[Map]:
        return mapping(threads)

    def taken(self, arrays: Any) -> Any:
        return arrays

    def given_back(self, x: NumPyArray) -> NumPyArray:
        return np.array(x)

    def arange(self, start: int, stop: int) -> NumPyArray:
        return np.arange(start, stop)

    def rotates(self, subject: Subject) -> bool:
        return True

    def known_nan(self, rotated: NumPyArray) -> bool:
        return bool(np.isnan(rotated.min(axis=1)).all())

    def summarize(self, values: NumPyArray, wanted: Wanted, then: Callable[[Summary], None]) -> None:
        then(summary.of_arrays(values, wanted))

    def afterwards(self, then: Callable[[], None]) -> None:
        then()

    def settle(self) -> None:
        pass

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
            x[...] = x.astype(np.float32, copy=False)  # one IEEE conversion
        else:
            round_in_place(x, fmt, scratch)

    def hide(self, x: NumPyArray, hidden: NumPyArray | None, value: float = 0.0) -> None:
        if hidden is not None:
            np.copyto(x, value, where=hidden)


NUMPY = _NumPy()
