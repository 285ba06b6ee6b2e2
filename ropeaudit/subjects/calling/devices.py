"""The device on which code is given arrays, and to which modules are moved."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import Any

from ropeaudit.errors import UsageError

# parts of the messages of torch and Triton about tensors that lie on several devices
_MIXED = ("same device", "different from other tensors on", "cannot be accessed from triton")
_OF_GPUS = ("cuda", "gpu", "triton", "active driver")


@dataclass(frozen=True, slots=True)
class Device:
    """A device. name: as torch or jax spells it. label: in records. of_jax: jax's object."""

    name: str = "cpu"
    label: str = "cpu"
    of_jax: Any = None

    @property
    def is_cpu(self) -> bool:
        """Whether tensors lie where torch makes them unless it is told otherwise."""
        return self.name == "cpu"

    @property
    def words(self) -> str:
        """Where arrays lie, to follow their kind in a sentence; nothing on the CPU."""
        return "" if self.is_cpu else f" on {self.name}"

    def put(self, array: Any) -> Any:
        """Return an array on the device: a tensor, or one of jax."""
        if self.of_jax is not None:
            if array.dtype == "int64" and abs(array).max(initial=0) >= 2**31 and not jax_is_wide():
                raise OverflowError("jax has no positions from 2^31 on; set JAX_ENABLE_X64=1")
            return sys.modules["jax"].device_put(array, self.of_jax)
        return array if self.is_cpu else array.to(self.name)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that makes it the current device, where Triton's kernels run."""
        if self.name.startswith("cuda:") and self.of_jax is None:
            context: contextlib.AbstractContextManager[Any] = sys.modules["torch"].cuda.device(self.name)
            return context
        return contextlib.nullcontext()

    def holds(self, module: Any) -> bool:
        """Return whether all parameters and buffers of a module lie on the device."""
        return all(str(place) == self.name for place in _places(module))

    def moved(self, module: Any) -> Any:
        """Return a module moved to the device; it is moved in place, as users do."""
        return module if self.holds(module) else module.to(self.name)


CPU = Device()


def of_torch(name: str | None) -> Device:
    """Return torch's device of a name; None is the CPU. Raises: UsageError."""
    if name is None or name.strip().lower() == "cpu":
        return CPU
    from ropeaudit.subjects import torch_native  # in-function: importing torch takes seconds

    return _of(torch_native.device(name))


def _of(place: Any) -> Device:
    from ropeaudit.subjects import torch_native

    return CPU if place.type == "cpu" else Device(str(place), torch_native.Numbers(place).label)


def of_jax(name: str | None) -> Device:
    """Return jax's device of a name; None is its default. Raises: UsageError."""
    jax = importlib.import_module("jax")
    kind, _, number = (name or "").strip().lower().partition(":")
    try:
        place = jax.devices(kind or None)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        seen, reason = ", ".join(map(str, jax.devices())), " ".join(str(error).split())[:120]
        raise UsageError(f"--device {name}: jax has no such device ({reason}); it has {seen}") from None
    if place.platform == "cpu":
        return Device("cpu", "cpu", place)
    return Device(str(place), f"{place} ({place.device_kind})", place)


def jax_is_wide() -> bool:
    """Return whether jax has arrays of float64 and int64."""
    return bool(importlib.import_module("jax").config.jax_enable_x64)


def of_module(module: Any) -> Device | None:
    """Return the one device of a module's tensors; None if there is none or several."""
    places = _places(module)
    return _of(places.pop()) if len(places) == 1 else None


def _places(module: Any) -> set[Any]:
    return {value.device for part in (module.parameters(), module.buffers()) for value in part}


def advice(message: str, device: Device) -> str:
    """Return advice on an error about devices; empty for any other error."""
    text = message.lower()
    mixed = any(part in text for part in _MIXED)
    if device.is_cpu and (mixed or any(part in text for part in _OF_GPUS)):
        return (
            "if it computes on another device than the CPU, or holds what lies there, name that one, such as "
            "--device cuda"
        )
    if mixed:
        return (
            f"it was given tensors on {device.name}, and holds or makes others elsewhere (.to() of a module "
            "moves parameters and buffers alone): make them on the device of x, or give --device cpu"
        )
    return ""
