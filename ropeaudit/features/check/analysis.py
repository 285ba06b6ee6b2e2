"""One question, one answer: is this right, up to which position, and what is wrong with it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, OnProgress, RopeArguments
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import code_checks
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.errors import UsageError
from ropeaudit.features.check.targets import Kind, kind
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import implementation
from ropeaudit.subjects.calling.implementation import Implementation

DTYPES, UP_TO = ("bf16",), 2**17
_MOST = 2**21  # positions: of a table that is built from 0, see `third_party.adapter.LONGEST_TABLE`


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of a target. up_to: positions, 0 where they do not matter. version: of what was checked."""

    target: str
    kind: Kind
    version: str
    dtype: str
    setting: RopeSetting
    up_to: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is requested of every target. up_to: number of positions, None for the model's maximum or 128k."""

    dtypes: tuple[Format, ...]
    up_to: int | None = None
    recipe: str | None = None
    order: str | None = None
    seed: int = 0


@arguments.checked
def check(
    targets: Names,
    dtypes: Names = DTYPES,
    *,
    up_to: int | None = None,
    recipe: str | None = None,
    order: str | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **rope: Unpack[RopeArguments],
) -> Iterator[Checked]:
    """Check targets: own code, named implementations.

    Yields one Checked per target, dtype and check, in that order.
    targets: FILE.py:NAME, package.module:NAME or a name of `ropeaudit list impls`.
    up_to: number of positions that are checked; the model's maximum, else 131,072, by default. recipe: the
    one that code claims to follow; by default what right code in the dtype explains is allowed.
    order: of the axes of own code, such as "bhsd". rope: the fields of `Case` that choose a RoPE setting.
    Raises: UsageError, UnknownName, BadInput, MissingPackage.
    """
    options = CheckOptions(tuple(arguments.formats(dtypes)), up_to, recipe, order, seed)
    [case] = arguments.cases_of(None, rope)
    return run(arguments.listed(targets), case, options, on_progress or arguments.silent)


def run(
    targets: Sequence[str],
    case: Case,
    options: CheckOptions,
    progress: Callable[[float], None],
    note: Callable[[Sequence[str]], None] = lambda findings: None,
) -> Iterator[Checked]:
    """Yield what was checked, target by target. note gets how code is called. Raises: see `check`."""
    if options.up_to is not None and not 1 <= options.up_to <= _MOST:
        raise UsageError(f"up_to {options.up_to} is not a number of positions from 1 to {_MOST}; try 128k")
    kinds = [kind(target) for target in targets]
    for done, (target, which) in enumerate(zip(targets, kinds, strict=True)):

        def on_progress(share: float, done: int = done) -> None:
            progress((done + share) / len(targets))

        if which != "code":
            raise UsageError(f"{target} is a {which}; give code: FILE.py:NAME or a name of `list impls`")
        yield from _code(target, case, options, on_progress, note)


def _code(
    target: str,
    case: Case,
    options: CheckOptions,
    progress: Callable[[float], None],
    note: Callable[[Sequence[str]], None],
) -> Iterator[Checked]:
    """Yield the checks of code, dtype by dtype."""
    code = factories.implementation(target, options.order)
    up_to = options.up_to or case.maximum or UP_TO
    setting = case.setting(up_to)
    detect = getattr(code, "fit", None)
    if case.layout is None and case.model is None and case.config is None:
        setting = replace(setting, layout=detect(setting).layout if detect else code.layouts[0])
    for number, dtype in enumerate(options.dtypes):

        def on_progress(share: float, number: int = number) -> None:
            progress((number + share) / len(options.dtypes))

        for finding in _code_in(code, setting, dtype, up_to, options, on_progress):
            yield Checked(target, "code", code.version, dtype.name, setting, up_to, finding)
    note(getattr(code, "findings", ()))


def _code_in(
    code: Implementation,
    setting: RopeSetting,
    dtype: Format,
    up_to: int,
    options: CheckOptions,
    progress: Callable[[float], None],
) -> Iterator[Finding]:
    if reason := implementation.refusal(code, setting, dtype):
        yield not_applicable("places", reason)
        return
    claimed = recipes.load(options.recipe).resolve(dtype) if options.recipe else None
    yield from code_checks.findings(
        CodeUnderTest(code, setting, dtype, up_to, claimed, options.seed), progress
    )
