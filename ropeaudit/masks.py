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
