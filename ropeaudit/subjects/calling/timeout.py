"""Code that others wrote, called with patience but not for ever, and without its prints in the report."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextvars import ContextVar
from typing import Any

from ropeaudit.errors import UsageError
from ropeaudit.runtime import process_state, streams

_NAME = "ropeaudit-calls"
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

    One call at a time, in a thread of its own, so that a call that never ends can be left behind.
    what: its name in the message. endless: wait for ever.
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
        _WORKERS[0].tasks.put((future, called))
        try:
            return future.result(None if endless else LIMIT)
        except Late:
            if future.done():
                raise
            _WORKERS.clear()
            call.leave()
            raise UsageError(f"{what} has not returned after {LIMIT:g} s; give one that does") from None


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
