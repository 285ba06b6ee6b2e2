"""Arrays as raw bytes: little-endian, row by row, nothing else; bfloat16 and float8 as their bit patterns."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import UsageError

# formats that programs store in files; float32 holds what is computed in tf32
_STORED: dict[str, Any] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def stored(dtype: Format) -> np.dtype[Any]:
    """Return the dtype in which a file holds numbers of a format. Raises: UsageError for tf32."""
    if dtype.name not in _STORED:
        raise UsageError(f"no file holds {dtype.name}; give one of {', '.join(_STORED)}")
    kind: np.dtype[Any] = np.dtype(_STORED[dtype.name])
    return kind


def array(x: FloatArray, dtype: Format) -> NDArray[Any]:
    """Return numbers that a format holds exactly in the dtype of files."""
    return np.ascontiguousarray(x).astype(stored(dtype))


def to_bytes(x: NDArray[Any]) -> bytes:
    """Return the bytes of an array, little-endian."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("<") if x.dtype.kind in "iuf" else None).tobytes()


def numbers(content: bytes, dtype: Format, shape: tuple[int, ...]) -> FloatArray:
    """Return what bytes hold, in the carrier of the format. Raises: ValueError where the size is another."""
    kind = stored(dtype)
    if len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(content)} bytes for the shape {shape}")
    return carried(np.frombuffer(content, kind).reshape(shape), dtype)


def carried(x: NDArray[Any], dtype: Format) -> FloatArray:
    """Return an array of a file in the carrier of its format; nans that signal become quiet ones."""
    with np.errstate(invalid="ignore"):
        values: FloatArray = x.astype(dtype.carrier)
    values[np.isnan(values)] = np.nan
    return values
