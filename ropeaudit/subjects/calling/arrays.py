"""Arrays given to and taken from code under audit: torch tensors or NumPy arrays of a dtype, exactly."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.devices import CPU, Device

Engine: TypeAlias = Literal["torch", "numpy", "jax"]
Strides: TypeAlias = Literal["contiguous", "transposed", "sliced", "expanded"]


_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_COMPILATIONS = 2**16  # of one function: as many as there are shapes


class WrongShape(ValueError):
    """What came back is no rotated array."""


class TwoTables(WrongShape):
    """Two things came back for one array, as cos and sin do."""


def torch() -> Any:
    """Return the module, imported when it is first needed."""
    import torch as module

    return module


def new_array(x: FloatArray, dtype: Format, engine: Engine, device: Device = CPU) -> Any:
    """Return a new array in a dtype, a tensor on the device, for jax one of NumPy; nothing is rounded."""
    if engine == "torch":
        with torch_arrays.unseen():
            return device.put(torch_arrays.to_torch(x, dtype).clone())
    import ml_dtypes

    kind = getattr(ml_dtypes, torch_arrays.spelled(dtype), None)
    return x.astype(kind or np.dtype(dtype.name))


def tensor(x: Any, device: Device) -> Any:
    """Return a new tensor of what an array of NumPy holds, on the device."""
    with torch_arrays.unseen():
        return device.put(torch().from_numpy(np.array(x)))


def strided(array: Any, strides: Strides, order: str) -> Any:
    """Return the same numbers, otherwise in memory, as a view; order: of the axes, such as bhsd.

    transposed: heads and positions change places; sliced: out of an array three times as wide, as q and k
    are from a joint projection; expanded: the first batch element in place of all.
    """
    if strides == "transposed" and "h" in order:
        axes = order.index("h"), order.index("s")
        turned = array.swapaxes(*axes)
        turned = turned.copy() if isinstance(array, np.ndarray) else turned.contiguous()
        return turned.swapaxes(*axes)
    if strides == "sliced":
        width = array.shape[-1]
        joined = (
            np.concatenate([np.flip(array, -1), array, np.flip(array, -1)], -1)
            if isinstance(array, np.ndarray)
            else torch().cat([array.flip(-1), array, array.flip(-1)], -1)
        )
        return joined[..., width : 2 * width]
    if strides == "expanded" and "b" in order:
        first = array[(slice(None),) * order.index("b") + (slice(0, 1),)]
        return (np.broadcast_to if isinstance(array, np.ndarray) else torch().broadcast_to)(
            first, array.shape
        )
    return array


def shared(returned: Any, given: Any) -> bool:
    """Return whether what came back lies where what was given lies."""
    if isinstance(returned, np.ndarray) and isinstance(given, np.ndarray):
        return np.may_share_memory(returned, given)
    if isinstance(returned, np.ndarray) or isinstance(given, np.ndarray):
        return False
    ours: bool = returned.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return ours


def values(array: Any) -> tuple[FloatArray, str]:
    """Return a copy of the numbers of a tensor or an array, and the name of its dtype. Raises: WrongShape."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "fV" or array.dtype == object:
            raise WrongShape(f"returns an array of {array.dtype}")
        wide = np.float64 if array.dtype == np.float64 else np.float32
        return np.array(array, dtype=wide), str(array.dtype)
    if not isinstance(array, torch().Tensor):
        raise WrongShape(f"returns {type(array).__name__} instead of an array")
    if not array.is_floating_point():
        raise WrongShape(f"returns a tensor of {str(array.dtype).removeprefix('torch.')}")
    return torch_arrays.to_numpy(array).copy(), str(array.dtype).removeprefix("torch.")


def content(array: Any) -> bytes:
    """Return all bits of a tensor or an array, in the order of its elements."""
    if isinstance(array, np.ndarray):
        return array.tobytes()
    content: bytes = array.detach().cpu().contiguous().view(torch().uint8).numpy().tobytes()
    return content


def known(returned: Any) -> Any:
    """Return what came back with arrays of other libraries, such as jax, as those of NumPy."""
    returned = listed(returned)
    if isinstance(returned, (tuple, list)):
        return type(returned)(map(known, returned)) if type(returned) in (tuple, list) else returned
    root = type(returned).__module__.partition(".")[0]
    foreign = hasattr(returned, "__array__") and root not in ("numpy", "torch", "builtins")
    return np.asarray(returned) if foreign and not _is_tensor(returned) else returned


def listed(returned: Any) -> Any:
    """Return a dict, a dataclass, a named tuple or another object with fields as a tuple: q, k, v first.

    Fields are told by their names, `query_rotated` or `k_embed`; where none says it, they keep their order.
    """
    fields: Any = None
    if isinstance(returned, Mapping):
        fields = dict(returned)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        fields = {one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}
    elif isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        fields = returned._asdict()
    elif type(returned).__name__ == "SimpleNamespace":
        fields = vars(returned)
    if fields is None:
        return returned
    kinds = {kind: [name for name in fields if _kind(str(name)) == kind] for kind in "qkv"}
    if kinds["q"]:
        return tuple(fields[names[0]] for names in kinds.values() if names)
    return tuple(fields.values())


def _kind(name: str) -> str:
    """Return which of q, k and v a field is called after; nothing where it is after none."""
    words = name.lower().replace("-", "_").split("_")
    kinds = {
        "q": ("q", "query", "queries", "xq"),
        "k": ("k", "key", "keys", "xk"),
        "v": ("v", "value", "values", "xv"),
    }
    return next((kind for kind, names in kinds.items() if any(word in names for word in words)), "")


def _is_tensor(value: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def parts(returned: Any, both: bool) -> tuple[Any, Any, Any]:
    """Return the rotated vector, and keys and values where q and k were given. Raises: WrongShape."""
    returned = listed(returned)
    if not isinstance(returned, (tuple, list)):
        return returned, None, None
    if both and len(returned) >= 2:
        return returned[0], returned[1], returned[2] if len(returned) == 3 else None
    if len(returned) == 1:
        return returned[0], None, None
    kind = TwoTables if len(returned) == 2 else WrongShape
    raise kind(f"returns {len(returned)} things for one array")


def quietly(function: Any, positional: list[Any], named: dict[str, Any], device: Device = CPU) -> Any:
    """Call without gradients, with the device as the current one; overflows and nans are no warnings."""
    with np.errstate(all="ignore"):
        if any(map(_is_tensor, (*positional, *named.values()))):
            with torch().no_grad(), device.current(), _recompiling():
                return function(*positional, **named)
        return function(*positional, **named)


def _recompiling() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which what torch compiled is compiled for every shape and dtype it is called with.

    Past a limit, of 8, torch runs the Python function instead, and what was audited would not be compiled.
    """
    dynamo = sys.modules.get("torch._dynamo.config")
    if dynamo is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = dynamo.patch(**dict.fromkeys(_LIMITS, _COMPILATIONS))
    return context
