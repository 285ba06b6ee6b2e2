"""Usual faults of code that rotates, as what they make of the positions or of the setting.

Letters: s positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions

FROM_0 = "positions from 0, as where the offset is left out"


class Fault(NamedTuple):
    """A known way to be wrong, in words: the positions (s,) that it takes for those that it is given."""

    text: str
    seen: Callable[[Positions], Positions]
    setting: RopeSetting


def faults(setting: RopeSetting, first: int | None = None) -> Iterator[Fault]:
    """Yield the known faults; first: the first of the given positions from which on it is wrong, counted."""
    other: Layout = "interleaved" if setting.layout == "half" else "half"
    yield Fault(f"{other} pairs", lambda at: at, replace(setting, layout=other))
    for text, seen in _maps(first):
        yield Fault(text, seen, setting)


def _maps(first: int | None) -> Iterator[tuple[str, Callable[[Positions], Positions]]]:
    yield "no rotation", np.zeros_like
    yield "positions one too high", lambda at: at + 1
    yield "positions one too low", lambda at: at - 1
    yield "the other direction", lambda at: -at
    yield "rotated twice", lambda at: 2 * at
    yield "positions in reverse order", lambda at: at[::-1]
    yield FROM_0, lambda at: at - at[:1]
    yield "every position taken for the first", lambda at: np.full_like(at, at[0])
    for bits in (8, 16):
        yield f"positions held in int{bits}", functools.partial(_signed, 2**bits)
    for power in range(4, 21):
        size = 2**power
        yield f"positions that wrap at {size}", functools.partial(_wrapped, size)
        yield f"a table that ends at position {size - 1}", functools.partial(np.minimum, size - 1)
        yield f"positions that restart every {size}", functools.partial(_restarted, size)
    if first is not None and first > 1:
        yield f"positions that restart every {first}", functools.partial(_restarted, first)
        yield f"positions that stop after {first}", lambda at: np.minimum(at, at[0] + first - 1)


def _signed(size: int, at: Positions) -> Positions:
    return (at + size // 2) % size - size // 2


def _wrapped(size: int, at: Positions) -> Positions:
    return at % size


def _restarted(size: int, at: Positions) -> Positions:
    positions: Positions = at[0] + (at - at[0]) % size
    return positions
