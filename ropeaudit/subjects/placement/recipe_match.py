"""Which known recipe gives exactly what a call returned, for q and k, all heads and batch elements.

Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import allowance, exact_rotation, likeness
from ropeaudit.subjects.placement.likeness import RecipeGroup

_CLEAR = 0.3  # a recipe is at most this share as far away as the exact rotation
_MOST = 3  # recipes that are tried, the nearest
_NEAREST_POSITIONS = 32  # of a call, the last ones, by which recipes are ranked


@dataclass(frozen=True, slots=True)
class CalledBlock:
    """One call and what it returned: positions (s,) as shifted, q and k as given and as rotated (b, h, s, d).

    batch_step: by how much the positions of a batch element are higher than those of the one before.
    """

    at: Positions
    given: tuple[FloatArray, FloatArray]
    rotated: tuple[FloatArray, FloatArray]
    batch_step: int = 0

    def rows(self) -> Positions:
        """Return the positions of each batch element. Shapes: -> (b, s)."""
        return self.at + self.batch_step * np.arange(len(self.given[0]))[:, None]


def nonfinite_recipes(block: CalledBlock, setting: RopeSetting, dtype: Format) -> tuple[str, bool]:
    """Return, in words, the recipes that overflow everywhere too, and whether there are any."""
    x = block.given[0][0, 0]
    names = [
        name
        for group in likeness.groups(dtype)
        if not np.isfinite(_emulated(group, x, block.at, setting)[:, : setting.rotary_dim]).any()
        for name in group.names
    ]
    return f"nan or inf, as {', '.join(names)}" if names else "nan or inf", bool(names)


def explaining_recipe(block: CalledBlock, setting: RopeSetting, dtype: Format) -> RecipeGroup | None:
    """Return the recipe that gives what was returned for all of q and k; None where none does."""
    if block.batch_step:
        return None
    window = slice(max(0, block.at.size - _NEAREST_POSITIONS), block.at.size)  # where errors are largest
    near: list[tuple[float, RecipeGroup]] = []
    vectors = [(x[0, 0][window], y[0, 0][window]) for x, y in zip(block.given, block.rotated, strict=True)]
    from_exact = max(_distance(y, exact_rotation.rotated(x, block.at[window], setting)) for x, y in vectors)
    for group in likeness.variants(dtype):
        distance = max(_distance(y, _emulated(group, x, block.at[window], setting)) for x, y in vectors)
        if distance <= _CLEAR * from_exact or (np.isinf(from_exact) and distance < np.inf):
            near.append((distance, group))
    near.sort(key=lambda pair: pair[0])
    return next((group for _, group in near[:_MOST] if explains(group, block, setting, dtype)), None)


def explains(group: RecipeGroup, block: CalledBlock, setting: RopeSetting, dtype: Format) -> bool:
    """Return whether a recipe gives what was returned: to within a rounding or two of its own, everywhere."""
    recipe, at = group.resolved, block.at
    allowed = 2 * (allowance.phase_error(recipe, setting, at) + allowance.rounding_error(recipe, setting))
    for x, y in zip(block.given, block.rotated, strict=True):
        for vector, output in zip(x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:]), strict=True):
            emulated = _emulated(group, vector, at, setting)
            nonfinite = ~np.isfinite(emulated)
            if not np.array_equal(nonfinite, ~np.isfinite(output)):
                return False
            z, w = (
                exact_rotation.complex_pairs(np.where(nonfinite, 0, y), setting) for y in (emulated, output)
            )
            size = np.abs(exact_rotation.complex_pairs(vector, setting)) + 4 * dtype.smallest_subnormal
            if (np.abs(z - w) > allowed * size).any():
                return False
    return True


def _emulated(group: RecipeGroup, x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    subject = Emulated(group.resolved, setting)
    return subject.rotate(round_to(x, subject.input), subject.table(at, 0))


def _distance(x: FloatArray, other: FloatArray) -> float:
    """Return the RMS distance; what is nonfinite in both does not count, inf where it is in one."""
    nonfinite = ~np.isfinite(x)
    if not np.array_equal(nonfinite, ~np.isfinite(other)):
        return float("inf")
    return likeness.rms_difference(np.where(nonfinite, 0, x), np.where(nonfinite, 0, other))
