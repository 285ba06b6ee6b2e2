"""Code that others wrote, called with patience but not for ever, and without its prints in the report."""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

from ropeaudit.errors import UsageError
from ropeaudit.runtime import process_state, streams

T = TypeVar("T")
_NAME = "ropeaudit-calls"
_PATIENCE = 5e-3  # seconds that a thread waits for its turn
_NOT_TRACED = str(Path(__file__).parents[2])  # our own files
LIMIT = 120.0  # seconds that one call may take
_TOGETHER: ContextVar[bool] = ContextVar("together", default=False)


class _Worker:
    """A thread that calls functions, one after the other, and dies with the process."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name=_NAME).start()

    def _work(self) -> None:
        while True:
            future, function = self.tasks.get()
            try:
                future.set_result(function())
            except KeyboardInterrupt:  # it comes from the code: those of users are heard elsewhere
                future.set_exception(RuntimeError("it raises KeyboardInterrupt"))
            except BaseException as error:
                future.set_exception(error)


_LOCK = threading.RLock()
_WORKERS: list[_Worker] = []


def patiently(function: Callable[[], Any], what: str, endless: bool = False) -> Any:
    """Return what `function` returns, or raise what it raises; all around it is afterwards as it was.

    One call at a time, in a thread of its own, so that a call that never ends can be left behind, as it is by
    a Ctrl-C. what: its name in the message. endless: wait for ever.
    Raises: UsageError after `LIMIT` seconds; RuntimeError for sys.exit and the like.
    """
    home, call = process_state.home(), process_state.Call()

    def called() -> Any:
        with process_state.foreign(home, call):
            return function()

    if threading.current_thread().name == _NAME:  # one patient call inside another
        return function() if _TOGETHER.get() else called()
    with _LOCK, streams.aside():
        if not _WORKERS:
            _WORKERS.append(_Worker())
        future: Future[Any] = Future()
        try:
            _WORKERS[0].tasks.put((future, called))
            return future.result(None if endless else LIMIT)
        except KeyboardInterrupt:
            streams.leave_behind()
            raise
        except Late:
            if future.done():
                raise
            streams.leave_behind()
            _WORKERS.clear()
            call.leave()
            raise UsageError(f"{what} has not returned after {LIMIT:g} s; give one that does") from None


def at_once(functions: Sequence[Callable[[], T]], what: str) -> list[T]:
    """Return what functions return that run at the same time, a thread each, as one patient call.

    Behind each line of code that is neither ours nor torch's the other threads get a turn, so that they meet
    on every machine alike.
    Raises: as `patiently`; what the first of them raises.
    """

    def called() -> list[T]:
        futures: list[Future[T]] = [Future() for _ in functions]
        start, turns = threading.Barrier(len(functions)), _Turns(len(functions))

        def run(number: int, function: Callable[[], T], future: Future[T]) -> None:
            start.wait()
            sys.settrace(turns.traced(number))
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            finally:
                sys.settrace(None)
                turns.give(number, ended=True)

        threads = [
            threading.Thread(target=copy_context().run, args=(run, *each), daemon=True, name=_NAME)
            for each in zip(itertools.count(), functions, futures)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [future.result() for future in futures]

    return cast(list[T], together(called, what))


class _Turns:
    """Threads that run a line each in turn. A thread that waits for another's lock is not waited for long."""

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


def together(function: Callable[[], Any], what: str) -> Any:
    """Return what `function` returns, with all patient calls within it as one: no state is put back between.

    For many short calls in a row, each of which costs less than what is done around it.
    Raises: as `patiently`.
    """

    def called() -> Any:
        token = _TOGETHER.set(True)
        try:
            return function()
        finally:
            _TOGETHER.reset(token)

    return patiently(called, what)
