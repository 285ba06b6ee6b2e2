"""Results of the public functions, with reports that notebooks show."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from ropeaudit.errors import required_packages

T = TypeVar("T")


class Result:
    """What a function of this package returns, or yields several of.

    report_module: where report(results, columns, metadata) is, and with `by` where rows are of several kinds.
    """

    __slots__ = ()
    report_module: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return its report, as notebooks show it."""
        return _shown([self])


class Results(Iterator[T]):
    """Results, each computed on demand; a notebook shows those to come."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source, self._ready = _iterated(source), deque[T]()

    def __next__(self) -> T:
        return self._ready.popleft() if self._ready else next(self._source)

    def close(self) -> None:
        """Compute no more of them."""
        self._source.close()

    def _repr_html_(self) -> str | None:
        """Return the report of all that are to come, which can be iterated over as before."""
        self._ready.extend(self._source)
        ready: list[Any] = list(self._ready)
        return _shown(ready) if ready and isinstance(ready[0], Result) else None


def _iterated(results: Iterator[T]) -> Generator[T, None, None]:
    """Yield results, of which each may be the first that needs a package."""
    with required_packages():
        yield from results


def _shown(results: Sequence[Result]) -> str:
    """Return the report of results of one kind, as notebooks show it."""
    html: str = import_module(results[0].report_module).report(results, None, {})._repr_html_()
    return html
