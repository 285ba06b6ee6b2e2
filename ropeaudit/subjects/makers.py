"""Subjects to be: what is audited, before a case gives it a RoPE setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropeaudit.errors import UsageError
from ropeaudit.formats import Format
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.subjects.called import Implementation


@dataclass(frozen=True, slots=True)
class Maker:
    """A subject in a dtype. make: from the RoPE setting and the position axes. stages: stage -> format.

    layout: which one its code has, where it has to be found out. findings: of its code, as they come.
    """

    name: str
    dtype: Format
    make: Callable[[RopeSetting, Axes | None], Subject]
    stages: Mapping[str, str]
    layout: Callable[[RopeSetting], Layout] | None = None
    findings: Sequence[str] = ()


def implementation(name: str, order: str | None = None) -> Implementation:
    """Return what is called: the user's own code (module:name), or an entry of `ropeaudit list impls`.

    order: of the axes of own code, found out where it is None. Raises: UsageError, BadInput, MissingPackage.
    """
    if is_own(name):
        from ropeaudit.subjects import own  # in-function: most audits need neither

        return own.load(name, order)
    from ropeaudit.subjects import third_party

    return third_party.implementation(name)


def is_own(name: str) -> bool:
    """Tell whether a name is that of the user's code (module:name) rather than of an entry of a list."""
    return ":" in name or name.endswith(".py")


def called(one: Implementation, dtype: Format) -> Maker:
    """Return the maker of an implementation that is called."""
    from ropeaudit.subjects.called import Called

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        if axes is not None:
            raise UsageError(f"--impl {one.name} has one position axis; leave out --mrope")
        return Called(one, setting, dtype)

    detect = getattr(one, "fit", None)
    layout = (lambda setting: detect(setting).layout) if detect else None
    return Maker(one.name, dtype, make, {"input": dtype.name}, layout, getattr(one, "findings", ()))


def emulated(recipe: Resolved) -> Maker:
    """Return the maker of a recipe that NumPy executes."""

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        return Emulated(recipe, setting, axes)

    return Maker(recipe.recipe.name, recipe.dtype, make, recipe.stages())
