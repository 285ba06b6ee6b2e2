"""Which known recipe the numbers of called code resemble at an offset: a name for what it does.

Letters: h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.subjects.calling.implementation import Called
from ropeaudit.subjects.placement.likeness import RecipeGroup
from ropeaudit.subjects.placement.recipe_match import CalledBlock, explaining_recipe

_HEADS, _POSITIONS = 64, 256  # of q and k that are called with at most


def resembling(subject: Called, q: FloatArray, k: FloatArray, offset: int) -> RecipeGroup | None:
    """Return the recipe that gives what code returns to within its own roundings; None where none does.

    It is called at the last positions of q and k, shifted by the offset.
    Shapes: q (h, s, d), k (g, s, d).
    Raises: whatever the code raises.
    """
    length = min(q.shape[1], _POSITIONS)
    at = np.arange(q.shape[1] - length, q.shape[1], dtype=np.int64)
    sides = [
        round_to(x[None, :_HEADS, at], subject.dtype).astype(subject.dtype.carrier, copy=False)
        for x in (q, k)
    ]
    first, second = subject.rotator().rotate_both(sides[0], sides[1], at + offset)
    block = CalledBlock(at + offset, (sides[0], sides[1]), (first, second))
    return explaining_recipe(block, subject.setting, subject.dtype)
