"""Progress of a long run: its current step in words, and the share that is done.

Work calls `step`; the listener is a context variable, set within a block. A block may cross a `yield` only
within `reported`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[float], None]

_now: ContextVar[str] = ContextVar("doing", default="")
_listener: ContextVar[Listener] = ContextVar("listener", default=lambda share: None)
_END = object()
waiting: set[int] = set()  # threads that wait for foreign code, which a signal may interrupt
interrupted: Callable[[], None] = lambda: None  # noqa: E731  raises KeyboardInterrupt if one was held back
ended = False  # whether a signal ended the run: later exceptions are its consequences


def begin(text: str) -> None:
    """Name the current step."""
    _now.set(text)


def now() -> str:
    """Return the name of the current step; empty without one."""
    return _now.get()


def step(share: float) -> None:
    """Report the share that is done, 0 to 1, of the part in whose block this is called."""
    _listener.get()(share)


def listener() -> Listener:
    """Return the current listener, for work that takes it as an argument."""
    return _listener.get()


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Report the steps within the block to a listener."""
    before = _listener.get()
    _listener.set(listener)
    try:
        yield
    finally:
        _listener.set(before)


def silently() -> contextlib.AbstractContextManager[None]:
    """Report the steps within the block to nobody."""
    return reporting_to(lambda share: None)


def within(begin: float, end: float) -> contextlib.AbstractContextManager[None]:
    """Scale the shares reported in the block to a part, from `begin` to `end` of the whole.

    >>> with reporting_to(print), within(0.5, 1.0):
    ...     step(0.5)
    0.75
    """
    return reporting_to(listener_of_part(_listener.get(), begin, end))


def each(
    results: Iterable[T],
    block: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[T]:
    """Yield results, each computed within a new block, which ends before the result is used.

    >>> def work():
    ...     step(0.5)
    ...     yield "a row"
    >>> list(each(work(), lambda: reporting_to(print)))
    0.5
    ['a row']
    """
    source = iter(results)
    while True:
        with block():
            result = next(source, _END)
        if result is _END:
            return
        yield result  # type: ignore[misc]


def reported(results: Generator[T, None, None], listener: Listener) -> Iterator[T]:
    """Yield the results of a generator whose blocks cross its yields, and report its steps.

    It runs in a context of its own, so that two generators may be read in turns.

    >>> def work():
    ...     with within(0.0, 0.5):
    ...         yield "a row"
    ...         step(1.0)
    >>> list(reported(work(), print))
    0.5
    ['a row']
    """
    context = copy_context()
    context.run(_listener.set, listener)
    try:
        while (result := context.run(next, results, _END)) is not _END:
            yield result  # type: ignore[misc]
    finally:
        context.run(results.close)


def in_parts(works: Sequence[Iterable[T]]) -> Iterator[T]:
    """Yield the results of several works in turn, each as a part of equal size of the progress.

    >>> with reporting_to(print):
    ...     for _ in in_parts([(step(0.5) for _ in "a") for _ in "ab"]):
    ...         pass
    0.25
    0.75
    """
    for number, work in enumerate(works):
        ends = number / len(works), (number + 1) / len(works)
        yield from each(work, functools.partial(within, *ends))


def listener_of_part(progress: Listener, begin: float, end: float) -> Listener:
    """Return a listener for a part of the work, which is from `begin` to `end` of the whole.

    >>> listener_of_part(print, 0.5, 1.0)(0.5)
    0.75
    """
    return lambda share: progress(begin + share * (end - begin))
