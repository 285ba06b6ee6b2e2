"""How far scores may drift: as far as those of the recipe that code claims to follow, or that it resembles.

A recipe that code resembles is a yardstick only where its formats are right, so that no pair may be off by
more than right code explains: a cast table is not made right by being known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import Format
from ropeaudit.bounds import Bound
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, known_recipes, wording
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

MASK = "full"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The recipes whose largest bound and prediction count, and what they are, in words."""

    recipes: tuple[Resolved, ...]
    text: str

    def limits(
        self, setting: RopeSetting, inputs: Inputs, offsets: Sequence[int], mask: str = MASK
    ) -> list[Bound]:
        """Return the bound and the prediction at each offset; scores are formed in float64."""
        subjects = [Emulated(recipe, setting) for recipe in self.recipes]
        cells = [(subject, offset) for offset in offsets for subject in subjects]
        of_cells, count = bounds.bounds(cells, inputs, mask), len(subjects)
        parts = [of_cells[start : start + count] for start in range(0, len(of_cells), count)]
        return [Bound(max(one.maximum for one in part), max(one.rms for one in part)) for part in parts]


def yardstick(
    claimed: Resolved | None, resembled: RecipeGroup | None, setting: RopeSetting, dtype: Format, up_to: int
) -> Yardstick:
    """Return what the drift of code is compared with.

    resembled: the recipe that its numbers are of; None where none is, or where pairs are out of place.
    """
    if claimed is not None:
        exact_scores = {"accumulate": "fp64", "score": "fp64"}
        recipe = claimed.recipe.changed(exact_scores).resolve(dtype)
        return Yardstick((recipe,), f"recipe {claimed.recipe.name}, as claimed")
    at, rule = np.unique([0, min(1, up_to - 1), up_to // 2, up_to - 1]), allowance.careful(dtype)
    most = allowance.allowed(rule, setting, at) * (1 + 2.0**-40)

    def right(recipe: Resolved) -> bool:
        """Return whether a recipe allows no pair a larger error than right code does, at any position."""
        return bool((allowance.allowed(recipe, setting, at) <= most).all())

    if resembled is not None and right(resembled.resolved):
        return Yardstick(
            (resembled.resolved,), f"{wording.arithmetic(resembled.values())}, which it resembles"
        )
    every = [group.resolved for group in known_recipes.groups(dtype)]
    return Yardstick(tuple(filter(right, every)), f"the coarsest right recipe in {dtype}")
