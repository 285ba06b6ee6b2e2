"""What other people's code may change around it: put back after each call, so that no row depends on another.

A state is what `now` reads: of Python, and of NumPy and torch where they are loaded.
"""

from __future__ import annotations

import builtins
import contextlib
import decimal
import gc
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

Aspect: TypeAlias = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, how it is set
State: TypeAlias = dict[str, Any]

_SEED = 0
_SEEDS = 2**32  # those that people give are below it; one that torch begins with is hardly ever
_home: ContextVar[State | None] = ContextVar("home", default=None)  # threads have one each


def now() -> State:
    """Return the state of this process and thread."""
    return {name: read() for name, (read, _) in _aspects().items()}


def put(state: State) -> None:
    """Bring a state back; what is as it was is left alone."""
    for name, (read, write) in _aspects().items():
        if name in state and not same(read(), state[name]):
            with contextlib.suppress(OSError):  # a folder that is gone
                write(state[name])


@contextlib.contextmanager
def at_home(state: State | None) -> Iterator[None]:
    """Let `foreign` begin with a state within the block: the one in which a module left its import."""
    token = _home.set(state)
    try:
        yield
    finally:
        _home.reset(token)


def home() -> State | None:
    """Return the state that `at_home` says."""
    return _home.get()


@contextlib.contextmanager
def foreign(home: State | None = None) -> Iterator[None]:
    """Run other people's code within the block, beginning with a state; afterwards all is as it was before.

    sys.exit, os._exit and other ways to leave become a RuntimeError; only a Ctrl-C stays one. A child that it
    forked ends here.
    """
    before, process, leave = now(), os.getpid(), os._exit
    here = threading.get_ident()

    def left(code: int) -> Any:
        if os.getpid() != process or threading.get_ident() != here:
            leave(code)
        raise SystemExit(code)

    os._exit = left  # type: ignore[assignment]
    try:
        if home is not None:
            put(home)
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except SystemExit as stop:
        raise RuntimeError(f"it calls sys.exit({'' if stop.code is None else stop.code})") from None
    except BaseException as stop:
        raise RuntimeError(f"it raises {type(stop).__name__}: {stop}".removesuffix(": ")) from None
    finally:
        os._exit = leave
        if os.getpid() != process:
            leave(0)
        put(before if "torch.dtype" in before else _new_torch() | before)


def seed() -> None:
    """Let random numbers begin anew: those of a process are chance. To be called within `foreign`."""
    import numpy as np

    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 other people use it
    _seed_torch()


def seed_if_chance() -> None:
    """Let torch's random numbers begin anew if they began by chance, as they do where it is loaded."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator") and torch.initial_seed() >= _SEEDS:
        _seed_torch()


def _seed_torch() -> None:
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(_SEED)


def _aspects() -> dict[str, Aspect]:
    results = dict(_PYTHON)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            results[f"signal {number}"] = _handler(number)
    if "numpy" in sys.modules:
        results |= _numpy()
    torch = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):  # else it is not loaded, or not yet
        results |= _torch(torch)
    return results


def _handler(number: signal.Signals) -> Aspect:
    def write(handler: Any) -> None:
        if handler is not None:  # one that was not set by Python
            signal.signal(number, handler)

    return lambda: signal.getsignal(number), write


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _go(folder: str) -> None:
    if folder:
        os.chdir(folder)


def _set_environment(requested: dict[str, str]) -> None:
    for name in set(os.environ) - set(requested):
        del os.environ[name]
    os.environ.update(requested)


def _set_path(requested: list[str]) -> None:
    sys.path[:] = requested


def _set_filters(requested: tuple[list[Any], Any]) -> None:
    warnings.resetwarnings()  # the registries of modules hear of it
    warnings.filters[:] = requested[0]  # type: ignore[index]
    warnings.showwarning = requested[1]


_PYTHON: dict[str, Aspect] = {
    "folder": (_folder, _go),
    "environment": (lambda: dict(os.environ), _set_environment),
    "path": (lambda: list(sys.path), _set_path),
    "builtins": (lambda: dict(vars(builtins)), lambda names: vars(builtins).update(names)),
    "filters": (lambda: (list(warnings.filters), warnings.showwarning), _set_filters),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "hooks": (lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
    "garbage": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda to: locale.setlocale(locale.LC_ALL, to)),
    "decimal": (lambda: decimal.getcontext().copy(), lambda to: decimal.setcontext(to.copy())),
    "random": (random.getstate, random.setstate),
}


def _numpy() -> dict[str, Aspect]:
    import numpy as np

    return {
        "numpy.errors": (np.geterr, lambda kinds: np.seterr(**kinds)),
        "numpy.random": (np.random.get_state, np.random.set_state),
    }


def _torch(torch: Any) -> dict[str, Aspect]:
    """Whatever of torch changes numbers; the device first, for the others make tensors."""
    import numpy as np

    def set_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    def deterministic() -> tuple[bool, bool]:
        warn = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warn

    def set_deterministic(requested: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(requested[0], warn_only=requested[1])

    def flushes() -> bool:
        return bool(np.float32(1e-40) * np.float32(1.0) == 0.0)

    results: dict[str, Aspect] = {
        "torch.device": (torch.get_default_device, set_device),
        "torch.dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.grad": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.deterministic": (deterministic, set_deterministic),
        "torch.denormal": (flushes, torch.set_flush_denormal),
        "torch.random": (torch.default_generator.get_state, torch.default_generator.set_state),
    }
    for kind in ("cpu", "cuda"):
        results[f"torch.autocast {kind}"] = _autocast(torch, kind)
    # the legacy way to set precisions and the new one cannot be read together; this sets both
    results["torch.precision"] = _tried(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    )
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        results[f"torch.cudnn {name}"] = _attribute(torch.backends.cudnn, name)
    if hasattr(torch.backends, "fp32_precision"):
        results["torch.precision of all"] = _attribute(torch.backends, "fp32_precision")
    return results


def _autocast(torch: Any, kind: str) -> Aspect:
    def read() -> tuple[bool, Any]:
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def write(requested: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(kind, requested[0])
        torch.set_autocast_dtype(kind, requested[1])

    return read, write


def _attribute(where: Any, name: str) -> Aspect:
    return _tried(lambda: getattr(where, name), lambda value: setattr(where, name, value))


def _tried(read: Callable[[], Any], write: Callable[[Any], Any]) -> Aspect:
    """Return an aspect that is None where torch will not tell it, and then is not set."""

    def reported() -> Any:
        with contextlib.suppress(RuntimeError):
            return read()
        return None

    return reported, lambda value: value is None or write(value)


def _new_torch() -> State:
    """Return the state of torch as it is when it has just been loaded; nothing where it is not."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "default_generator"):
        return {}
    return {
        "torch.device": torch.device("cpu"),
        "torch.dtype": torch.float32,
        "torch.grad": True,
        "torch.deterministic": (False, False),
        "torch.denormal": False,
        "torch.random": torch.Generator("cpu").get_state(),
        "torch.autocast cpu": (False, torch.bfloat16),
        "torch.autocast cuda": (False, torch.float16),
        "torch.precision": "highest",
    }


def same(one: Any, other: Any) -> bool:
    """Return whether two values of a state are equal."""
    if hasattr(one, "equal"):  # a tensor
        return bool(one.equal(other))
    if isinstance(one, tuple) and len(one) == 5:  # NumPy's random numbers
        return one[2:] == other[2:] and bool((one[1] == other[1]).all())
    return bool(one == other)
