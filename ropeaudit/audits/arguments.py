"""Arguments of the public functions: how names, numbers and fields of cases are read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import ParamSpec, TypedDict, TypeVar, cast

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.audits.cases import Case, Length, check_positions, with_default_mask
from ropeaudit.audits.results import Results
from ropeaudit.errors import RopeAuditError, UnknownName, UsageError, required_packages
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing
from ropeaudit.subjects import factories
from ropeaudit.subjects.factories import SubjectFactory

P = ParamSpec("P")
T = TypeVar("T")
DTYPES = ("float64", "float32", "float16", "bfloat16")
Names = str | Iterable[str]
OnProgress = Callable[[float], None]
__tracebackhide__ = True  # pytest shows a refusal at the line of the test
_KEYWORDS = 0x08  # of code.co_flags: the function has a ** parameter


class RopeArguments(TypedDict, total=False):
    """The fields of `Case` that choose a RoPE setting."""

    model: str | None
    config: str | None
    layer: str
    head_dim: int | None
    rotary_dim: int | None
    base: float | None
    scaling: str | None
    clip: float | None
    layout: Layout | None
    scale: float | None
    mrope: str | None
    axis: str
    length: Length


class CaseArguments(RopeArguments, total=False):
    """The fields of `Case`: a RoPE setting, and q and k."""

    qk: str
    heads: int | None
    kv_heads: int | None
    seq_len: int | None
    seed: int | None
    mask: Mask
    sample: int | None


class GridArguments(CaseArguments, total=False):
    """The fields of `Case`, with those of grids and of rerotated keys."""

    grid: str | None
    axes: str | None
    step: float | None
    turn: int | None


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function public: unknown arguments and missing packages raise errors of ropeaudit."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_grids = any(GridArguments.__name__ in str(kind) for kind in function.__annotations__.values())
    fields = GridArguments if takes_grids else CaseArguments
    allowed = [*named, *(fields.__annotations__ if code.co_flags & _KEYWORDS else ())]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in allowed:
                raise UnknownName(f"argument of {code.co_name}", name, allowed)
        try:
            with required_packages():
                result = function(*args, **kwargs)
        except RopeAuditError as error:  # the traceback would show internals
            raise error.with_traceback(None) from None
        return cast(T, Results(result)) if isinstance(result, GeneratorType) else result

    return called


def cases_from(
    cases: Case | Iterable[Case] | None,
    fields: CaseArguments | RopeArguments | GridArguments,
    grids: bool = False,
) -> list[Case]:
    """Return cases with changed fields, or the case that `fields` describe."""
    given = [cases] if isinstance(cases, Case) else cases
    results = (
        [Case(**with_default_mask(fields))] if given is None else [replace(case, **fields) for case in given]
    )
    for name in () if grids else ("grid", "axes", "rerotate"):
        if any(getattr(case, name) is not None for case in results):
            raise UsageError(f"--{name} goes with `ropeaudit shift` alone; leave it out")
    return results


def ignore_progress(share: float) -> None:
    """Do nothing with the share that is done."""


def equal_parts(on_progress: OnProgress, count: int) -> Iterator[OnProgress]:
    """Yield a listener for each of `count` equal parts of the work.

    >>> shares = []
    >>> for part in equal_parts(shares.append, 2):
    ...     part(0.5)
    >>> shares
    [0.25, 0.75]
    """
    return (doing.listener_of_part(on_progress, start / count, (start + 1) / count) for start in range(count))


def as_list(names: Names) -> list[str]:
    """Return one name or several as a list, each once."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))


def integers(values: int | str | Iterable[int]) -> list[int]:
    """Return one number or several, each once, unchecked; a text is a single value."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [values]  # type: ignore[list-item]
    return list(dict.fromkeys(values))


def formats(dtypes: Names) -> list[Format]:
    """Return number formats by their names, each once. Raises: UnknownName."""
    return list(dict.fromkeys(parse(name) for name in as_list(dtypes)))


def resolve_recipes(
    names: Names,
    dtypes: Names,
    changes: Mapping[str, str] | None = None,
    stores_keys: bool = False,
) -> list[Resolved]:
    """Return every recipe, changed, in every dtype. stores_keys: whether k may have scales."""
    changed = [recipes.load(name).changed(changes or {}) for name in as_list(names)]
    return [recipe.resolve(fmt, stores_keys=stores_keys) for recipe in changed for fmt in formats(dtypes)]


def subjects(
    recipes: Names | None,
    implementations: Names,
    dtypes: Names,
    changes: Mapping[str, str] | None,
    usual: Sequence[str],
    device: str | None = None,
    order: str | None = None,
    under: Names = (),
    naming: str = "add --impl",
    *,
    backend: str = "numpy",
    stores_keys: bool = False,
) -> list[SubjectFactory]:
    """Return factories of all recipes, then of all implementations in all environments, by dtype.

    usual: recipes if neither is given. order: of the axes of own code. naming: the remedy without code.
    """
    names = as_list(implementations)
    emulated = resolve_recipes(recipes or (() if names else usual), dtypes, changes, stores_keys)
    of_recipes = [factories.of_recipe(recipe, backend, device) for recipe in emulated]
    for option, value in (("device", device), ("order", order), ("under", ",".join(as_list(under)))):
        if value and not names and (option, backend) != ("device", "torch"):
            raise UsageError(f"--{option} {value} is for code that is called; {naming}")
    if not names:
        return of_recipes
    from ropeaudit.subjects.calling import environments  # in-function: most runs call no code

    codes = factories.implementations(names, order, changes, not of_recipes, device)
    placed = [
        code.under(environment) for code in codes for environment in environments.chosen(as_list(under))
    ]
    called = (factories.called(code, fmt, len(codes) == 1) for code in placed for fmt in formats(dtypes))
    return [*of_recipes, *called]


def stage_formats(factories: Iterable[SubjectFactory]) -> dict[str, dict[str, str]]:
    """Return "subject dtype" -> stage -> format, for the metadata."""
    return {f"{factory.name} {factory.dtype}": dict(factory.stages) for factory in factories}


def split_by_layout(case: Case, factories: Sequence[SubjectFactory]) -> Iterator[tuple[Case, list[int]]]:
    """Yield the case in the layouts of neighbouring factories, with the indices of these.

    A layout that was requested stays.
    """
    every = list(range(len(factories)))
    requested = case.layout is not None or case.model is not None or case.config is not None
    if requested or not any(factory.code for factory in factories):
        yield case, every
        return
    setting = case.outline()[1]
    layouts = [factory.code.layout(setting) if factory.code else None for factory in factories]
    usual = next((layout for layout in layouts if layout), None)
    for layout, indices in itertools.groupby(every, key=lambda index: layouts[index] or usual):
        yield replace(case, layout=layout), list(indices)


def load_cases(
    cases: Iterable[Case], factories: Sequence[SubjectFactory], offsets: Sequence[int]
) -> Iterator[tuple[Case, Inputs, RopeSetting, list[SubjectFactory]]]:
    """Load each case, in the layout of code unless one is requested."""
    for laid_out, indices in [part for case in cases for part in split_by_layout(case, factories)]:
        inputs, setting = laid_out.load()
        check_positions(offsets, inputs.seq_len)
        yield laid_out, inputs, setting, [factories[index] for index in indices]
