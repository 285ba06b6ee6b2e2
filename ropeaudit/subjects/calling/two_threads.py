"""Functions in threads that take turns line by line, alike on every machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 5e-3  # seconds that a thread waits for its turn
_NOT_TRACED = str(Path(__file__).parents[2])  # our own files


def at_once(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Return what functions return that run at the same time, a thread each.

    Behind each line of code that is neither ours nor torch's the other threads get a turn, so that they meet
    on every machine alike.
    Raises: what the first of them raises.
    """
    start, turns = threading.Barrier(len(functions)), _Turns(len(functions))

    def run(number: int, function: Callable[[], T]) -> T:
        start.wait()
        sys.settrace(turns.traced(number))
        try:
            return function()
        finally:
            sys.settrace(None)
            turns.give(number, ended=True)

    sys.excepthook = getattr(sys, "excepthook", None) or sys.__excepthook__  # else no thread begins
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(copy_context().run, run, place, one) for place, one in enumerate(functions)]
    return [future.result() for future in futures]


class _Turns:
    """Threads that run a line each in turn; one that waits for a lock is passed over."""

    def __init__(self, count: int) -> None:
        self.changed, self.turn, self.running = threading.Condition(), 0, set(range(count))

    def traced(self, number: int) -> Callable[[FrameType, str, Any], Any]:
        """Return the trace function of a thread."""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "call":
                path = frame.f_code.co_filename
                return None if path.startswith(_NOT_TRACED) or f"{os.sep}torch{os.sep}" in path else trace
            self.give(number)
            with self.changed:
                self.changed.wait_for(lambda: self.turn == number or self.running == {number}, _PATIENCE)
            return trace

        return trace

    def give(self, number: int, ended: bool = False) -> None:
        """Let the next thread have a turn."""
        with self.changed:
            self.running -= {number} if ended else set()
            later = sorted(self.running, key=lambda other: (other <= number, other))
            self.turn = later[0] if later else number
            self.changed.notify_all()
