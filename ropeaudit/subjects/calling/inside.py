"""The child's side of `foreign`: it imports code, and calls it as messages ask."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from ropeaudit.subjects.calling.code import Code, Rotator, StageLog
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
    again: Callable[[], Code | None] | None = None
    calls: int = 0


@dataclass(slots=True)
class _State:
    """What a session calls: code in an environment, and its rotators by their setup."""

    code: Code
    rotators: dict[str, Rotator] = field(default_factory=dict)


def opened(arguments: Header) -> tuple[Opened, Header]:
    """Import the code that a spec names. Raises: UsageError, BadInput."""
    one = Opened(*loading.here(**arguments))
    if isinstance(one.code, OwnCode) and one.code.compiles:
        importlib.import_module("torch._dynamo")  # once for all sessions
    return one, facts(one)


def facts(one: Opened) -> Header:
    """Return what the other side is told of code that was opened."""
    code = one.code
    return {
        "name": code.name,
        "engine": code.engine,
        "differentiable": code.differentiable,
        "layouts": list(code.layouts),
        "order": code.order,
        "changes": dict(code.changes),
        "device": VALUES.packed(replace(code.device, of_jax=None), {}),  # of_jax stays in this process
        "version": code.version,
        "flag": getattr(code, "flag", None),
        "built": code.built,
        "told": getattr(code, "told", []),
        "has_instances": code.begins_anew,
        "again": one.again is not None,
        "needed": signatures.needed(getattr(code, "thing", None)),
        "compiles": getattr(code, "compiles", False),
        "layered": signatures.layered(getattr(code, "thing", None)),
        "builders": list(getattr(code, "builders", ())),
        "place": signatures.place(getattr(code, "thing", None)),
    }


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
    code.declared, code.served, code.layers = told["declared"], told["served"], dict(told["layers"])
    given_arrays.eager = told["eager"]
    if isinstance(code, OwnCode):
        for key, fit in told["fits"]:
            here = replace(fit.convention, device=code.device)  # one of this process
            code.fits[key] = replace(fit, convention=here)
            code.engine = fit.convention.engine
        code.changes = told["changes"]
        code.narrow.update(told["narrow"])
    session.state["state"] = _State(code.under(told["environment"]))
    return {"anew": anew or code is not one.code}, {}


def asked(session: Session, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Return what is asked of the code, and what became known of it."""
    state: _State = session.state["state"]
    given = VALUES.unpacked(arguments["given"], dict(arrays))
    results: dict[str, Any] = {}
    value = _ASKED[arguments["asked"]](state, *given)
    code, overwritten = state.code, list(getattr(state.code, "overwritten", ()))
    files = getattr(code, "files", None)
    version = 0 if files is None else len(files.sources), code.version  # of how many files it is, and which
    known = replace(code.device, of_jax=None), list(code.findings), overwritten, version
    return {"value": VALUES.packed(value, results), "known": VALUES.packed(known, results)}, results


def _called(
    state: _State,
    setting: RopeSetting,
    dtype: Format,
    steps: list[Any],
    method: str,
    number: int,
    *given: Any,
) -> Any:
    """Return what a method of the session's one rotator, called in some way, returns.

    number: the seed with which calls begin.
    """
    key, rotator = "", state.rotators.get("")
    if rotator is None:
        rotator = state.rotators[""] = state.code.rotator(setting, dtype)
    for name, *how in steps:
        key += f" {name}{how}"
        if key not in state.rotators:
            state.rotators[key] = getattr(rotator, name)(*how)
        rotator = state.rotators[key]
    with chance.other(number):
        value = getattr(rotator, method)(*given)
    if isinstance(value, Answer):
        value = replace(value, held=())
    return value, isinstance(rotator, OwnRotator) and rotator.in_place


def _forms(state: _State, setting: RopeSetting) -> Any:
    """Return what own code may take, its engine, arguments for positions, and axes."""
    function = cast(OwnCode, state.code).instance(setting)
    placing = [name for name, role in Parameters.of(function).roles.items() if role in PLACING]
    name, grid = state.code.name, setting.grid is not None
    several = "" if grid else signatures.of_several(name, function)
    return proposals.of_arguments(function, name, grid), signatures.engine(function), placing, several


def _tried(state: _State, setting: RopeSetting, convention: Convention, *given: Any) -> Answer:
    own = cast(OwnCode, state.code)
    answer = own.tried(setting, replace(convention, device=own.device), *given)
    return replace(answer, held=())


_ASKED: dict[str, Callable[..., Any]] = {
    "forms": _forms,
    "tried": _tried,
    "called": _called,
    "refuses": lambda state, setting, dtype: state.code.refuses(setting, dtype),
    "build": lambda state, setting: cast(OwnCode, state.code).build(setting),
    "logged": lambda state, *given: state.code.logged(*given),
}
