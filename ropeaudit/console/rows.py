"""Gathering rows with progress, and with Ctrl-C at a safe point.

A Ctrl-C in the middle of a hand-over between threads might hang, so the first one waits for a safe point.
SIGTERM and SIGHUP are heard like one.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeVar

from ropeaudit.door import process
from ropeaudit.runtime import doing

_LOG_SECONDS = 60.0  # between two lines of a log
_REDRAW_SECONDS = 0.1
_TENTH = 0.1  # share of the work: no guess is made before, for it starts up and fills caches


class Progress:
    """Call it with the share done, from 0 to 1."""

    def __init__(self, quiet: bool) -> None:
        """Begin; nothing is shown yet."""
        self.shown, self.silent, self.terminal = False, quiet, sys.stderr.isatty()
        doing.begin("")
        self.begun = self.last = time.monotonic()

    def __call__(self, share: float) -> None:
        """Show the share that is done and a guess of what is left, not too often."""
        now = time.monotonic()
        wait = _REDRAW_SECONDS if self.terminal else _LOG_SECONDS
        if self.silent or now - self.begun < 1.0 or now - self.last < wait or share <= 0:
            return
        self.last = now
        words = [f"{min(int(100 * share), 99):3}%"]  # 100 % is where nothing is left to wait for
        words += [doing.now()] if doing.now() else []
        if share >= _TENTH and not doing.now():  # of steps that are named nobody knows how long each takes
            words.append(f"{duration((now - self.begun) * (1 - share) / share)} to go")
        text = ", ".join(words)
        if self.terminal:
            import shutil  # in-function: it loads compressors

            width = shutil.get_terminal_size().columns - 1  # a longer line could not be taken away again
            sys.stderr.write(f"\r\033[K{f'ropeaudit: {text}'[:width]}")
            self.shown = True
        else:
            sys.stderr.write(f"ropeaudit: {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return a time in two units at most.

    >>> duration(9.4), duration(75), duration(7380)
    ('9 s', '1 min 15 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


T = TypeVar("T")


def gathered(
    run: Callable[[Callable[[float], None]], Iterable[T]],
    quiet: bool,
) -> tuple[list[T], bool]:
    """Return all that `run` yields, and whether the user broke it off.

    run takes a function that gets the share that is done, from 0 to 1.
    """
    progress, results = Progress(quiet), []
    try:
        with held_back() as check:

            def on_progress(share: float) -> None:
                check()
                progress(share)

            for row in run(on_progress):
                results.append(row)
    except KeyboardInterrupt:
        return results, True
    finally:
        progress.clear()
    return results, False


@contextlib.contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Hold the first Ctrl-C, SIGTERM or SIGHUP back until what this gives is called, which raises it.

    Waiting for code raises it too. A second one is not held back. Outside the main thread nothing is changed.
    """
    pending, of_code = False, process.interrupted

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        check()
        if threading.get_ident() in process.waiting:  # for code that may never return
            raise KeyboardInterrupt
        pending = True

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    heard = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread
        before = {one: signal.signal(one, handle) for one in heard if signal.getsignal(one) != signal.SIG_IGN}
    process.interrupted = check
    try:
        yield check
    finally:
        process.interrupted = of_code
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
