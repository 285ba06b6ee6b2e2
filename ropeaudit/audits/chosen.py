"""What a command looks at, as it was requested by name: recipes, and code that is called beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.audit import by_layout
from ropeaudit.audits.cases import Case
from ropeaudit.audits.cases import loaded as inputs_of
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import factories
from ropeaudit.subjects.factories import SubjectFactory

Chosen: TypeAlias = Resolved | SubjectFactory  # a recipe, or code that is called


def chosen(
    recipes: Names | None,
    implementations: Names,
    dtypes: Names,
    changes: Mapping[str, str] | None,
    usual: Sequence[str],
    device: str | None = None,
    order: str | None = None,
    under: Names = (),
) -> list[Chosen]:
    """Return every recipe, then every implementation in every environment, in every dtype, each once.

    usual: recipes where none is given; beside implementations there are none then. device: where code is
    called. order: of the axes of own code. under: environments beside the clean one.
    Raises: UsageError, UnknownName, BadInput, NotEmulated, MissingPackage.
    """
    names = arguments.listed(implementations)
    resolved = arguments.resolved(recipes or (() if names else usual), dtypes, changes)
    if device is not None and not names:
        raise UsageError(f"--device {device} is where code is called; add --impl")
    codes = factories.implementations(names, order, changes, not resolved, device)
    placed = [one for code in codes for one in factories.in_environments(code, arguments.listed(under))]
    called = (factories.called(code, fmt) for code in placed for fmt in arguments.formats(dtypes))
    return [*resolved, *called]


def factory(one: Chosen) -> SubjectFactory:
    """Return the factory of a recipe or of code."""
    return factories.of_recipe(one) if isinstance(one, Resolved) else one


def stages(some: Iterable[Chosen]) -> dict[str, dict[str, str]]:
    """Return "subject dtype" -> stage -> format, for the metadata."""
    return {f"{one.name} {one.dtype}": dict(one.stages) for one in map(factory, some)}


def loaded(
    cases: Iterable[Case], some: Sequence[Chosen], offsets: Sequence[int]
) -> Iterator[tuple[Case, Inputs, RopeSetting, list[Chosen]]]:
    """Yield each case, in the layout that code has where none is requested, and what is looked at in it.

    Raises: BadShape where an offset leads too far; what detection of the layout of code raises.
    """
    made = [factory(one) for one in some]
    parts = [(one, [some[index] for index in part]) for case in cases for one, part in by_layout(case, made)]
    each = inputs_of((one for one, _ in parts), offsets)
    for (case, inputs, setting), (_, part) in zip(each, parts, strict=True):
        yield case, inputs, setting, part
