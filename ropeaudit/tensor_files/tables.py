"""A table of frequencies, or of cos and sin, in float64, whatever it was read from.

Letters: n positions, p pairs, c columns: p, or 2p where every pair stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput

Array = NDArray[np.float64]
_FEWEST = 8  # rows or columns of which one may be damaged


@dataclass(frozen=True, slots=True)
class Dump:
    """What a file holds, in float64, exactly as stored: frequencies (c,), or cos and sin (n, c).

    inverse: the frequencies are stored as their inverses, whose values a cast has rounded. angles: angles are
    stored, of which cos and sin were taken.
    """

    spec: str
    name: str
    frequencies: Array | None = None
    cos: Array | None = None
    sin: Array | None = None
    inverse: bool = False
    angles: bool = False

    def folded(self, pairs: int) -> Dump:
        """Return the dump with one column a pair, where each stands twice: in halves or side by side.

        Raises: BadInput if the columns are not those of `pairs` pairs.
        """
        return self.twice(pairs)[0]

    def twice(self, pairs: int) -> tuple[Dump, Dump]:
        """Return the dump with the first column of each pair, and with the second; equal of single ones.

        The columns of a pair are equal in most rows, or most pairs have equal ones: some may be damaged.

        Raises: BadInput if the columns are not those of `pairs` pairs.
        """
        parts = [
            (None, None) if part is None else self._halves(part, pairs)
            for part in (self.frequencies, self.cos, self.sin)
        ]
        first, second = (
            replace(self, frequencies=frequencies, cos=cos, sin=sin)
            for frequencies, cos, sin in zip(*parts, strict=True)
        )
        return first, second

    def _halves(self, part: Array, pairs: int) -> tuple[Array, Array]:
        columns = part.shape[-1]
        if columns == pairs:
            return part, part
        if columns != 2 * pairs:
            raise BadInput(
                f"{self.spec!r}: {self.name} has {columns} columns and the setting has {pairs} "
                f"pairs; give --head-dim or --rotary-dim {2 * columns}, or {columns} if each stands twice"
            )
        splits = (np.split(part, 2, axis=-1), (part[..., ::2], part[..., 1::2]))
        for first, second in splits:
            if np.array_equal(first, second, equal_nan=True):
                return first, first
        for first, second in splits:
            if _mostly_equal(first, second):
                return first, second
        raise BadInput(
            f"{self.spec!r}: the {columns} columns of {self.name} repeat {pairs} pairs neither in "
            f"halves nor side by side; give one column a pair, or --rotary-dim {2 * columns}"
        )


def _mostly_equal(first: Array, second: Array) -> bool:
    """Return whether all but an eighth of the rows, or of the columns, are equal, of eight at least."""
    differs = (first != second) & ~(np.isnan(first) & np.isnan(second))
    axes = [differs] if differs.ndim == 1 else [differs.any(axis=1), differs.any(axis=0)]
    return any(one.size >= _FEWEST and np.count_nonzero(one) <= one.size // _FEWEST for one in axes)
