"""Code that others wrote, called with patience but not for ever, and without its prints in the report."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any

from ropeaudit.errors import UsageError

_NAME = "ropeaudit-calls"
LIMIT = 120.0  # seconds that one call may take


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
            except BaseException as error:  # sys.exit in a module is no reason to stop
                future.set_exception(error)


_LOCK = threading.RLock()
_WORKERS: list[_Worker] = []


def patiently(function: Callable[[], Any], what: str) -> Any:
    """Return what `function` returns, or raise what it raises; what it prints goes to stderr.

    One call at a time, in a thread of its own, so that a call that never ends can be left behind.
    what: its name in the message. Raises: UsageError after `LIMIT` seconds; RuntimeError for sys.exit.
    """
    if threading.current_thread().name == _NAME:  # one patient call inside another
        return function()
    with _LOCK, contextlib.redirect_stdout(sys.stderr):
        if not _WORKERS:
            _WORKERS.append(_Worker())
        future: Future[Any] = Future()
        _WORKERS[0].tasks.put((future, function))
        try:
            return future.result(LIMIT)
        except Late:
            if future.done():
                raise
            _WORKERS.clear()
            raise UsageError(f"{what} has not returned after {LIMIT:g} s; give one that does") from None
        except (SystemExit, GeneratorExit) as stop:
            raise RuntimeError(f"it calls sys.exit({stop})") from None
