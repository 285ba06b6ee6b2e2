"""What rounding and rotating need of an array library beside operators: NumPy's part, and whose an array is.

Code that computes with `+ - *` and these few operations runs on NumPy arrays and on torch tensors alike; an
array stays on the device where it lies. torch is not imported unless somebody else has.
Letters: s positions, d head_dim.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Operations(Protocol):
    """Operations on arrays of one library, float32 or float64."""

    def wide(self, x: Any) -> Any:
        """Return x in float64; x itself where it is."""

    def single(self, x: Any) -> bool:
        """Return whether x is float32."""

    def copied(self, x: Any) -> Any:
        """Return a copy of x, its rows behind each other."""

    def stacked(self, *parts: Any) -> Any:
        """Return a new array of arrays of one shape."""

    def unset(self, x: Any, wide: bool) -> Any:
        """Return an array of x's shape, not initialized, float64 if `wide`, else float32."""

    def at_once(self, x: Any, rows: int) -> int:
        """Return how many rows of x are worked on at once, where `rows` of them fit a core's cache."""

    def leading(self, x: Any, bits: int) -> Any:
        """Return the multiple of 2^-bits times the row's largest power of two that is nearest to each x."""

    def norm(self, x: Any) -> float:
        """Return the largest 2-norm of a row. Shapes: (s, d)."""

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of two matrices."""


class _NumPy:
    """Implement `Operations` on NumPy arrays."""

    def wide(self, x: Any) -> Any:
        return x.astype(np.float64, copy=False)

    def single(self, x: Any) -> bool:
        return bool(x.dtype == np.float32)

    def copied(self, x: Any) -> Any:
        return np.array(x)

    def stacked(self, *parts: Any) -> Any:
        return np.array(parts)

    def unset(self, x: Any, wide: bool) -> Any:
        return np.empty(x.shape, np.float64 if wide else np.float32)

    def at_once(self, x: Any, rows: int) -> int:
        return rows

    def leading(self, x: Any, bits: int) -> Any:
        _, exponent = np.frexp(np.max(np.abs(x), axis=1, keepdims=True, initial=0.0))
        sigma = np.ldexp(1.5, exponent + 52 - bits)
        return (x + sigma) - sigma

    def norm(self, x: Any) -> float:
        return float(np.sqrt(np.max(np.einsum("sd,sd->s", x, x), initial=0.0)))

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        return np.matmul(a, b, out=out)


_NUMPY = _NumPy()


def is_tensor(x: Any) -> bool:
    """Return whether x is a tensor of torch's."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "Tensor") and isinstance(x, torch.Tensor)  # else another module has its name


def of(x: Any) -> Operations:
    """Return the operations of the library that x is an array of."""
    if isinstance(x, np.ndarray) or not is_tensor(x):
        return _NUMPY
    from ropeaudit.arithmetic.tensors import OPERATIONS  # in-function: it imports torch

    return OPERATIONS


def bits_differ(y: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where two arrays of NumPy hold other bits; every nan is like every other nan. Shapes: alike."""
    alike = ((y == other) & (np.signbit(y) == np.signbit(other))) | (np.isnan(y) & np.isnan(other))
    differ: NDArray[np.bool_] = ~alike
    return differ
