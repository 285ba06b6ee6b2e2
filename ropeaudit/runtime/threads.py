"""Work side by side on the threads of this process, with memory that stays with it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from threadpoolctl import ThreadpoolController

Map: TypeAlias = Callable[..., Iterator[Any]]

SHORT = 512  # positions

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of options in glibc's malloc.h
_here = threading.local()
_KEPT, _LARGE = 2**26, 2**22  # bytes: arrays of a tile are kept, those of a panel go back


def worth(threads: int, seq_len: int, short: int = SHORT) -> int:
    """Return how many of some threads a sequence is worth: up to `short` positions one.

    There two are no faster and take a third more CPU time: Python takes as long between.
    """
    return 1 if seq_len <= short else threads


@contextlib.contextmanager
def mapping(threads: int) -> Iterator[Map]:
    """Yield a `map` on so many threads; on one it is Python's own, unthreaded.

    BLAS has one thread meanwhile. What has not begun when an error comes is dropped.
    """
    _keep_memory()
    with _blas().limit(limits=1, user_api="blas"):
        if threads == 1:
            yield map
            return
        from concurrent.futures import ThreadPoolExecutor  # in-function: it loads logging

        ended = threading.Event()
        with ThreadPoolExecutor(threads, initializer=setattr, initargs=(_here, "ended", ended)) as pool:
            try:
                yield pool.map
            except BaseException:
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def dropped() -> bool:
    """Return whether an error elsewhere ended this thread's work."""
    ended: threading.Event | None = getattr(_here, "ended", None)
    return ended is not None and ended.is_set()


@functools.cache
def _blas() -> ThreadpoolController:
    """Look for the libraries of this process once: that takes as long as a small cell."""
    return ThreadpoolController()


@functools.cache
def _keep_memory() -> None:
    """Keep the memory of a tile's arrays for the next, which saves time."""
    option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if option:
        option(_MMAP_THRESHOLD, _LARGE)
        option(_TRIM_THRESHOLD, _KEPT)
