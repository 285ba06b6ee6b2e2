"""Factories of subjects: what is audited, before a case gives it a RoPE setting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import ForeignError, RopeAuditError, UnknownName, UsageError, did
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import LAYOUTS, Axes
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject, Uncalled
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.code import Code

BACKENDS = ("numpy", "torch")  # what executes recipes


@dataclass(frozen=True, slots=True)
class SubjectFactory:
    """Makes a subject in a dtype from the RoPE setting and position axes. stages: stage -> format.

    findings: notes about its code, which grow. Either `code` or `recipe` is set.
    """

    name: str
    dtype: Format
    make: Callable[[RopeSetting, Axes | None], Subject]
    stages: Mapping[str, str]
    findings: Sequence[str] = ()
    environment: str = "none"
    code: Code | None = None
    recipe: Resolved | None = None


def implementation(
    name: str,
    order: str | None = None,
    changes: Mapping[str, str] | None = None,
    alone: bool = False,
    device: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Code:
    """Return the user's own code (module:name), or an entry of `list implementations`.

    order: of the axes of own code, detected where it is None. changes: of stages, for tables that own code is
    given. alone: whether there is no recipe for them to change. arguments: of own code, by name.
    Raises: UsageError, BadInput, MissingPackage.
    """
    if is_own(name):
        from ropeaudit.subjects.calling import foreign  # in-function: most audits need neither

        return foreign.load(name, order, changes or {}, alone, device, arguments)
    if arguments:
        raise UsageError(f"--arg {next(iter(arguments))} is for own code, FILE.py:NAME; leave it out")
    if changes and alone:
        raise UsageError(
            f"--set {next(iter(changes))} changes recipes, and {name} computes as it does; "
            "add --recipe, or leave it out"
        )
    from ropeaudit.subjects import third_party

    return third_party.implementation(name, device)


def implementations(
    names: Iterable[str],
    order: str | None = None,
    changes: Mapping[str, str] | None = None,
    alone: bool = False,
    device: str | None = None,
) -> list[Code]:
    """Return the implementations of several names, each once; "all" and transformers:* are patterns.

    One that cannot be loaded, of a pattern or of several names, becomes `Unavailable` with the reason.
    """
    requested = dict.fromkeys(names, True)
    if any(name == "all" or "*" in name for name in requested):
        from ropeaudit.subjects import third_party  # in-function: most audits do without

        requested = dict(third_party.expanded(requested))
    results: list[Code] = []
    errors: list[RopeAuditError] = []
    for name, by_itself in requested.items():
        given = (order, changes, alone) if by_itself else (None, None, False)
        try:
            results.append(implementation(name, *given, device))
        except RopeAuditError as error:
            from ropeaudit.subjects.calling.code import Unavailable

            if is_own(name):
                errors.append(error)
                results.append(Unavailable(name, Uncalled(error.typed), LAYOUTS))
            elif by_itself:
                raise
            else:
                entry = third_party.entry_of(name)
                results.append(Unavailable(name, error.typed, entry.layouts, entry.version))
    if errors and len(errors) == len(results):
        raise errors[0]
    return results


def is_own(name: str) -> bool:
    """Return whether a name means the user's code (module:name), not a list's entry."""
    if name.partition(":")[0].endswith(".py"):
        return True  # whatever lists hold: they take long to read
    if ":" not in name:
        return False
    from ropeaudit.subjects import third_party  # in-function: most audits do without

    return not third_party.is_known(name)


def called(code: Code, dtype: Format, alone: bool = True) -> SubjectFactory:
    """Return the factory of code that is called. alone: whether it is the only subject."""
    from ropeaudit.subjects.calling.code import Called, Unavailable
    from ropeaudit.subjects.calling.signatures import NotUnderstood

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        if axes is not None:
            raise UsageError(f"--impl {code.name} has one position axis; leave out --mrope")
        try:
            code.fit(setting)  # what computes is known then
        except (ForeignError, NotUnderstood) as error:
            told = f"{code.name} {did(error)}, however it is called"
            if alone:
                raise UsageError(error.typed if isinstance(error, NotUnderstood) else told) from None
            reason = error.in_line if isinstance(error, NotUnderstood) else told
            return Called(Unavailable(code.name, Uncalled(reason), LAYOUTS, code.version), setting, dtype)
        return Called(code, setting, dtype)

    return SubjectFactory(
        *(code.name, dtype, make, {"input": dtype.name}, code.findings),
        environment=code.environment_label,
        code=code,
    )


def of_recipe(recipe: Resolved, backend: str = "numpy", device: str | None = None) -> SubjectFactory:
    """Return the factory of a recipe on one of `BACKENDS`. device: where torch executes it."""
    if backend not in BACKENDS:
        raise UnknownName("backend", str(backend), BACKENDS)
    make: Callable[[RopeSetting, Axes | None], Subject] = functools.partial(Emulated, recipe)
    if backend == "torch":
        if recipe.recipe.keys:
            raise UsageError("keys with scales are emulated in NumPy alone; leave out --backend torch")
        from ropeaudit.subjects import torch_native  # in-function: importing torch takes seconds
        from ropeaudit.subjects.torch_native import TorchNative

        place = torch_native.device("cpu" if device is None else str(device))
        make = functools.partial(TorchNative, recipe, device=place)
    return SubjectFactory(recipe.recipe.name, recipe.dtype, make, recipe.stages(), recipe=recipe)
