"""Environments of calls: settings of torch that are changed for each call and restored; and devices.

A clean call begins in the state that the import of the code's module left. `default-dtype` applies where
instances are built too; `compile` wraps the function, `to` moves the module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ropeaudit import data
from ropeaudit.arithmetic.formats import FP32, Format, parse
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.signatures import is_module

Kind = Literal["none", "autocast", "tf32", "default-dtype", "to", "compile", "inference"]
NONE = "none"  # the clean one
ALL = "all"
_COMPILERS = ("g++", "c++", "clang++", "cl")
_AUTOCAST = ("cpu", "cuda")  # devices whose autocast is tried
_TF32_SINCE = 8  # major compute capability of CUDA
_RECOMPILED = 64  # times: past its limit torch compiles no more


class NothingToMove(UsageError):
    """The code is no module, so that `to` has nothing to move."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment of calls. name: as it is requested. does: its effect, as a clause.

    dtype: to which it narrows numbers; None where it narrows nothing.
    """

    name: str
    kind: Kind
    does: str
    dtype: Format | None = None

    def lacking(self, engine: str, dtype: Format, device: str = "cpu") -> str:
        """Return why code of an engine cannot be called in it on a device; empty where it can.

        dtype: of q and k. torch promotes between no two 16-bit dtypes under autocast.
        """
        if self.kind == "autocast" and self.dtype and dtype.precision < 24 and dtype is not self.dtype:
            return f"{self.name} needs --dtype {self.dtype.short} or fp32"
        if self.kind == "autocast" and device.partition(":")[0] not in _AUTOCAST:
            return f"{self.name} is tried on {' and '.join(_AUTOCAST)} alone, and this is called on {device}"
        if self.kind != "none" and engine != "torch":
            return f"{self.name} is a matter of torch, and this runs in {engine}; leave out --under"
        if self.kind == "compile" and device == "cpu" and not has_compiler():
            return "torch.compile needs a C++ compiler, and there is none here; install g++"
        return ""

    def narrowed(self, dtype: Format) -> Format:
        """Return the narrower dtype of the two: that of q and k, or the environment's."""
        return self.dtype if self.dtype and self.dtype.precision < dtype.precision else dtype

    def label(self, device: str = "cpu") -> str:
        """Return the name in records, which says where TF32 is emulated."""
        return f"{self.name}:emulated" if self._emulated(device) else self.name

    @contextlib.contextmanager
    def entered(self, device: str = "cpu") -> Iterator[None]:
        """Apply the environment within the block; restore torch afterwards."""
        if self.kind in ("none", "to", "compile"):
            yield
            return
        import torch

        stack, dtype, precise = contextlib.ExitStack(), self.dtype, torch.backends.cudnn
        if self.kind == "inference":
            stack.enter_context(torch.inference_mode())
        elif self.kind == "autocast":
            stack.enter_context(
                torch.autocast(device.partition(":")[0], dtype=torch_arrays.dtype(dtype or FP32))
            )
        elif self.kind == "default-dtype":
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch_arrays.dtype(dtype or FP32))
        elif self._emulated(device):
            from ropeaudit.subjects.torch_native import Tf32Products

            stack.enter_context(Tf32Products())  # type: ignore[no-untyped-call]
        else:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            stack.callback(setattr, precise, "allow_tf32", precise.allow_tf32)
            torch.set_float32_matmul_precision("high")
            precise.allow_tf32 = True
        with stack:
            yield

    def built(self) -> contextlib.AbstractContextManager[None]:
        """Return the context for building: only the default dtype applies there."""
        return self.entered() if self.kind == "default-dtype" else contextlib.nullcontext()

    def moved(self, thing: Any) -> Any:
        """Return an instance; in `to` its module is moved to the dtype, in place as users do.

        Raises: NothingToMove.
        """
        if self.kind == "to":
            owner = getattr(thing, "__self__", None)  # of a module's method
            module = next((one for one in (thing, owner) if is_module(one)), None)
            if module is None:
                holds = f"a {type(thing).__name__} holds nothing to move; leave out --under"
                raise NothingToMove(f"{self.name} moves a torch.nn.Module, and {holds}")
            module.to(torch_arrays.dtype(self.dtype or FP32))
        return thing

    def wrapped(self, function: Any) -> Any:
        """Return a function or a module, compiled where the environment says so."""
        if self.kind != "compile":
            return function
        gc.disable()  # nearly all that is made stays
        try:
            with silent():
                import torch
                import torch._dynamo

                dynamo: Any = torch._dynamo.config
                compile_: Any = torch.compile  # which not all versions type
                compiled = compile_(function, options={"compile_threads": 1})
        finally:
            gc.freeze()
            gc.enable()
        limits = dynamo.patch(recompile_limit=_RECOMPILED, fail_on_recompile_limit_hit=True)

        def called(*plain: Any, **named: Any) -> Any:
            with silent(), limits:
                return compiled(*plain, **named)

        called.compiled_on_request = True  # type: ignore[attr-defined]
        return called

    def _emulated(self, device: str) -> bool:
        if self.kind != "tf32":
            return False
        if not device.startswith("cuda"):
            return True
        import torch

        return bool(torch.cuda.get_device_capability(device)[0] < _TF32_SINCE)


ENVIRONMENTS = {
    name: Environment(name, row["kind"], row["does"], parse(row["dtype"]) if "dtype" in row else None)
    for name, row in data.table("environments.toml").items()
}
CLEAN = ENVIRONMENTS[NONE]
INFERENCE = Environment("inference_mode", "inference", "torch.inference_mode, in which servers call")
NAMES = tuple(name for name in ENVIRONMENTS if name != NONE)
_OF_ANY_CODE = [name for name in NAMES if ENVIRONMENTS[name].kind != "to"]  # a function has nothing to move


def chosen(names: Iterable[str]) -> list[Environment]:
    """Return environments by their names, the clean one first. Raises: UnknownName.

    >>> [one.name for one in chosen(["tf32"])]
    ['none', 'tf32']
    """
    results = {NONE: CLEAN}
    for name in names:
        typed = name.strip().lower()
        for one in _OF_ANY_CODE if typed == ALL else [typed]:
            if one not in ENVIRONMENTS:
                raise UnknownName("environment", name, [*NAMES, ALL])
            results[one] = ENVIRONMENTS[one]
    return list(results.values())


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, which torch.compile wants on a CPU."""
    import shutil  # in-function: the default audit needs neither this nor logging

    return any(map(shutil.which, _COMPILERS))


@contextlib.contextmanager
def silent(errors: bool = False) -> Iterator[None]:
    """Silence warnings of what a compiler skips. errors: silence its error logs too."""
    import logging

    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR if errors else logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# parts of the messages of torch and Triton about tensors that lie on several devices
_MIXED = ("same device", "different from other tensors on", "cannot be accessed from triton")
_OF_GPUS = ("cuda", "gpu", "triton", "active driver")


@dataclass(frozen=True, slots=True)
class Device:
    """A device. name: torch's or jax's. label: in records. of_jax: jax's object."""

    name: str = "cpu"
    label: str = "cpu"
    of_jax: Any = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is torch's default device."""
        return self.name == "cpu"

    @property
    def words(self) -> str:
        """The device as a part of a sentence, " on cuda:0"; empty on the CPU."""
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


def device_advice(message: str, device: Device) -> str:
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
