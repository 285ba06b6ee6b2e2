"""Arguments of public functions, as users give them: names, and cases by fields."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import ParamSpec, TypedDict, TypeVar, cast

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.audits.cases import Case, Length, completed, positions_fit
from ropeaudit.audits.results import Results
from ropeaudit.errors import RopeAuditError, UnknownName, UsageError, required_packages
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import Layout, RopeSetting
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


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function refuse arguments that it does not have, and name packages that it lacks."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_grids = any(GridArguments.__name__ in str(kind) for kind in function.__annotations__.values())
    fields = GridArguments if takes_grids else CaseArguments
    known = [*named, *(fields.__annotations__ if code.co_flags & _KEYWORDS else ())]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise UnknownName(f"argument of {code.co_name}", name, known)
        try:
            with required_packages():
                result = function(*args, **kwargs)
        except RopeAuditError as error:  # where it was raised says nothing
            raise error.with_traceback(None) from None
        return cast(T, Results(result)) if isinstance(result, GeneratorType) else result

    return called


def cases_of(
    cases: Case | Iterable[Case] | None,
    fields: CaseArguments | RopeArguments | GridArguments,
    grids: bool = False,
) -> list[Case]:
    """Return the cases of a call: those given, changed by `fields`, or the one that `fields` describe."""
    given = [cases] if isinstance(cases, Case) else cases
    results = [Case(**completed(fields))] if given is None else [replace(case, **fields) for case in given]
    for name in () if grids else ("grid", "axes", "rerotate"):
        if any(getattr(case, name) is not None for case in results):
            raise UsageError(f"--{name} goes with `ropeaudit shift` alone; leave it out")
    return results


def silent(share: float) -> None:
    """Drop the share that is done, where no progress was requested."""


def steps(on_progress: OnProgress, count: int) -> Iterator[OnProgress]:
    """Yield, for each of `count` steps of equal size in turn, what takes the share of it that is done.

    >>> shares = []
    >>> for step in steps(shares.append, 2):
    ...     step(0.5)
    >>> shares
    [0.25, 0.75]
    """
    return (doing.share_of_part(on_progress, start / count, (start + 1) / count) for start in range(count))


def listed(names: Names) -> list[str]:
    """Return one name or several as a list, each once."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))


def numbers(values: int | str | Iterable[int]) -> list[int]:
    """Return one number or several as a list, each once; none is checked, and a text is one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [values]  # type: ignore[list-item]
    return list(dict.fromkeys(values))


def formats(dtypes: Names) -> list[Format]:
    """Return number formats by their names, each once. Raises: UnknownName."""
    return list(dict.fromkeys(parse(name) for name in listed(dtypes)))


def resolved(
    names: Names,
    dtypes: Names,
    changes: Mapping[str, str] | None = None,
    stores_keys: bool = False,
) -> list[Resolved]:
    """Return every recipe, changed, in every dtype. stores_keys: whether k may have scales."""
    some = [recipes.load(name).changed(changes or {}) for name in listed(names)]
    return [recipe.resolve(fmt, stores_keys=stores_keys) for recipe in some for fmt in formats(dtypes)]


def chosen(
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
    """Return every recipe, then every implementation in every environment, in every dtype, each once.

    usual: recipes where neither is given. order: of the axes of own code. naming: what to type without code.
    """
    names = listed(implementations)
    emulated = resolved(recipes or (() if names else usual), dtypes, changes, stores_keys)
    formed = [factories.of_recipe(one, backend, device) for one in emulated]
    for option, value in (("device", device), ("order", order), ("under", ",".join(listed(under)))):
        if value and not names and (option, backend) != ("device", "torch"):
            raise UsageError(f"--{option} {value} is for code that is called; {naming}")
    if not names:
        return formed
    from ropeaudit.subjects.calling import environments  # in-function: most runs call no code

    codes = factories.implementations(names, order, changes, not formed, device)
    placed = [code.under(one) for code in codes for one in environments.chosen(listed(under))]
    called = (factories.called(code, fmt, len(codes) == 1) for code in placed for fmt in formats(dtypes))
    return [*formed, *called]


def stages(some: Iterable[SubjectFactory]) -> dict[str, dict[str, str]]:
    """Return "subject dtype" -> stage -> format, for the metadata."""
    return {f"{one.name} {one.dtype}": dict(one.stages) for one in some}


def by_layout(case: Case, factories: Sequence[SubjectFactory]) -> Iterator[tuple[Case, list[int]]]:
    """Yield a case for each layout of neighbouring code, unless one is given."""
    every = list(range(len(factories)))
    requested = case.layout is not None or case.model is not None or case.config is not None
    if requested or not any(factory.code for factory in factories):
        yield case, every
        return
    setting = case.outline()[1]
    results = [factory.code.layout(setting) if factory.code else None for factory in factories]
    usual = next((layout for layout in results if layout), None)
    for layout, some in itertools.groupby(every, key=lambda index: results[index] or usual):
        yield replace(case, layout=layout), list(some)


def loaded(
    cases: Iterable[Case], some: Sequence[SubjectFactory], offsets: Sequence[int]
) -> Iterator[tuple[Case, Inputs, RopeSetting, list[SubjectFactory]]]:
    """Yield each case, in the layout that code has where none is requested, and what is looked at."""
    for laid_out, part in [part for case in cases for part in by_layout(case, some)]:
        inputs, setting = laid_out.load()
        positions_fit(offsets, inputs.seq_len)
        yield laid_out, inputs, setting, [some[index] for index in part]
