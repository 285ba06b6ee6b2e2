"""The child's side of `foreign`: it imports code, and calls it as messages ask."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from ropeaudit.arithmetic.formats import FORMATS, Format
from ropeaudit.door.child import Header, Session
from ropeaudit.door.messages import HOME, Arrays
from ropeaudit.door.values import Values
from ropeaudit.rope.axial import AxialRope
from ropeaudit.rope.grids import Grid
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects.calling import arrays as given_arrays
from ropeaudit.subjects.calling import backward, conventions, loading, proposals, signatures
from ropeaudit.subjects.calling.code import Code, StageLog
from ropeaudit.subjects.calling.conventions import Answer, Convention
from ropeaudit.subjects.calling.detection import Fit, NoFit
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.own_code import OwnCode, OwnRotator
from ropeaudit.subjects.calling.signatures import PLACING, Parameters

VALUES = Values(
    [
        *(RopeSetting, Scaling, Grid, AxialRope, Environment, Device),
        *(Fit, Convention, Answer, StageLog),
    ],
    FORMATS,
)
HOME |= {  # of what code did
    one.__name__: one
    for one in (
        *(given_arrays.WrongShape, given_arrays.WroteAround, given_arrays.TwoTables),
        *(backward.NoGradient, backward.SwitchedOff, signatures.NotUnderstood, NoFit),
    )
}


@dataclass(slots=True)
class Opened:
    """Code as its import left it.

    again: imports it once more; None where that is dear or changes nothing. calls: sessions that were served.
    """

    code: Code
    again: Callable[[], Code | None] | None = None  # imports it once more, unless that is dear
    calls: int = 0  # sessions that were served


def opened(arguments: Header) -> tuple[Opened, Header]:
    """Import the code that a spec names. Raises: UsageError, BadInput."""
    one = Opened(*loading.here(**arguments))
    if isinstance(one.code, OwnCode) and one.code.compiles:
        importlib.import_module("torch._dynamo")  # once for all sessions
    return one, facts(one)


# attributes that the other side is told, and what an adapter has in their place
_FACTS = dict.fromkeys(("name", "engine", "differentiable", "layouts", "order", "built"))
_FACTS |= {"flag": None, "told": [], "builders": (), "compiles": False}


def facts(one: Opened) -> Header:
    """Return what the other side is told of code that was opened."""
    code, thing = one.code, getattr(one.code, "thing", None)
    told = {name: getattr(code, name, other) for name, other in _FACTS.items()}
    told |= {"changes": dict(code.changes), "loaded_version": code.version}
    told |= {"device": replace(code.device, of_jax=None)}  # of_jax stays in this process
    told |= {"has_instances": code.begins_anew, "again": one.again is not None}
    told |= {"needed": signatures.needed(thing), "layered": signatures.layered(thing)}
    return cast(Header, VALUES.packed(told | {"place": signatures.place(thing)}, {}))


def begin(session: Session, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Begin a session: how the code is called, as known, and its environment.

    Returns: whether nothing has called the code since it was imported.
    """
    number = itertools.count(1)
    conventions.begins = lambda what: session.say(f"{what} {next(number)}")
    one: Opened = session.opened
    code = one.code
    told = VALUES.unpacked(arguments["told"], dict(arrays))
    anew = told["first"] or not one.calls
    if not told["first"]:
        if session.shared and one.calls and one.again is not None:
            code = one.again() or one.code
        one.calls += 1
    vars(code).update(told["known"])
    given_arrays.eager = told["eager"]
    if isinstance(code, OwnCode):
        for key, fit in told["fits"].items():
            here = replace(fit.convention, device=code.device)  # one of this process
            code.fits[key] = replace(fit, convention=here)
            code.engine = fit.convention.engine
    session.state.update(code=code.under(told["environment"]), rotators={})
    return {"anew": anew or code is not one.code}, {}


def asked(session: Session, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Return what is asked of the code, and what became known of it."""
    given, results = VALUES.unpacked(arguments["given"], dict(arrays)), dict[str, Any]()
    value = _ASKED[arguments["asked"]](session.state, *given)
    code: Code = session.state["code"]
    overwritten, files = list(getattr(code, "overwritten", ())), getattr(code, "files", None)
    version = 0 if files is None else len(files.sources), code.version  # of how many files
    known = replace(code.device, of_jax=None), list(code.findings), overwritten, version
    return VALUES.packed((value, known), results), results


def _called(
    state: dict[str, Any],
    setting: RopeSetting,
    dtype: Format,
    steps: list[Any],
    method: str,
    number: int,
    *given: Any,
) -> Any:
    """Return what a method of the session's rotator returns. steps: how it is made. number: a seed."""
    rotators, key = state["rotators"], ""  # by their setup
    if not rotators:
        rotators[key] = state["code"].rotator(setting, dtype)
    for name, *how in steps:
        rotator, key = rotators[key], f"{key} {name}{how}"
        if key not in rotators:
            rotators[key] = getattr(rotator, name)(*how)
    rotator = rotators[key]
    with chance.other(number):
        value = getattr(rotator, method)(*given)
    if isinstance(value, Answer):
        value = replace(value, held=())
    return value, isinstance(rotator, OwnRotator) and rotator.in_place


def _forms(state: dict[str, Any], setting: RopeSetting) -> Any:
    """Return what own code may take, its engine, arguments for positions, and axes."""
    function = state["code"].instance(setting)
    placing = [name for name, role in Parameters.of(function).roles.items() if role in PLACING]
    name, grid = state["code"].name, setting.grid is not None
    several = "" if grid else signatures.of_several(name, function)
    return proposals.of_arguments(function, name, grid), signatures.engine(function), placing, several


_ASKED: dict[str, Callable[..., Any]] = {
    "forms": _forms,
    "tried": lambda state, *given: state["code"].tried(*given),
    "called": _called,
    "refuses": lambda state, setting, dtype: state["code"].refuses(setting, dtype),
    "build": lambda state, setting: state["code"].build(setting),
    "logged": lambda state, *given: state["code"].logged(*given),
}
