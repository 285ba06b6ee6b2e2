"""A recipe on a RoPE setting: what it is, whatever executes it."""

from __future__ import annotations

from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import RopeSetting


class OfRecipe:
    """A resolved recipe and a RoPE setting; the engines that execute it inherit from this."""

    def __init__(self, recipe: Resolved, setting: RopeSetting, axes: Axes | None = None) -> None:
        """Keep the recipe, the setting and the position axes, if any; no arithmetic happens here."""
        self.axes = axes
        self.name = recipe.recipe.name
        self.recipe, self.setting = recipe, setting
        self.dtype, self.input = recipe.dtype, recipe.input
        self.accumulate, self.score = recipe.accumulate, recipe.score
        self.scale_after_store = recipe.recipe.scale_after_store
        self.narrowest = recipe.narrowest
        self.softmax, self.output = recipe.softmax, recipe.output

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return nothing: a recipe takes every position."""
        return ""

    def stages(self) -> dict[str, str]:
        """Return stage -> format name, then the switches that are not plain."""
        return self.recipe.stages() | self.recipe.switches()
