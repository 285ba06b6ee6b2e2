"""Parity: two subjects on the same q and k, such as what trains a model and what serves it.

Parity is not accuracy: two that make the same error agree, and two that are equally accurate may differ by
more than either drifts. So their distance and the drift of each are measured together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.case_by_case import loaded, steps
from ropeaudit.audits.cases import Case, fits
from ropeaudit.engine.pair import Comparison, FreshRotation, PairStatistics
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Recipe, Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

OFFSETS = (0, 1000)


@dataclass(frozen=True, slots=True)
class Parity:
    """Two subjects in one case, dtype and offset. inputs_differ: they round q and k differently."""

    case: Case
    setting: RopeSetting
    inputs: Inputs
    names: tuple[str, str]
    dtype: Format
    offset: int
    formats: tuple[Format, Format]
    inputs_differ: bool
    statistics: PairStatistics


def subject(spec: str, common: Mapping[str, str]) -> Recipe:
    """Return a recipe by name or file, with its own changes in brackets: hf[angle=fp64,table=fp32].

    common: changes made to it before its own. Raises: UnknownName, BadInput, UsageError.
    """
    name, own = spec.strip(), dict[str, str]()
    if name.endswith("]") and "[" in name:
        name, _, inner = name[:-1].rpartition("[")
        if not name or not inner.strip():
            raise UsageError(f"subject {spec!r} is not NAME[STAGE=FORMAT]; try hf[angle=fp64]")
        own = recipes.parse_changes([inner])
    return recipes.load(name).changed({**common, **own})


def names(pair: Sequence[Recipe], specs: Sequence[str]) -> tuple[str, str]:
    """Return what to call two subjects: their names, or what was typed where two files share a name."""
    first, second = (recipe.name for recipe in pair)
    return (specs[0], specs[1]) if first == second and pair[0] != pair[1] else (first, second)


@arguments.checked
def parity(
    a: str,
    b: str,
    offsets: int | Iterable[int] = OFFSETS,
    dtypes: Names = "bf16",
    *,
    changes: Mapping[str, str] | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Parity]:
    """Compare the scores of two recipes, such as a trainer's and a server's, on the same q and k.

    Yields one Parity per dtype and offset, in that order.
    a, b: a recipe or a recipe file, changed in brackets as in "hf[angle=fp64]".
    offsets, dtypes, changes, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.

    >>> [result] = parity("hf", "meta", 1000, "bf16", heads=1, seq_len=16)
    >>> result.names, result.offset
    (('hf', 'meta'), 1000)
    """
    pair, called = subjects(a, b, changes or {})
    formats, numbers = arguments.formats(dtypes), arguments.numbers(offsets)
    return run(
        arguments.cases_of(cases, case), pair, called, formats, numbers, on_progress or arguments.silent
    )


def subjects(a: str, b: str, changes: Mapping[str, str]) -> tuple[tuple[Recipe, Recipe], tuple[str, str]]:
    """Return two recipes as they were typed, and what to call them. Raises: see `subject`."""
    pair = subject(a, changes), subject(b, changes)
    return pair, names(pair, (a, b))


def run(
    cases: Sequence[Case],
    pair: tuple[Recipe, Recipe],
    called: tuple[str, str],
    dtypes: Sequence[Format],
    offsets: Sequence[int],
    on_progress: OnProgress = arguments.silent,
) -> Iterator[Parity]:
    """Check the arguments, and yield what was measured, case by case, dtype by dtype, offset by offset.

    offsets: tokens, added to every position.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.
    """
    resolved = [(recipe.resolve(fmt), other.resolve(fmt)) for fmt in dtypes for recipe, other in [pair]]
    fits(max(case.check(offsets) for case in cases))
    work = steps(on_progress, len(cases) * len(resolved) * len(offsets))
    return (
        _parity(case, inputs, setting, two, called, offset, next(work))
        for case, inputs, setting in loaded(cases, offsets)
        for two, offset in itertools.product(resolved, offsets)
    )


def _parity(
    case: Case,
    inputs: Inputs,
    setting: RopeSetting,
    two: tuple[Resolved, Resolved],
    called: tuple[str, str],
    offset: int,
    on_progress: OnProgress,
) -> Parity:
    axes = case.position_axes(setting)
    first, second = (Emulated(recipe, setting, axes) for recipe in two)
    rotations = FreshRotation(first, inputs, offset), FreshRotation(second, inputs, offset)
    compared = Comparison(inputs, setting, case.mask, rotations, offset if setting.clipped else 0)
    formats, differ = (first.input, second.input), compared.formats[0] is not compared.formats[1]
    differences = compared.run(on_progress)
    return Parity(case, setting, inputs, called, first.dtype, offset, formats, differ, differences)
