"""Ctrl-C at a safe point: never in the middle of a hand-over between threads, which might hang."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Remembers the first Ctrl-C until `check` is called; a second one is not held back."""

    def __init__(self) -> None:
        """Begin with none."""
        self.pending = False

    def hear(self, number: int, frame: FrameType | None) -> None:
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
    """Hold Ctrl-C back within the block; outside the main thread nothing is changed."""
    interrupts = Interrupts()
    try:
        before = signal.signal(signal.SIGINT, interrupts.hear)
    except ValueError:  # not the main thread
        yield interrupts
        return
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
