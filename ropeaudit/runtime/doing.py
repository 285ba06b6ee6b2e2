"""What a long run does at the moment, and which share of it is done, for whoever waits for it.

Work says `step`; the listener is in a context variable, within a block. Only within
`heard` may a block cross a yield.
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
waiting: set[int] = set()  # threads that wait for an answer, which a signal may end
interrupted: Callable[[], None] = lambda: None  # noqa: E731  raises KeyboardInterrupt if one was held back
ended = False  # whether a signal ended the run: what is raised after that comes of it


def begin(text: str) -> None:
    """Say what is done from now on."""
    _now.set(text)


def now() -> str:
    """Return what is done at the moment; empty where nothing was said."""
    return _now.get()


def step(share: float) -> None:
    """Say the share done, 0 to 1, of the part in whose block this is called."""
    _listener.get()(share)


def listener() -> Listener:
    """Return what is told of the steps at the moment, for work that takes it as an argument."""
    return _listener.get()


@contextlib.contextmanager
def told(listener: Listener) -> Iterator[None]:
    """Tell a listener of the steps within the block."""
    before = _listener.get()
    _listener.set(listener)
    try:
        yield
    finally:
        _listener.set(before)


def unheard() -> contextlib.AbstractContextManager[None]:
    """Tell nobody of the steps within the block."""
    return told(lambda share: None)


def within(begin: float, end: float) -> contextlib.AbstractContextManager[None]:
    """Count steps in the block as of a part, from `begin` to `end` of the whole.

    >>> with told(print), within(0.5, 1.0):
    ...     step(0.5)
    0.75
    """
    return told(part(_listener.get(), begin, end))


def each(
    results: Iterable[T],
    block: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[T]:
    """Yield results, each computed in its own block, which ends before it is used.

    >>> def work():
    ...     step(0.5)
    ...     yield "a row"
    >>> list(each(work(), lambda: told(print)))
    0.5
    ['a row']
    """
    source = iter(results)
    while True:
        with block():
            one = next(source, _END)
        if one is _END:
            return
        yield one  # type: ignore[misc]


def heard(results: Generator[T, None, None], listener: Listener) -> Iterator[T]:
    """Yield results whose steps a listener is told, though blocks cross the yields within them.

    They are computed in a context of their own, so that two of them may be read in turns.

    >>> def work():
    ...     with within(0.0, 0.5):
    ...         yield "a row"
    ...         step(1.0)
    >>> list(heard(work(), print))
    0.5
    ['a row']
    """
    context = copy_context()
    context.run(_listener.set, listener)
    try:
        while (one := context.run(next, results, _END)) is not _END:
            yield one  # type: ignore[misc]
    finally:
        context.run(results.close)


def in_parts(works: Sequence[Iterable[T]]) -> Iterator[T]:
    """Yield the results of works in turn, the steps of each counted as of a part of equal size.

    >>> with told(print):
    ...     for _ in in_parts([(step(0.5) for _ in "a") for _ in "ab"]):
    ...         pass
    0.25
    0.75
    """
    for number, work in enumerate(works):
        ends = number / len(works), (number + 1) / len(works)
        yield from each(work, functools.partial(within, *ends))


def part(progress: Listener, begin: float, end: float) -> Listener:
    """Return what takes the share that is done of a part, which is from `begin` to `end` of the whole.

    >>> part(print, 0.5, 1.0)(0.5)
    0.75
    """
    return lambda share: progress(begin + share * (end - begin))
