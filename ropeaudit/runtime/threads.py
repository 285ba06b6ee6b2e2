"""Threads of this process that share a computation, and reuse of their memory."""

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

SHORT = 512  # positions up to which one thread is as fast as two

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of options in glibc's malloc.h
_current = threading.local()
_TRIM_BYTES, _MMAP_BYTES = 2**26, 2**22  # the allocator keeps arrays of a tile, returns those of a panel


def useful_threads(threads: int, seq_len: int, short: int = SHORT) -> int:
    """Return how many threads speed up a sequence: one up to `short` positions.

    There two are no faster and take a third more CPU time, most of it in Python.
    """
    return 1 if seq_len <= short else threads


@contextlib.contextmanager
def mapping(threads: int) -> Iterator[Map]:
    """Yield a `map` that runs on so many threads; for one it is Python's own.

    BLAS is limited to one thread meanwhile. An error cancels the calls that have not started.
    """
    _keep_memory()
    with _blas().limit(limits=1, user_api="blas"):
        if threads == 1:
            yield map
            return
        from concurrent.futures import ThreadPoolExecutor  # in-function: it loads logging

        ended = threading.Event()
        with ThreadPoolExecutor(threads, initializer=setattr, initargs=(_current, "ended", ended)) as pool:
            try:
                yield pool.map
            except BaseException:
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def dropped() -> bool:
    """Return whether an error in another thread cancelled this thread's work."""
    ended: threading.Event | None = getattr(_current, "ended", None)
    return ended is not None and ended.is_set()


@functools.cache
def _blas() -> ThreadpoolController:
    """Find the BLAS libraries of this process, once: that takes as long as a small cell."""
    return ThreadpoolController()


@functools.cache
def _keep_memory() -> None:
    """Tell the allocator to reuse the memory of a tile's arrays, which saves time."""
    option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if option:
        option(_MMAP_THRESHOLD, _MMAP_BYTES)
        option(_TRIM_THRESHOLD, _TRIM_BYTES)
