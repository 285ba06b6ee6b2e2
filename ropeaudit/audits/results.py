"""Base classes of the results of public functions, which notebooks show as reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from ropeaudit.errors import required_packages

T = TypeVar("T")


class Result:
    """A result of a public function.

    report_module: the module with report(results, columns, metadata), and `by` if rows have several kinds.
    """

    __slots__ = ()
    report_module: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return its report as HTML, for notebooks."""
        return _report_html([self])


class Results(Iterator[T]):
    """An iterator over results, computed on demand; notebooks show those that remain."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source, self._computed = _checking_packages(source), deque[T]()

    def __next__(self) -> T:
        return self._computed.popleft() if self._computed else next(self._source)

    def close(self) -> None:
        """Stop the computation."""
        self._source.close()

    def _repr_html_(self) -> str | None:
        """Compute the remaining results, which stay in the iterator, and return their report."""
        self._computed.extend(self._source)
        results: list[Any] = list(self._computed)
        return _report_html(results) if results and isinstance(results[0], Result) else None


def _checking_packages(results: Iterator[T]) -> Generator[T, None, None]:
    """Yield results; a missing package may show at any of them."""
    with required_packages():
        yield from results


def _report_html(results: Sequence[Result]) -> str:
    html: str = import_module(results[0].report_module).report(results, None, {})._repr_html_()
    return html
