"""Random numbers of foreign code: every call starts from the same seed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

_number: ContextVar[int] = ContextVar("number", default=0)


def number() -> int:
    """Return the seed that calls start from in this context."""
    return _number.get()


@contextlib.contextmanager
def other(seed: int) -> Iterator[None]:
    """Within the block, start calls from another seed."""
    token = _number.set(seed)
    try:
        yield
    finally:
        _number.reset(token)


def begin(seed: int) -> None:
    """Seed Python's, NumPy's and torch's random numbers; torch is not imported for it."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 others use it
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Restore random numbers, gradient mode, default dtype and threads of torch after the block.

    Within it torch has one thread: its calls are small, and threads that wait for each other cost several
    times as much. Libraries that are not loaded are not imported for it; other side effects of code remain.
    """
    torch: Any = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    loaded = hasattr(torch, "default_generator")
    if loaded:
        of_torch = torch.default_generator.get_state(), torch.is_grad_enabled(), torch.get_default_dtype()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if loaded:
            torch.default_generator.set_state(of_torch[0])
            torch.set_grad_enabled(of_torch[1])
            torch.set_default_dtype(of_torch[2])
            torch.set_num_threads(threads)
