"""Distances that are worth a row of a table."""

from __future__ import annotations

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
