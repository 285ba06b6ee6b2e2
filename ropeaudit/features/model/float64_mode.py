"""Run a torch model in float64 throughout, whatever its code says: the reference of a model's own arithmetic.

Code that asks for float64 weights still computes rotary tables, norms and softmax in float32, for it casts to
float32 by name, and some casts positions to bfloat16. Here each such request is answered with float64, below
the code and at any depth: what a narrower format does is precision, and the model's own numbers stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.runtime import process_state

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class _RequestedDtype(TorchFunctionMode):
    """Answers narrower formats with float64 where a tensor is made from numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **_wider(kwargs))


class Float64Mode(TorchDispatchMode):
    """Answers narrower formats with float64 in every operation. narrow: those that gave another yet."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **_wider(kwargs))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                self.narrow.add(str(func))
        return result


def _wider(kwargs: Any) -> dict[str, Any]:
    given = dict(kwargs or {})
    if given.get("dtype") in _NARROW:
        given["dtype"] = torch.float64
    return given


@contextlib.contextmanager
def wide() -> Iterator[Float64Mode]:
    """Yield a mode in which float32, bfloat16 and float16 become float64; it knows what did not."""
    before, mode = torch.get_default_dtype(), Float64Mode()
    torch.set_default_dtype(torch.float64)
    try:
        with _RequestedDtype(), mode:
            yield mode
    finally:
        torch.set_default_dtype(before)


def rotaries(model: Any) -> dict[str, Any]:
    """Return the modules that hold rotary frequencies, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(key.endswith("inv_freq") for key in module._buffers)
    }


def widen(model: Any) -> list[str]:
    """Convert a model to float64, its rotary modules as it holds them; return the names of narrow tables.

    Frequencies and factors keep the numbers that were loaded: whether those are the config's says `held`. A
    table of cosines and sines is made anew where it agrees with the one that its class computes: each number
    of it was rounded, which a shift would show. One that disagrees, or cannot be made, stays as it is.
    """
    model.double()
    for module in rotaries(model).values():
        for name, value in vars(module).items():  # such as frequencies of short texts, which are put back
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = value.double()
    return [name for name, module in tabled(model).items() if not _computed_anew(module, model.config)]


def rebuilt(module: Any, config: Any) -> Any:
    """Return a second module of the same class and config, built in float64; None where it takes more."""
    numbered = {"layer_idx": module.layer_idx} if hasattr(module, "layer_idx") else {}
    try:
        with wide(), process_state.foreign():
            return type(module)(getattr(module, "config", config), **numbered)
    except Exception:  # a constructor of the model's own that takes something else
        return None


def agree(table: Any, built: Any) -> bool:
    """Return whether a table is one that was built, within its own roundings and those of float32 angles.

    Shapes: alike, a row for each position.
    """
    rounding = torch.finfo(table.dtype).eps + len(table) * 2.0**-22
    other = built.detach().to("cpu", torch.float64)
    return bool(((table.detach().to("cpu", torch.float64) - other).abs() <= rounding).all())


def tabled(model: Any) -> dict[str, Any]:
    """Return the modules that computed a table of floats when they were built: sines and cosines, mostly."""
    known = rotaries(model)
    return {
        name: module
        for name, module in model.named_modules()
        if name not in known and any(True for _ in computed_tables(module))
    }


def computed_tables(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tables of such a module, by the names of their buffers."""
    for key in module._non_persistent_buffers_set:
        value = module._buffers.get(key)
        if value is not None and value.is_floating_point() and value.ndim > 1:
            yield key, value


def _computed_anew(module: Any, config: Any) -> bool:
    """Put tables in place that a second module, built in float64, holds; return whether that was possible."""
    built = rebuilt(module, config)
    held = dict(computed_tables(module))
    tables = {} if built is None else {key: built._buffers.get(key) for key in held}
    if not tables or any(
        tables[key] is None or tables[key].shape != value.shape or not agree(value, tables[key])
        for key, value in held.items()
    ):
        return False
    module._buffers.update(tables)
    return True
