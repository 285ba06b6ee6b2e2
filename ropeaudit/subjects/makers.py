"""Subjects to be: what is audited, before a case gives it a RoPE setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ropeaudit.errors import UsageError
from ropeaudit.formats import Format
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated


@dataclass(frozen=True, slots=True)
class Maker:
    """A subject in a dtype. make: from the RoPE setting and the position axes. stages: stage -> format.

    layout: the one in which it is audited unless another is asked for; None where it has no preference.
    """

    name: str
    dtype: Format
    make: Callable[[RopeSetting, Axes | None], Subject]
    stages: Mapping[str, str]
    layout: Layout | None = None


def called(name: str, dtype: Format) -> Maker:
    """Return the maker of an implementation that is called. Raises: UnknownName, MissingPackage."""
    from ropeaudit.subjects import third_party  # in-function: most audits need neither
    from ropeaudit.subjects.called import Called

    implementation = third_party.implementation(name)

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        if axes is not None:
            raise UsageError(f"--impl {name} has one position axis; leave out --mrope")
        return Called(implementation, setting, dtype)

    return Maker(name, dtype, make, {"input": dtype.name}, implementation.layouts[0])


def emulated(recipe: Resolved) -> Maker:
    """Return the maker of a recipe that NumPy executes."""

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        return Emulated(recipe, setting, axes)

    return Maker(recipe.recipe.name, recipe.dtype, make, recipe.stages())
