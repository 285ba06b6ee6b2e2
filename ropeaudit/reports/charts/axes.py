"""Distances that are worth a row of a table or a point of a curve."""

from __future__ import annotations

import math

import numpy as np

_WIDE = 20  # largest over smallest from which on distances are logarithmic


def is_wide(first: int, last: int) -> bool:
    """Return whether distances from `first` to `last` need a logarithmic axis."""
    return last >= _WIDE * max(first, 1)


def round_values(first: int, last: int) -> list[int]:
    """Return a few round distances from `first` to `last`, both included: the rows of a table.

    1, 2, 5, 10, ... over a wide range, 17 evenly spaced ones over a narrow one.
    >>> round_values(0, 50)
    [0, 1, 2, 5, 10, 20, 50]
    """
    if is_wide(first, last):
        steps = [digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5)]
        values = [first, *(step for step in steps if first < step < last), last]
    else:
        values = [first + round((last - first) * part / 16) for part in range(17)]
    return list(dict.fromkeys(values))


def dense(first: int, last: int, count: int = 512) -> list[int]:
    """Return about `count` distances: those of a curve, and evenly spaced ones of the farther half."""
    parts = np.linspace(0.0, 1.0, count)
    if is_wide(first, last):
        low, high = math.log1p(first), math.log1p(last)
        curved = np.rint(np.expm1(low + (high - low) * parts))
    else:
        curved = np.rint(first + (last - first) * parts)
    far = np.rint(np.linspace((first + last) / 2, last, count // 4))
    inner = (min(max(int(x), first), last) for x in np.concatenate([curved, far]))
    return sorted({first, *inner, last})
