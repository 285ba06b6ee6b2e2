"""Which keys a query sees. Letters: s positions."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = Literal["causal", "full"]
MASKS: tuple[str, ...] = get_args(Mask)


def count(mask: Mask, seq_len: int) -> int:
    """Return how many scores of a head are seen."""
    return seq_len * (seq_len + 1) // 2 if mask == "causal" else seq_len * seq_len


def columns(mask: Mask, rows: slice, seq_len: int) -> int:
    """Return how many keys, counted from the first, some query of `rows` sees."""
    return min(rows.stop, seq_len) if mask == "causal" else seq_len


def hidden(mask: Mask, rows: slice, cols: slice) -> NDArray[np.bool_] | None:
    """Return True where a tile's query does not see the key; None where it sees all of them.

    Shapes: -> (rows, columns).
    """
    if mask == "full" or cols.stop - 1 <= rows.start:
        return None
    keys = np.arange(cols.start, cols.stop)
    return keys[None, :] > np.arange(rows.start, rows.stop)[:, None]


def counts(mask: Mask, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many scores are seen between blocks of queries and blocks of keys that share edges.

    edges: rising, b + 1 of them. Shapes: (b + 1,) -> (b, b).
    """
    before = _before(mask, edges[:, None], edges[None, :])
    return np.asarray(np.diff(np.diff(before, axis=0), axis=1))


def _before(mask: Mask, queries: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many scores are seen of the first `queries` queries and the first `keys` keys."""
    if mask == "full":
        return np.asarray(queries * keys)
    some = np.minimum(queries, keys)
    return np.asarray(some * (some + 1) // 2 + (queries - some) * some)
