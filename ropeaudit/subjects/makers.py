"""Subjects to be: what is audited, before a case gives it a RoPE setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.formats import Format
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated

BACKENDS = ("numpy", "torch")  # what executes recipes


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


def torch_native(recipe: Resolved, device: str) -> Maker:
    """Return the maker of a recipe that torch executes on a device. Raises: UsageError if it is not there."""
    from ropeaudit.subjects import torch_numbers  # in-function: importing torch takes seconds
    from ropeaudit.subjects.torch_native import TorchNative

    place = torch_numbers.device(str(device))

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        return TorchNative(recipe, setting, axes, place)

    return Maker(recipe.recipe.name, recipe.dtype, make, recipe.stages())


def of_recipe(recipe: Resolved, backend: str, device: str | None) -> Maker:
    """Return the maker of a recipe on one of `BACKENDS`. Raises: UnknownName, UsageError."""
    if backend not in BACKENDS:
        raise UnknownName("backend", str(backend), BACKENDS)
    if backend == "torch":
        return torch_native(recipe, "cpu" if device is None else device)
    if device is not None:
        raise UsageError(f"--device {device} is where torch computes; add --backend torch")
    return emulated(recipe)
