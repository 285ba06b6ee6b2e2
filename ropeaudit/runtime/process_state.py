"""What other people's code may change around it: put back after each call, so that no row depends on another.

A state is what `now` reads: of Python, and of NumPy and torch where they are loaded.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ropeaudit.runtime.state_aspects import OF_THREADS, State, aspects, new_torch, same

__all__ = ["Call", "State", "at_home", "foreign", "home", "now", "put", "same", "seed", "seed_if_chance"]

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


def _says_nothing(error: BaseException) -> bool:
    """Return whether the text of an exception cannot be had: reading it raises, or leaves."""
    try:
        str(error)
    except BaseException:
        return True
    return False


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
def foreign(home: State | None = None, call: Call | None = None) -> Iterator[None]:
    """Run other people's code within the block, beginning with a state; afterwards all is as it was before.

    sys.exit, os._exit and other ways to leave become a RuntimeError; only a Ctrl-C stays one. A child that it
    forked ends here. call: the same call as seen by whoever waits for it, and may leave it.
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
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _says_nothing(error):
            raise RuntimeError(f"it raises {type(error).__name__}, whose text cannot be read") from None
        raise
    except SystemExit as stop:
        how = "os._exit" if isinstance(stop, _Left) else "sys.exit"
        raise RuntimeError(f"it calls {how}({'' if stop.code is None else stop.code})") from None
    except BaseException as stop:
        text = "" if _says_nothing(stop) else str(stop)
        raise RuntimeError(f"it raises {type(stop).__name__}: {text}".removesuffix(": ")) from None
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
