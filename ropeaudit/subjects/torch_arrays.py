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


def spelled(fmt: Format) -> str:
    """Return a format's name as torch and ml_dtypes spell it."""
    return "float8_e4m3fn" if fmt.name == "float8_e4m3" else fmt.name


def dtype(fmt: Format) -> torch.dtype:
    """Return torch's dtype of a format. Raises: UsageError where it has none."""
    import torch

    if fmt.name not in DTYPES:
        raise UsageError(f"torch has no dtype {fmt.name}; give one of {', '.join(DTYPES)}")
    torch_dtype: torch.dtype = getattr(torch, spelled(fmt))
    return torch_dtype


def of_numpy(fmt: Format) -> Any:
    """Return a format's dtype in NumPy and jax; of ml_dtypes if NumPy has none."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, spelled(fmt), None) or fmt.name)


def to_numpy(x: torch.Tensor) -> FloatArray:
    """Return a tensor's values, unrounded, in float64 if it is that, else float32."""
    import torch

    for listener in listeners:
        listener(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with unseen():
        values: FloatArray = x.detach().to(wide).cpu().numpy()
    return values


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hide from dispatch modes what is done within, where anybody listens."""
    if not listeners:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
