"""Run a torch model in float64 throughout, whatever its code says: the reference of a model's own arithmetic.

Code that asks for float64 weights still computes rotary tables, norms and softmax in float32, for it casts to
float32 by name. Here each such request is answered with float64, below the code and at any depth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _RequestedDtype(TorchFunctionMode):
    """Answers float32 with float64 where a tensor is made from numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **_wider(kwargs))


class Float64Mode(TorchDispatchMode):
    """Answers float32 with float64 in every operation. narrow: operations that gave something else yet."""

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
    if given.get("dtype") == torch.float32:
        given["dtype"] = torch.float64
    return given


@contextlib.contextmanager
def wide() -> Iterator[Float64Mode]:
    """Yield a mode in which float32 becomes float64; it knows what did not."""
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
    """Convert a model to float64, its frequencies and tables anew; return the names of those that are not.

    They keep their float32 values: shift-invariant, but not the exact ones.
    """
    model.double()
    unchanged = []
    for name, module in rotaries(model).items():
        try:
            with wide():
                rebuilt = type(module)(module.config)
        except Exception:  # a constructor of the model's own that takes something else
            unchanged.append(name)
        else:
            model.set_submodule(name, rebuilt)
    return unchanged + [
        name for name, module in tabled(model).items() if not _computed_anew(module, model.config)
    ]


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
    numbered = {"layer_idx": module.layer_idx} if hasattr(module, "layer_idx") else {}
    try:
        with wide():
            rebuilt = type(module)(getattr(module, "config", config), **numbered)
        tables = {key: rebuilt._buffers[key] for key, _ in computed_tables(module)}
        if any(tables[key].shape != value.shape for key, value in computed_tables(module)):
            return False
    except Exception:  # as above
        return False
    module._buffers.update(tables)
    return True
