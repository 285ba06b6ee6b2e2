"""A table of frequencies, or of cos and sin, in float64, whatever it was read from.

Letters: n positions, p pairs, c columns: p, or 2p where every pair stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput

Array = NDArray[np.float64]


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
        frequencies, cos, sin = (
            None if part is None else self._folded(part, pairs)
            for part in (self.frequencies, self.cos, self.sin)
        )
        return replace(self, frequencies=frequencies, cos=cos, sin=sin)

    def _folded(self, part: Array, pairs: int) -> Array:
        columns = part.shape[-1]
        if columns == pairs:
            return part
        if columns != 2 * pairs:
            raise BadInput(
                f"{self.spec!r}: {self.name} has {columns} columns and the setting has {pairs} "
                f"pairs; give --head-dim or --rotary-dim {2 * columns}, or {columns} if each stands twice"
            )
        for first, second in (np.split(part, 2, axis=-1), (part[..., ::2], part[..., 1::2])):
            if np.array_equal(first, second, equal_nan=True):
                return first
        raise BadInput(
            f"{self.spec!r}: the {columns} columns of {self.name} repeat {pairs} pairs neither in "
            f"halves nor side by side; give one column a pair, or --rotary-dim {2 * columns}"
        )
