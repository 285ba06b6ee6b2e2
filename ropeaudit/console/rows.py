"""Gathering rows with progress, and with Ctrl-C at a safe point.

A Ctrl-C in the middle of a hand-over between threads might hang, so the first one waits for a safe point. A
SIGTERM, by which batch systems announce an end, and a SIGHUP of a terminal that is closed are heard like one.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeVar

from ropeaudit.console.progress import Progress

T = TypeVar("T")


def gathered(
    run: Callable[[Callable[[float], None]], Iterable[T]],
    quiet: bool,
    total: int = 0,
    proportional: bool = True,
) -> tuple[list[T], bool]:
    """Return all that `run` yields, and whether the user broke it off.

    run takes a function that gets the share that is done, from 0 to 1. total: how many rows will come.
    proportional: whether that share is proportional to work.
    """
    progress, results = Progress(quiet, total, proportional=proportional), []
    try:
        with held_back() as interrupts:

            def on_progress(share: float) -> None:
                interrupts.check()
                progress(share)

            for row in run(on_progress):
                results.append(row)
                progress.rows = len(results)
    except KeyboardInterrupt:
        return results, True
    finally:
        progress.clear()
    return results, False


class Interrupts:
    """Remembers the first signal that ends a run until `check` is called; a second one is not held back."""

    def __init__(self) -> None:
        """Begin with none."""
        self.pending = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if one is pending."""
        if self.pending:
            raise KeyboardInterrupt


@contextlib.contextmanager
def held_back() -> Iterator[Interrupts]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back within the block; outside the main thread nothing is changed."""
    interrupts = Interrupts()
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    heard = [getattr(signal, name) for name in names if hasattr(signal, name)]
    heard = [one for one in heard if signal.getsignal(one) != signal.SIG_IGN]
    try:
        before = {one: signal.signal(one, interrupts.handle) for one in heard}
    except ValueError:  # not the main thread
        yield interrupts
        return
    try:
        yield interrupts
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
