"""Exact conversion between NumPy arrays and torch tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import UsageError

if TYPE_CHECKING:
    import torch

# called with tensors that are read out, to hide that from dispatch modes
listeners: list[Callable[[torch.Tensor], None]] = []
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")


def torch_name(fmt: Format) -> str:
    """Return a format's name as torch and ml_dtypes spell it."""
    return "float8_e4m3fn" if fmt.name == "float8_e4m3" else fmt.name


def dtype(fmt: Format) -> torch.dtype:
    """Return torch's dtype of a format. Raises: UsageError where it has none."""
    import torch

    if fmt.name not in DTYPES:
        raise UsageError(f"torch has no dtype {fmt.name}; give one of {', '.join(DTYPES)}")
    torch_dtype: torch.dtype = getattr(torch, torch_name(fmt))
    return torch_dtype


def numpy_dtype(fmt: Format) -> Any:
    """Return a format's dtype in NumPy and jax; of ml_dtypes if NumPy has none."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, torch_name(fmt), None) or fmt.name)


def to_numpy(x: torch.Tensor) -> FloatArray:
    """Return a tensor's values unrounded: float64 of a float64 tensor, else float32."""
    import torch

    for listener in listeners:
        listener(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with hidden_from_modes():
        values: FloatArray = x.detach().to(wide).cpu().numpy()
    return values


@contextlib.contextmanager
def hidden_from_modes() -> Iterator[None]:
    """Hide the block from dispatch modes, where a listener is set."""
    if not listeners:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
