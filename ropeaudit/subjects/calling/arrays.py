"""Arrays given to and taken from code under audit: torch tensors or NumPy arrays of a dtype, exactly."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.subjects import torch_arrays

Engine: TypeAlias = Literal["torch", "numpy"]


class WrongShape(ValueError):
    """What came back is no rotated array."""


def spelled(dtype: Format) -> str:
    """Return a format's name as torch and ml_dtypes spell it."""
    return "float8_e4m3fn" if dtype.name == "float8_e4m3" else dtype.name


def torch() -> Any:
    """Return the module, imported when it is first needed."""
    import torch as module

    return module


def built(x: FloatArray, dtype: Format, engine: Engine) -> Any:
    """Return a new array in a dtype; nothing is rounded."""
    if engine == "torch":
        return torch_arrays.to_torch(x, dtype).clone()
    import ml_dtypes

    kind = getattr(ml_dtypes, spelled(dtype), None)
    return x.astype(kind or np.dtype(dtype.name))


def values(results: Any) -> tuple[FloatArray, str]:
    """Return the numbers of a tensor or an array, as a copy, and the name of its dtype."""
    if isinstance(results, np.ndarray):
        if results.dtype.kind not in "fV" or results.dtype == object:
            raise WrongShape(f"returns an array of {results.dtype}")
        wide = np.float64 if results.dtype == np.float64 else np.float32
        return np.array(results, dtype=wide), str(results.dtype)
    if not isinstance(results, torch().Tensor):
        raise WrongShape(f"returns {type(results).__name__} instead of an array")
    if not results.is_floating_point():
        raise WrongShape(f"returns a tensor of {str(results.dtype).removeprefix('torch.')}")
    return torch_arrays.to_numpy(results).copy(), str(results.dtype).removeprefix("torch.")


def parts(results: Any, both: bool) -> tuple[Any, Any]:
    """Return the rotated vector, and the rotated keys where both were given."""
    if not isinstance(results, (tuple, list)):
        return results, None
    if both and len(results) >= 2:
        return results[0], results[1]
    if len(results) == 1:
        return results[0], None
    raise WrongShape(f"returns {len(results)} things for one array")


def quietly(function: Any, plain: list[Any], named: dict[str, Any]) -> Any:
    """Call without gradients; overflows and nans are findings, and no warnings."""
    with np.errstate(all="ignore"):
        if any(type(value).__module__.startswith("torch") for value in (*plain, *named.values())):
            with torch().no_grad():
                return function(*plain, **named)
        return function(*plain, **named)
