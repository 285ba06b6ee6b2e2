"""A device for machines without a GPU: it computes on the CPU, and refuses tensors that lie elsewhere.

It is registered with torch as a backend written in Python, so that `.to("pretended")`, factories with
`device=`, modules, autograd and dispatch modes treat it as any other device. torch cannot forget it again.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _device, backend_registration
from torch.utils._pytree import tree_map

from ropeaudit.subjects import torch_native

NAME = "pretended"
_ALONE = "ROPEAUDIT_TEST_ALONE"
PLACE = f"{NAME}:0"
_ATEN = torch.ops.aten
_TENSOR = torch.tensor
_ARANGES = torch.library.Library("aten", "IMPL")
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)
operations: list[str] = []  # that the device did
calls: list[set[str]] = []  # of watched code: where the tensors lay that it was given


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a process of its own: autograd knows but the devices that there were at its first use."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        if os.environ.get(_ALONE):
            test(*args, **kwargs)
            return
        node = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "", node],
            cwd=Path(__file__).parents[1],
            env=outer | {_ALONE: "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:]

    return run


class Tensor(torch.Tensor):
    """A tensor that says it lies on the device; raw holds its numbers, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Tensor:
        """Return a tensor as large as `raw`, with its strides."""
        return torch.Tensor._make_wrapper_subclass(
            *(cls, raw.shape),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, raw: torch.Tensor) -> None:
        """Keep the numbers."""
        self.raw = raw

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return where the numbers are."""
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        """Return where they begin."""
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Return a copy; of a parameter one."""
        copied = Tensor(self.raw.detach().clone())
        is_parameter = getattr(self, "_is_param", False)
        memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    def __repr__(self) -> str:
        return f"pretended({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU."""
        return _computed(func, args, kwargs or {})


def _computed(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation on the device.

    A number may lie on the CPU, and so may what is copied from there.
    Raises: RuntimeError, as torch does, for other tensors that lie elsewhere.
    """
    operations.append(str(operation))
    to = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.device)), None)

    def raw(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, Tensor):
            return value.raw
        if isinstance(value, torch.Tensor) and value.dim() and operation not in _COPIES:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {PLACE} and "
                f"{value.device}!"
            )
        return value

    result = operation(*tree_map(raw, args), **tree_map(raw, kwargs))
    if to is not None and to.type == "cpu":
        return result
    if operation is _ATEN.copy_.default:
        return args[0]
    given = {id(one.raw): one for one in args if isinstance(one, Tensor)}  # for what is changed where it lies
    if any(one.shape != one.raw.shape for one in given.values()):
        raise NotImplementedError(f"{operation} gives a tensor another shape")

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return given[id(value)] if id(value) in given else Tensor(value)

    return tree_map(wrapped, result)


class _Backend:
    """What torch asks a backend's module."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Seed nothing: random numbers are the CPU's."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@functools.cache
def _registered() -> torch.library.Library:
    """Register the backend with torch, once."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: _computed(operation, args, kwargs), "PrivateUse1")
    for name in ("default", "start", "start_step"):  # else they fill an empty tensor that they enlarge
        operation = getattr(_ATEN.arange, name)
        made = functools.partial(_made, operation)
        _ARANGES.impl(operation.name().removeprefix("aten::"), made, "PrivateUse1")
    return library


def _made(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return _computed(operation, args, kwargs)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--device pretended` name the device, and forget what was counted."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no backends written in Python")
    _registered()
    plain = torch_native.device
    monkeypatch.setattr(
        torch_native, "device", lambda name: torch.device(PLACE) if name == NAME else plain(name)
    )
    _device._device_constructors()  # torch looks up once which functions a device as a context is for
    monkeypatch.setattr(torch, "tensor", _tensor)
    operations.clear()
    calls.clear()


def _tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
    """Return torch.tensor of numbers, on the device by a copy.

    torch.tensor itself copies them with dispatch to Python switched off, which a backend in Python has not:
    torch then fails with an internal assertion, on whatever is made so, longrope's factors among it.
    """
    place = torch.empty(0).device if device is None else torch.device(device)
    if place.type != NAME:
        return _TENSOR(data, device=device, **options)
    return _TENSOR(data, device="cpu", **options).to(place)


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that notes where the tensors lie that it is given, and takes none from elsewhere."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        places = {str(value.device) for value in given if isinstance(value, torch.Tensor)}
        calls.append(places)
        if places != {PLACE}:
            raise RuntimeError(f"Pointer argument cannot be accessed from Triton ({places})")
        return function(*args, **kwargs)

    return called


def only_here() -> int:
    """Return how often watched code was called, and assert that nothing from elsewhere reached it."""
    assert calls
    assert all(places == {PLACE} for places in calls)
    return len(calls)
