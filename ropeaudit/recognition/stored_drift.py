"""What stored frequencies or tables do to scores by themselves: the drift expected of random q and k.

Letters: n positions, p pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance


def drifts(dump: Dump, setting: RopeSetting, far: int = FAR) -> tuple[float | None, float | None]:
    """Return the drift over `NEAR` causal tokens, and at a distance of `far`; None where there are no rows.

    For independent Gaussian q and k, a pair rotated by the points of a table instead of the exact ones adds
    |their difference|² to the mean square, and every other dim nothing. Without rounding of q, k.
    """
    factor = attention_factor(setting.scaling)  # once in the table of q and once in that of k
    if dump.cos is not None and dump.sin is not None:  # a table has no further rows
        rows = min(NEAR, len(dump.cos))
        at, points = np.arange(rows), (dump.cos + 1j * dump.sin)[:rows]
    else:
        rows, at = NEAR, np.append(np.arange(NEAR), far)
        with np.errstate(invalid="ignore", over="ignore"):  # what is stored may be inf, and then it is nan
            points = factor * np.exp(1j * np.mod(at[:, None] * np.asarray(dump.frequencies), 2 * np.pi))
    cos, sin = distance_table(at.astype(np.float64), setting)
    exact = cos[0] + 1j * sin[0]

    def squares(row: int, since: int) -> Any:
        """Return those of what scores of a row with the rows before it are off by."""
        pairs = points[row] * np.conj(points[:since]) - exact[row] * np.conj(exact[:since])
        return np.sum(np.abs(pairs) ** 2)

    def drift(total: Any, count: float) -> float:
        """Return the root of a mean over pairs of rows, relative to that of exact scores, with all dims."""
        share = setting.rotary_dim / setting.head_dim
        mean = total / count / setting.pairs * share
        return float(np.sqrt(mean / (factor**4 * share + (1 - share))))

    near = sum(squares(m, m + 1) for m in range(rows))  # each distance as often as in a causal sequence
    return (
        drift(near, rows * (rows + 1) / 2) if rows > 1 else None,
        drift(squares(NEAR, 1), 1) if at.size > rows else None,
    )
