"""What a long run does at the moment, in a few words for whoever waits for it."""

from __future__ import annotations

from contextvars import ContextVar

_now: ContextVar[str] = ContextVar("doing", default="")


def begin(text: str) -> None:
    """Say what is done from now on."""
    _now.set(text)


def now() -> str:
    """Return what is done at the moment; empty where nothing was said."""
    return _now.get()
