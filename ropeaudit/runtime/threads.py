"""Work side by side on the threads of this process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from threadpoolctl import ThreadpoolController

Map: TypeAlias = Callable[..., Iterator[Any]]


@contextlib.contextmanager
def mapping(threads: int) -> Iterator[Map]:
    """Yield a `map` that works on so many threads; on one it is Python's own, which hands nothing over.

    BLAS has one thread meanwhile. What has not begun when an error comes is dropped.
    """
    with _blas().limit(limits=1, user_api="blas"):
        if threads == 1:
            yield map
            return
        with ThreadPoolExecutor(threads) as pool:
            try:
                yield pool.map
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@functools.cache
def _blas() -> ThreadpoolController:
    """Look for the libraries of this process once: that takes as long as a small cell."""
    return ThreadpoolController()
