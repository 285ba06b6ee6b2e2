"""Modules whose cos is that of positions times frequencies, and whose sin is of other angles.

Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.features.module import outputs
from ropeaudit.reports.numbers import short
from ropeaudit.subjects.calling import forwards
from ropeaudit.subjects.calling.forwards import PROBE

_OFF = 0.05  # of cos at the first positions: what float32, and bfloat16 results, leave
_FEWEST = 2  # frequencies


def seen(module: Any, dtype: Any, device: str) -> str:
    """Return in words that a module returns such a cos, and how it was called; nothing where none does."""
    for call in forwards.possible(module, device):
        try:
            returned = call.run(module, 0, PROBE, dtype)
            off = _sin_off(returned)
        except Exception:  # noqa: S112  # whatever other people's code raises
            continue
        if off:
            return (
                f"{forwards.NOT_SEEN}: its cos is, and what is beside it is off from their sin by up to "
                f"{short(off)} at the first {PROBE} positions, called as {call.words}"
            )
    return ""


def _sin_off(returned: Any) -> float:
    """Return how far sin is off where cos alone is one of positions times frequencies; 0 where it is not."""
    for places in outputs.pairs_of_tables(outputs.tensors_of(returned), PROBE):
        try:
            cos, sin = places.planes(returned, PROBE)
        except (LookupError, ValueError):
            continue
        theta = _of_cos(cos)
        if theta is None:
            continue
        right = np.sin(np.arange(PROBE)[:, None] * theta)
        off = np.abs(np.where(np.isfinite(sin), sin, np.inf) - right)
        return float(off.max())
    return 0.0


def _of_cos(cos: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the frequencies (c,) of a table of cos (n, c); None where it is none."""
    if not np.isfinite(cos).all() or np.abs(cos[0] - 1).max() > 2.0**-6:
        return None
    at = np.arange(len(cos))[:, None]
    theta = np.arccos(np.clip(cos[1], -1, 1))
    # cos says little of slow angles at first: the latest position before a quarter of a rotation says more
    for column in range(theta.size):
        below = np.flatnonzero(cos[:, column] < 0.5)
        last = int(below[0]) if below.size else len(cos) - 1
        theta[column] = np.arccos(np.clip(cos[last, column], -1, 1)) / last
    near = np.abs(cos - np.cos(at * theta)).max() <= _OFF
    return theta if near and np.unique(np.round(theta, 4)).size >= _FEWEST else None
