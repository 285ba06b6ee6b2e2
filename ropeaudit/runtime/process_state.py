"""What other people's code may change around it: put back after each call, so that no row depends on another.

A state is what `now` reads: of Python, and of NumPy and torch where they are loaded. Each of its aspects says
how it is read, and how it is set.
"""

from __future__ import annotations

import builtins
import contextlib
import decimal
import gc
import locale
import operator
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from ropeaudit.runtime import own_modules, threads

Aspect: TypeAlias = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, how it is set
State: TypeAlias = dict[str, Any]
# whose functions other code computes with too
_GUARDED = ("math", "numpy", "numpy.linalg", "torch", "torch.linalg", "torch.nn.functional", "torch.Tensor")
_REPLACED_BY_TORCH = {"manual_seed"}  # when it compiles for the first time
# each thread has its own of these
OF_THREADS = {"decimal", "numpy.errors", "torch.grad", "torch.denormal"}
OF_THREADS |= {"torch.autocast cpu", "torch.autocast cuda"}
_AS_LOADED: dict[str, _Functions] = {}  # of each of them: its functions before other people's code ran
_SEED = 0
_SEEDS = 2**32  # those that people give are below it; one that torch begins with is hardly ever
_CHANCE = "chance"  # name in a state of the seed with which code begins, where that is another than usual
_chance: ContextVar[int] = ContextVar("chance", default=_SEED)
_home: ContextVar[State | None] = ContextVar("home", default=None)  # threads have one each


def now() -> State:
    """Return the state of this process and thread."""
    return {name: read() for name, (read, _) in aspects().items()}


def put(state: State) -> None:
    """Set everything that differs from a state back to it."""
    for name, (read, write) in aspects().items():
        if name in state and not same(read(), state[name]):
            with contextlib.suppress(OSError):  # a folder that is gone
                write(state[name])


@contextlib.contextmanager
def at_home(state: State | None) -> Iterator[None]:
    """Within the block, begin `foreign` with a state: the one in which a module left its import."""
    if number := _chance.get():
        state = (state or {}) | {_CHANCE: number}
    token = _home.set(state)
    try:
        yield
    finally:
        _home.reset(token)


@contextlib.contextmanager
def other_chance(number: int) -> Iterator[None]:
    """Within the block, begin calls `at_home` with other random numbers, so that what hangs on them shows."""
    token = _chance.set(number)
    try:
        yield
    finally:
        _chance.reset(token)


def home() -> State | None:
    """Return the state of the innermost `at_home`, or None."""
    return _home.get()


def _text(error: BaseException) -> str | None:
    """Return the text of an exception; None where it cannot be had: reading it raises, or leaves."""
    try:
        return str(error)
    except BaseException:
        return None


class _Left(SystemExit):
    """What os._exit raises in other people's code."""


class Call:
    """A call of other people's code, which can be left behind in its thread: it changes nothing then."""

    def __init__(self) -> None:
        self.before: State = {}
        self.left = False

    def leave(self) -> None:
        """Put the process back now; the thread, should its code ever return, changes nothing any more."""
        self.left = True
        put({name: value for name, value in self.before.items() if name not in OF_THREADS})


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turn sys.exit, os._exit and whatever else leaves the block into a RuntimeError; a Ctrl-C stays one.

    For what only looks at other people's objects, whose attributes may be code.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _text(error) is None:
            raise RuntimeError(f"it raises {type(error).__name__}, whose text cannot be read") from None
        raise
    except SystemExit as stop:
        how = "os._exit" if isinstance(stop, _Left) else "sys.exit"
        raise RuntimeError(f"it calls {how}({'' if stop.code is None else stop.code})") from None
    except BaseException as stop:
        raise RuntimeError(
            f"it raises {type(stop).__name__}: {_text(stop) or ''}".removesuffix(": ")
        ) from None


@contextlib.contextmanager
def foreign(home: State | None = None, call: Call | None = None) -> Iterator[None]:
    """Run other people's code within the block, beginning with a state; afterwards all is as it was before.

    What leaves it is `contained`. A child that it forked ends here. call: the same call as seen by whoever
    waits for it, and may leave it.
    """
    call = call or Call()
    call.before, process, leave = now(), os.getpid(), os._exit
    here = threading.get_ident()

    def exit_refused(code: int) -> Any:
        if os.getpid() != process or threading.get_ident() != here:
            leave(code)
        raise _Left(code)

    os._exit = exit_refused  # type: ignore[assignment]
    try:
        if home is not None:
            put(home)
            if _CHANCE in home:
                seed(home[_CHANCE])
        with contained():
            yield
    finally:
        if os.getpid() != process:
            leave(0)
        if not call.left:
            os._exit = leave
            put(call.before if "torch.dtype" in call.before else new_torch() | call.before)


def seed(number: int = _SEED) -> None:
    """Seed all random numbers, which a process begins by chance. To be called within `foreign`."""
    import numpy as np

    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 other people use it
    _seed_torch(number)


def seed_if_chance() -> None:
    """Seed torch's random numbers if they began by chance, as they do where it is loaded."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator") and torch.initial_seed() >= _SEEDS:
        _seed_torch()


def _seed_torch(number: int = _SEED) -> None:
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(number)


def aspects() -> dict[str, Aspect]:
    """Return what can be read and set now: of Python, and of NumPy and torch where they are loaded."""
    readable = dict(_PYTHON)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            readable[f"signal {number}"] = _handler(number)
    readable["functions"] = (_replaced, _replace)
    if "numpy" in sys.modules:
        import numpy as np

        readable["numpy.errors"] = (np.geterr, lambda kinds: np.seterr(**kinds))
        readable["numpy.random"] = (np.random.get_state, np.random.set_state)
    torch = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):  # else it is not loaded, or not yet
        readable |= _torch(torch)
    return readable


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


def _set_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _set_filters(state: tuple[list[Any], Any]) -> None:
    warnings.resetwarnings()  # which also clears the registries of modules
    warnings.filters[:], warnings.showwarning = state  # type: ignore[index]


def _builtins() -> dict[str, Any]:
    """Return Python's own functions; how own modules are imported is put back with them."""
    hidden = "__import__" if own_modules.current() is not None else ""
    return {name: value for name, value in vars(builtins).items() if name != hidden}


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of a module or a class as they were loaded, by name; read together."""

    loaded: dict[str, Any]
    read: Callable[[Any], tuple[Any, ...]]
    values: tuple[Any, ...]
    names: int | None  # of a class, whose new names hide inherited ones

    @classmethod
    def of(cls, where: Any) -> _Functions:
        members = {name: value for name, value in vars(where).items() if name not in _REPLACED_BY_TORCH}
        loaded = {name: one for name, one in members.items() if callable(one) and not isinstance(one, type)}
        names = len(vars(where)) if isinstance(where, type) else None
        return cls(loaded, operator.itemgetter(*loaded), tuple(loaded.values()), names)

    def replaced(self, where: Any) -> dict[str, Any]:
        """Return name -> what is there now, for those that changed; None for one that is gone."""
        now = vars(where)
        with contextlib.suppress(KeyError):
            if self.read(now) == self.values and self.names in (None, len(now)):
                return {}
        new = [] if self.names is None else [name for name, value in now.items() if callable(value)]
        names = dict.fromkeys([*self.loaded, *new])
        return {name: now.get(name) for name in names if now.get(name) is not self.loaded.get(name)}


def _replaced() -> dict[tuple[str, str], Any]:
    """Return the functions that are not those that were loaded: (holder, name) -> what is there now."""
    results: dict[tuple[str, str], Any] = {}
    for holder in _GUARDED:
        if (where := _holder(holder)) is None:
            continue
        if holder not in _AS_LOADED:
            _AS_LOADED[holder] = _Functions.of(where)
        replaced = _AS_LOADED[holder].replaced(where)
        results |= {(holder, name): value for name, value in replaced.items()}
    return results


def _holder(name: str) -> Any:
    """Return a module, or torch.Tensor; None where it is not loaded, or not yet."""
    if name.startswith("torch") and not hasattr(sys.modules.get("torch"), "default_generator"):
        return None
    return sys.modules["torch"].Tensor if name == "torch.Tensor" else sys.modules.get(name)


def _replace(functions: dict[tuple[str, str], Any]) -> None:
    """Set the functions that differ from those that were loaded; all others become what they were."""
    threads.alone()
    for holder, name in {**_replaced(), **functions}:
        where = _holder(holder)
        value = functions.get((holder, name), _AS_LOADED[holder].loaded.get(name))
        if value is not None:
            setattr(where, name, value)
        elif name in vars(where):
            delattr(where, name)


_PYTHON: dict[str, Aspect] = {
    "modules": (own_modules.current, own_modules.enter),  # before "path", which they have on them
    "folder": (_folder, _go),
    "environment": (lambda: dict(os.environ), _set_environment),
    "path": (lambda: list(sys.path), lambda folders: operator.setitem(sys.path, slice(None), folders)),
    "builtins": (_builtins, lambda names: vars(builtins).update(names)),
    "filters": (lambda: (list(warnings.filters), warnings.showwarning), _set_filters),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "hooks": (lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
    "garbage": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda to: locale.setlocale(locale.LC_ALL, to)),
    "decimal": (lambda: decimal.getcontext().copy(), lambda to: decimal.setcontext(to.copy())),
    "random": (random.getstate, random.setstate),
}


def _torch(torch: Any) -> dict[str, Aspect]:
    """Return whatever of torch changes numbers; the device first, for the others make tensors."""
    import numpy as np

    def set_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    def deterministic() -> tuple[bool, bool]:
        warn = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warn

    def set_deterministic(state: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(state[0], warn_only=state[1])

    def flushes() -> bool:
        return bool(np.float32(1e-40) * np.float32(1.0) == 0.0)

    readable: dict[str, Aspect] = {
        "torch.device": (torch.get_default_device, set_device),
        "torch.dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.grad": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.deterministic": (deterministic, set_deterministic),
        "torch.denormal": (flushes, torch.set_flush_denormal),
        "torch.random": (torch.default_generator.get_state, torch.default_generator.set_state),
    }
    for kind in ("cpu", "cuda"):
        readable[f"torch.autocast {kind}"] = _autocast(torch, kind)
    # the legacy way to set precisions and the new one cannot be read together; this sets both
    readable["torch.precision"] = _if_readable(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    )
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        readable[f"torch.cudnn {name}"] = _attribute(torch.backends.cudnn, name)
    if hasattr(torch.backends, "fp32_precision"):
        readable["torch.precision of all"] = _attribute(torch.backends, "fp32_precision")
    return readable


def _autocast(torch: Any, kind: str) -> Aspect:
    def read() -> tuple[bool, Any]:
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def write(state: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(kind, state[0])
        torch.set_autocast_dtype(kind, state[1])
        torch.clear_autocast_cache()  # of weights that were cast

    return read, write


def _attribute(where: Any, name: str) -> Aspect:
    return _if_readable(lambda: getattr(where, name), lambda value: setattr(where, name, value))


def _if_readable(read: Callable[[], Any], write: Callable[[Any], Any]) -> Aspect:
    """Return an aspect that is None where torch does not let it be read, and then is not set."""

    def value_or_none() -> Any:
        with contextlib.suppress(RuntimeError):
            return read()
        return None

    return value_or_none, lambda value: value is None or write(value)


def new_torch() -> State:
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


def same(value: Any, other: Any) -> bool:
    """Return whether two values of a state are equal."""
    if hasattr(value, "equal"):  # a tensor
        return bool(value.equal(other))
    if isinstance(value, tuple) and len(value) == 5:  # NumPy's random numbers
        return value[2:] == other[2:] and bool((value[1] == other[1]).all())
    return bool(value == other)
