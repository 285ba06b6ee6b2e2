"""Masks: which keys a query sees. No other file interprets them.

causal: query m sees the keys n <= m. full: all of them. window:N: the last N of them, m - N < n <= m, so that
window:1 is the diagonal, and N from seq_len up is causal.
Letters: s positions, r and c rows (queries) and columns (keys) of a tile, p columns of a sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import UnknownName, UsageError

Mask: TypeAlias = str
MASKS: tuple[str, ...] = ("causal", "full", "window:N")

Ints: TypeAlias = NDArray[np.int64]
Values = TypeVar("Values", bound=NDArray[Any])

_ALL = 2**53  # more than there are positions


def check(text: str) -> None:
    """Raise UnknownName or UsageError unless `text` is a mask: causal, full or window:N."""
    kind, colon, width = str(text).partition(":")
    if kind != "window":
        if text not in ("causal", "full"):
            raise UnknownName("mask", str(text), MASKS)
    elif not re.fullmatch("[1-9][0-9]{0,14}", width):
        seen = f"{width!r} is not a whole number from 1 up" if colon else "it has no width"
        raise UsageError(f"--mask {text!r}: {seen}; give how many keys a query sees, as in window:4096")


def _width(mask: Mask) -> int:
    """Return the largest number of keys, up to its own position, that a query sees."""
    return int(mask.partition(":")[2] or _ALL)


def count(mask: Mask, seq_len: int) -> int:
    """Count the scores of a head that a mask lets through."""
    if mask == "full":
        return seq_len * seq_len
    width = min(_width(mask), seq_len)
    return seq_len * width - width * (width - 1) // 2


def score_indices(mask: Mask, seq_len: int, numbers: Ints) -> tuple[Ints, Ints]:
    """Return query and key of visible scores, numbered row by row. Shapes: (n,) -> two of (n,)."""
    if mask == "full":
        return numbers // seq_len, numbers % seq_len
    width = min(_width(mask), seq_len)
    corner = width * (width + 1) // 2  # the scores of the first queries, which see fewer keys
    inside = np.minimum(numbers, corner - 1)
    short = np.floor(np.sqrt(2.0 * inside + 0.25) - 0.5).astype(np.int64)
    for _ in range(2):  # the square root may be off by one
        short -= short * (short + 1) // 2 > inside
        short += (short + 1) * (short + 2) // 2 <= inside
    later, place = np.divmod(np.maximum(numbers - corner, 0), width)
    first = numbers < corner
    queries = np.where(first, short, width + later)
    return queries, np.where(first, inside - short * (short + 1) // 2, queries - width + 1 + place)


def key_range(mask: Mask, queries: Ints, seq_len: int) -> tuple[Ints, Ints]:
    """Return each query's first and last key. Shapes: (n,) -> two of (n,)."""
    last = np.full_like(queries, seq_len - 1) if mask == "full" else queries
    return np.maximum(queries - _width(mask) + 1, 0), last


def columns(mask: Mask, rows: slice, seq_len: int) -> slice:
    """Return the keys from the first to the last that some query of `rows` sees."""
    last = seq_len if mask == "full" else min(rows.stop, seq_len)
    return slice(max(0, rows.start - _width(mask) + 1), last)


def panels(mask: Mask, seq_len: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the pairs of panels with visible scores, row by row."""
    cuts = [slice(i, min(i + size, seq_len)) for i in range(0, seq_len, size)]
    for rows in cuts:
        seen = columns(mask, rows, seq_len)
        for cols in cuts[seen.start // size :]:
            if cols.start >= seen.stop:
                break
            yield rows, cols


def tiles(
    mask: Mask,
    rows: slice,
    cols: slice,
    size: int,
    seq_len: int,
) -> Iterator[slice]:
    """Yield the keys within `cols` that some query of `rows` sees, `size` at a time."""
    seen = columns(mask, rows, seq_len)
    first, last = max(cols.start, seen.start), min(cols.stop, seen.stop)
    yield from (slice(start, min(start + size, last)) for start in range(first, last, size))


def hidden(mask: Mask, rows: slice, cols: slice) -> NDArray[np.bool_] | None:
    """Return where a tile's query does not see the key, (r, c); None where it sees all."""
    width = _width(mask)
    later, outside = cols.stop - 1 > rows.start, cols.start <= rows.stop - 1 - width
    if mask == "full" or not (later or outside):
        return None
    keys = np.arange(cols.start, cols.stop)[None, :]
    queries = np.arange(rows.start, rows.stop)[:, None]
    if not outside:
        return keys > queries
    return (keys > queries) | (keys <= queries - width)


def hide(values: Values, hidden: NDArray[np.bool_] | None, value: float = 0.0) -> Values:
    """Set hidden elements to `value` in place; return the array."""
    if hidden is not None:
        np.copyto(values, value, where=hidden)
    return values


def counts(mask: Mask, queries: tuple[Ints, Ints], keys: tuple[Ints, Ints]) -> Ints:
    """Return how many scores are seen between blocks, each from a first position to an end."""
    (first, last), (left, right) = queries, keys
    return np.asarray(
        _count_before(mask, last, right)
        - _count_before(mask, first, right)
        - _count_before(mask, last, left)
        + _count_before(mask, first, left)
    )


def _count_before(mask: Mask, queries: Ints, keys: Ints) -> Ints:
    """Return how many scores of the first queries and keys are seen."""
    if mask == "full":
        return np.asarray(queries * keys)
    return _count_below(queries, keys) - _count_below(np.maximum(queries - _width(mask), 0), keys)


def _count_below(queries: Ints, keys: Ints) -> Ints:
    """Return how many scores of the first queries and keys have n <= m."""
    square = np.minimum(queries, keys)
    return np.asarray(square * (square + 1) // 2 + (queries - square) * square)


def reach(mask: Mask, seq_len: int) -> int:
    """Return the largest distance |m - n| that is seen."""
    return min(_width(mask), seq_len) - 1
