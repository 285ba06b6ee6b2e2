"""How far scores may drift: as far as those of the recipe that code claims to follow, or that it resembles.

A recipe that code resembles is a yardstick only where its formats are right, so that no pair may be off by
more than right code explains: a cast table is not made right by being known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit import bounds
from ropeaudit.bounds import Bound
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import allowance, likeness
from ropeaudit.subjects.placement.likeness import RecipeGroup

MASK = "full"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The recipes whose largest bound and prediction count, and what they are, in words."""

    recipes: tuple[Resolved, ...]
    text: str

    def limits(self, code: CodeUnderTest, inputs: Inputs, offsets: Sequence[int]) -> list[Bound]:
        """Return the bound and the prediction at each offset; scores are formed in float64."""
        subjects = [Emulated(recipe, code.setting) for recipe in self.recipes]
        cells = [(subject, offset) for offset in offsets for subject in subjects]
        of_cells, count = bounds.bounds(cells, inputs, MASK), len(subjects)
        parts = [of_cells[start : start + count] for start in range(0, len(of_cells), count)]
        return [Bound(max(one.maximum for one in part), max(one.rms for one in part)) for part in parts]


def yardstick(code: CodeUnderTest, resembled: RecipeGroup | None) -> Yardstick:
    """Return what the drift of code is compared with.

    resembled: the recipe that its numbers are of; None where none is, or where pairs are out of place.
    """
    if code.claimed is not None:
        exact_scores = {"accumulate": "fp64", "score": "fp64"}
        recipe = code.claimed.recipe.changed(exact_scores).resolve(code.dtype)
        return Yardstick((recipe,), f"recipe {code.claimed.recipe.name}, as claimed")
    if resembled is not None and _right(resembled.resolved, code):
        return Yardstick((resembled.resolved,), f"{resembled}, which it resembles")
    right = [group.resolved for group in likeness.groups(code.dtype) if _right(group.resolved, code)]
    return Yardstick(tuple(right), f"the coarsest right recipe in {code.dtype}")


def _right(recipe: Resolved, code: CodeUnderTest) -> bool:
    """Return whether a recipe allows no pair a larger error than right code does, at any position."""
    at, rule = np.unique([0, 1, code.up_to // 2, code.up_to - 1]), allowance.careful(code.dtype)
    most = allowance.allowed(rule, code.setting, at) * (1 + 2.0**-40)
    return bool((allowance.allowed(recipe, code.setting, at) <= most).all())
