"""What a long run does at the moment, in a few words for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_now: ContextVar[str] = ContextVar("doing", default="")


def begin(text: str) -> None:
    """Say what is done from now on."""
    _now.set(text)


def now() -> str:
    """Return what is done at the moment; empty where nothing was said."""
    return _now.get()


def part(progress: Callable[[float], None], begin: float, end: float) -> Callable[[float], None]:
    """Return what takes the share that is done of a part, which is from `begin` to `end` of the whole.

    >>> part(print, 0.5, 1.0)(0.5)
    0.75
    """
    return lambda share: progress(begin + share * (end - begin))
