"""Code that runs in a process of its own, the user's or a third party's, called through a door.

The functions above `ForeignCode` run in the child: they import code, and call it as messages ask.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ropeaudit.arithmetic.formats import FORMATS, FP32, FloatArray, Format
from ropeaudit.door import child, process
from ropeaudit.door.child import Header
from ropeaudit.door.messages import OWN_ERRORS, Arrays, Malformed, Values
from ropeaudit.door.process import Door, Session
from ropeaudit.errors import BadInput, Ended, ForeignError, Late, RopeAuditError, UsageError, did
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.axial import AxialRope
from ropeaudit.rope.grids import Grid
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import PAIRS, RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import arrays as given_arrays
from ropeaudit.subjects.calling import (
    conventions,
    detection,
    loading,
    proposals,
    shapes,
    signatures,
)
from ropeaudit.subjects.calling.arrays import Engine, Strides
from ropeaudit.subjects.calling.code import Both, CallOf, Code, Rotator
from ropeaudit.subjects.calling.conventions import Answer, Convention
from ropeaudit.subjects.calling.detection import Fit, NoFit
from ropeaudit.subjects.calling.environments import Device, Environment
from ropeaudit.subjects.calling.own_code import (
    NOT_CHECKED,
    OWN_TABLES,
    NoGradient,
    OwnCode,
    OwnRotator,
    SwitchedOff,
)
from ropeaudit.subjects.calling.stages import NO_CHANGES, TABLES, Changes, StageLog

VALUES = Values(
    [
        *(RopeSetting, Scaling, Grid, AxialRope, Environment, Device),
        *(Fit, Convention, Answer, StageLog),
    ],
    FORMATS,
)
OWN_ERRORS |= {  # of what code did
    one.__name__: one
    for one in (
        *(shapes.WrongShape, given_arrays.WroteAround, given_arrays.TwoTables),
        *(NoGradient, SwitchedOff, signatures.NotUnderstood, NoFit),
    )
}


@dataclass(slots=True)
class Opened:
    """Imported code in the child.

    again: imports it once more; None where that is slow or changes nothing. calls: the number of sessions.
    """

    code: Code
    again: Callable[[], Code | None] | None = None
    calls: int = 0


def opened(arguments: Header) -> tuple[Opened, Header]:
    """Import the code of a spec, as a door's opener. Raises: UsageError, BadInput."""
    one = Opened(*loading.load(**arguments))
    if isinstance(one.code, OwnCode) and one.code.compiles:
        importlib.import_module("torch._dynamo")  # once for all sessions
    return one, facts(one)


_SELDOM = 0.01  # seconds between two messages to the parent about many calls
# attributes that are sent to the parent
_FACTS = ("name", "engine", "differentiable", "layouts", "order", "built", "flag", "told", "builders")


def facts(one: Opened) -> Header:
    """Return the attributes of opened code that are sent to the parent."""
    code, thing = one.code, getattr(one.code, "thing", None)
    told = {name: getattr(code, name) for name in _FACTS} | {"loaded_version": code.version}
    told |= {"changes": dict(code.changes), "eager": isinstance(code, OwnCode) and code.compiles}
    told |= {"device": replace(code.device, of_jax=None)}  # of_jax stays in this process
    told |= {"has_instances": code.has_fresh_instances, "again": one.again is not None}
    told |= {"needed": signatures.needed(thing), "layered": signatures.layered(thing)}
    return cast(Header, VALUES.packed(told | {"place": signatures.place(thing)}, {}))


@dataclass(slots=True)
class _CallAnnouncer:
    """Tells the parent which call begins: its time limit counts from there.

    Of many calls in one request only some are announced, as a message takes as long as a small call.
    """

    say: Callable[[str], None]
    many: bool = False
    number: int = 0
    last: float = -math.inf  # when one was told

    def begins(self, what: str) -> None:
        """Count a call, and announce it unless one of many was announced just before."""
        self.number += 1
        now = time.monotonic()
        if not self.many or now - self.last > _SELDOM:
            self.last = now
            self.say(f"{what} {self.number}" + " or one soon after it" * self.many)


def _begin(session: child.ChildSession, told: Mapping[str, Any]) -> bool:
    """Begin a session: set the environment and what is known of the code's calls.

    Returns: whether nothing has called the code since its import.
    """
    announced = _CallAnnouncer(session.say)
    conventions.begins = announced.begins
    one: Opened = session.opened
    code = one.code
    anew = told["first"] or not one.calls
    if not told["first"]:
        if session.shared and one.calls and one.again is not None:
            code = one.again() or one.code
        one.calls += 1
    vars(code).update(told["known"])
    given_arrays.eager = told["eager"]
    session.state.update(code=code.under(told["environment"]), rotators={}, announced=announced)
    return anew or code is not one.code


def answer_request(session: child.ChildSession, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Call a method of the code for the parent; return its value, and new notes about the code."""
    given, results = VALUES.unpacked(arguments["given"], dict(arrays)), dict[str, Any]()
    name = arguments["asked"]
    ours: dict[str, Callable[..., Any]] = {"begin": _begin, "called": _called}
    value = ours[name](session, *given) if name in ours else getattr(session.state["code"], name)(*given)
    code: Code = session.state["code"]
    overwritten, files = list(getattr(code, "overwritten", ())), getattr(code, "files", None)
    version = 0 if files is None else len(files.sources), code.version  # of how many files
    known = replace(code.device, of_jax=None), list(code.findings), overwritten, version
    return VALUES.packed((value, known), results), results


def _called(
    session: child.ChildSession,
    setting: RopeSetting,
    dtype: Format,
    steps: list[Any],
    method: str,
    number: int,
    *given: Any,
) -> Any:
    """Call a method of the session's rotator. steps: methods that make it. number: a seed."""
    rotators, key = session.state["rotators"], ""  # by their setup
    if not rotators:
        rotators[key] = session.state["code"].rotator(setting, dtype)
    for name, *how in steps:
        rotator, key = rotators[key], f"{key} {name}{how}"
        if key not in rotators:
            rotators[key] = getattr(rotator, name)(*how)
    rotator = rotators[key]
    session.state["announced"].many = method == "rotate_parts"
    with chance.other(number):
        value = getattr(rotator, method)(*given)
    if isinstance(value, Answer):
        value = replace(value, held=())
    return value, isinstance(rotator, OwnRotator) and rotator.in_place


_MOST_BITS = 16  # of a dtype whose tables are otherwise wider
_REMOTE = ("answer", "hold_output", "held_output")  # methods that are called in the child


class ForeignCode(Code):
    """Code that a child process has imported. Each session has its own state.

    There is one session for the detection of own code, and one for each new instance.
    """

    findings: list[str]

    def __init__(self, door: Door) -> None:
        """Store the door of an `Opened`, and its attributes."""
        self.door, self.facts = door, VALUES.unpacked(door.facts, {})
        vars(self).update(self.facts)
        self._seen = (0, self.loaded_version)
        self.findings, self.overwritten = [], list[str]()
        self.fits: dict[RopeSetting, Fit] = {}
        self.narrow: dict[Format, bool] = {}
        self.ready: set[RopeSetting] = set()  # for which an instance was built, and not called
        self._uncalled: dict[str, Session] = {}  # by environment
        self._logs: dict[tuple[Any, ...], dict[str, StageLog]] = {}

    @property
    def version(self) -> str:
        """The digest of its file and of what it imports from its folder, now or in a call."""
        return self._seen[1]

    @property
    def has_fresh_instances(self) -> bool:
        """Whether a new instance is free of state, as its process or its file is loaded again."""
        return not self.door.why_no_forks or bool(self.facts["has_instances"] or self.facts["again"])

    def session(self, fit: Fit | None = None, *, first: bool = False) -> Session:
        """Return a new session of the code, in its environment. Raises: ForeignError.

        fit: how it is called, where known. first: whether later sessions inherit its state.
        """
        session = self.door.session(first=first)
        known = {"declared": self.declared, "served": self.served, "layers": dict(self.layers)}
        call = {"found": fit, "narrow": self.narrow}
        told = {
            "known": known | {"changes": dict(self.changes), "engine": self.engine} | call,
            "eager": self.eager,
            "environment": self.environment,
            "first": first,  # its code is that of all later ones
        }
        if not self.ask(session, "begin", told):
            self.facts["again"] = False  # its file can be executed but once
        return session

    def ask(self, session: Session, asked: str, *given: Any) -> Any:
        """Call `asked` in the child; return its value. Raises: RopeAuditError, ForeignError."""
        arrays: dict[str, Any] = {}
        told = {"asked": asked, "given": VALUES.packed(list(given), arrays)}
        answer, results = session.ask(f"{__name__}:answer_request", told, arrays)
        try:
            value, known = VALUES.unpacked(answer, dict(results))
            self.device, findings, overwritten, version = known
            self._seen = max(self._seen, version)  # of the session that imported most
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # of a forged answer
            raise Malformed(f"wrote where ropeaudit reads: {type(error).__name__}") from None
        self.findings += [one for one in findings if one not in self.findings]
        self.overwritten += [one for one in overwritten if one not in self.overwritten]
        return value

    def narrow_tables(self, setting: RopeSetting, dtype: Format) -> bool:
        """Return whether cos and sin are given in the dtype; an adapter takes none."""
        return False

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        name = self.environment.name
        if name not in self._uncalled:
            self._uncalled[name] = self.session()
        return str(self.ask(self._uncalled[name], "refuses", setting, dtype))

    def rotator(self, setting: RopeSetting, dtype: Format) -> ForeignRotator:
        """Return a rotator of a new instance, in a session of its own."""
        return ForeignRotator(self, setting, dtype, cast(Fit, self.fit(setting)), _LazySession(dtype))

    def logged(
        self,
        setting: RopeSetting,
        dtype: Format,
        x: FloatArray,
        length: int,
    ) -> dict[str, StageLog]:
        """Log the torch operations of one call: see `Code.logged`."""
        self.narrow_tables(setting, dtype)
        key = setting, dtype, length, self.environment
        if key not in self._logs:  # one clean log serves all environments
            self._logs[key] = self.ask(self.session(self.fit(setting)), "logged", setting, dtype, x, length)
        return self._logs[key]


class ForeignOwn(ForeignCode):
    """The user's own code in a child process."""

    own = True

    def __init__(self, door: Door, requested: Changes = NO_CHANGES, alone: bool = False) -> None:
        """Store the door and the requested changes. alone: whether they apply to nothing else."""
        super().__init__(door)
        self._requested, self._alone = requested, alone
        self._failed: dict[RopeSetting, ForeignError] = {}  # settings that no call fits

    def fit(self, setting: RopeSetting) -> Fit:
        """Return how the code is called; detected once. Raises: UsageError, ForeignError."""
        if self.clean is not None:
            fit = self.clean.fit(setting)
            self.engine, self.changes = self.clean.engine, self.clean.changes
            self.device = self.clean.device
            return fit
        # a layout counts only where an argument says it
        key = replace(setting, layout=setting.layout if self.flag else "half", scale=1.0)
        if key in self._failed:
            raise self._failed[key]
        if key not in self.fits:
            try:
                self.fits[key] = self._detect(key)
            except ForeignError as error:
                self._failed[key] = error
                raise
        return self.fits[key]

    def _detect(self, key: RopeSetting) -> Fit:
        """Detect how the code is called, with a new session whenever its process ends."""
        sessions = [self.session()]

        def call(convention: Convention, x: FloatArray, at: Positions, dtype: Format) -> Answer:
            try:
                return cast(Answer, self.ask(sessions[-1], "try_call", key, convention, x, at, dtype))
            except (Ended, Late):
                sessions.append(self.session())
                raise

        likely, engine, placing, several, shown = self.ask(sessions[-1], "possible_calls", key)
        # likeliest first
        both: tuple[Engine, Engine] = (engine, "torch" if engine == "numpy" else "numpy")
        engines = [one for one in both if one != "numpy" or self.device.is_cpu]
        known = self.name, key, likely, engines, self.device, self.order
        try:
            fit = detection.fit(detection.Trial(call, *known, several=several))
        except detection.NoFit:
            if not self.eager:
                raise
            self.eager = False  # it may want to be compiled
            return self._detect(key)
        self.engine = fit.convention.engine
        self._note_fit(fit, placing, shown)
        return fit

    def _note_fit(self, fit: Fit, placing: Sequence[str], shown: Mapping[str, str]) -> None:
        """Note how the code is called, and what is not checked. placing: arguments for positions.

        shown: argument -> how, if not by name.
        Raises: UsageError where changes are requested for stages that the code computes itself.
        """
        form, what = fit.convention, "computes the rest itself"
        reach = f"; {', '.join(TABLES)} of the tables can be changed" * form.tables
        if not form.tables:
            self.changes, what = {}, f"takes no tables from here ({form.called})"
        ignored = [stage for stage in self._requested if stage not in self.changes]
        if ignored and self._alone:
            raise UsageError(f"--set {ignored[0]}: {self.name} {what}{reach}; add --recipe, or leave it out")
        given = {name for name, _ in form.arguments}
        arguments = tuple((shown.get(name or "", name), role) for name, role in form.arguments)
        written = replace(form, arguments=arguments)
        left = [name for name in placing if name not in given and None not in given]
        zeros = [str(name) for name, role in form.arguments if role in ("row_offset", "padding")]
        passed = f"{form.arguments[-1][0]} is passed by **kwargs"
        if not fit.sure:
            passed += f"; of {', '.join(proposals.OFFERED)} none has the effect of a position"
        notes = (
            (ignored, f"{what}: --set {', '.join(ignored)} changes the recipes alone"),
            (True, f"called as {written}, {PAIRS[fit.layout]}{detection.sureness(fit)}"),
            (form.tables, OWN_TABLES),
            (
                self.eager,
                f"{NOT_CHECKED}its own torch.compile, left out in these calls (--thorough keeps it)",
            ),
            (left, f"not given, though it takes them: {', '.join(left)}"),
            (
                zeros and form.takes("positions"),
                f"{NOT_CHECKED}{', '.join(zeros)}, which is 0 beside positions in every call",
            ),
            (form.keywords == "offered", f"no argument of it says where tokens stand: {passed}"),
            (
                fit.backward,
                "rotates q and k by -theta: scores are the same, a checkpoint of +theta does not fit",
            ),
            (fit.permuted, "takes interleaved pairs and returns them half-split, which leaves scores alone"),
        )
        for holds, text in notes:
            if holds:
                self._note(text)

    def _note(self, text: str) -> None:
        if (text := f"{self.name}: {text}.") not in self.findings:
            self.findings.append(text)

    def layout(self, setting: RopeSetting) -> Layout:
        """Return the default layout; the first where no call fits, which the checks report."""
        try:
            return super().layout(setting if self.flag is None else replace(setting, layout=self.flag))
        except (ForeignError, UsageError):
            return self.layouts[0]

    def narrow_tables(self, setting: RopeSetting, dtype: Format) -> bool:
        """Return whether to pass cos and sin in the dtype, as float32 tables would widen results."""
        if dtype in self.narrow:
            return self.narrow[dtype]
        form = self.fit(setting).convention
        real = form.takes("cos", "cos_sin", "sin_cos") or (form.takes("freqs") and form.width != "pairs")
        self.narrow[dtype] = False
        if not real or dtype.storage_bits > _MOST_BITS or "table" in self.changes:
            return False
        x, at = np.ones((1, 1, 2, setting.head_dim), dtype.carrier), np.arange(2, dtype=np.int64)
        session, given = self.session(), list[set[str]]()
        with contextlib.suppress(RopeAuditError, ForeignError):  # the calls will show it
            for narrow in (False, True):
                called = self.ask(session, "try_call", setting, replace(form, narrow=narrow), x, at, dtype)
                given.append({called.dtype, called.keys_dtype})
            self.narrow[dtype] = given == [{FP32.name}, {torch_arrays.torch_name(dtype)}]
        if self.narrow[dtype]:
            self._note(f"tables are given in {dtype}: with float32 ones it returns float32")
        return self.narrow[dtype]

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why the dtype or environment is refused; calls report other reasons."""
        if self.clean is not None:
            engine, kind = self.fit(setting).convention.engine, self.environment.kind
            lacking = self.environment.lacking(engine, dtype, self.device.name)
            builds = kind == "to" or (self.built and kind == "default-dtype")
            if lacking or not builds:
                return lacking
        elif self.engine != "jax":
            return ""
        return str(self.ask(self.session(), "refuses", setting, dtype))

    def rotator(self, setting: RopeSetting, dtype: Format) -> ForeignRotator:
        """Return a rotator of a new instance, in a session of its own."""
        self.fit(setting)  # it is found with instances of its own
        if self.built and setting not in self.ready:  # building may be slow: forks inherit it
            self.ready.add(setting)
            self.ask(self.session(first=True), "build", setting)
            self.door.ask_whether_it_forks()
        self.narrow_tables(setting, dtype)
        return super().rotator(setting, dtype)


def load(
    spec: str,
    order: str | None = None,
    changes: Changes = NO_CHANGES,
    alone: bool = False,
    device: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> ForeignOwn:
    """Return the implementation that a spec names; its module is imported. Raises: UsageError, BadInput.

    changes: of the stages of tables that it is given; alone: whether there is nothing else to change.
    device: None for the CPU, or where a module lies. arguments: by name, for every call, or for building.
    """
    where = loading.module_of(spec)
    given: dict[str, Any] = {"spec": spec, "order": order, "changes": dict(changes), "device": device}
    given["arguments"] = dict(arguments or {})
    likely = ["torch", "ropeaudit.subjects.calling.dispatch_log"]  # that all targets share
    with contextlib.suppress(OSError):
        if Path(where).is_file():
            likely = likely if b"torch" in Path(where).read_bytes() else []
    try:
        return ForeignOwn(process.door(f"{__name__}:opened", given, [__name__, *likely]), changes, alone)
    except ForeignError as error:
        raise BadInput(f"{where} cannot be imported: it {did(error)}") from None


def in_process(own: OwnCode) -> ForeignOwn:
    """Return own code that is called in this process, for a callable that exists only here."""
    opened = Opened(own)
    return ForeignOwn(process.in_process(opened, facts(opened)))


@dataclass(slots=True)
class _LazySession:
    """The session of an instance, made in a dtype; it begins with the first call."""

    dtype: Format
    session: Session | None = None
    in_place: bool = False


@dataclass(slots=True)
class ForeignRotator(Rotator):
    """An instance that is called in a child.

    fit: how own code is called. steps: methods of the child's rotator that make this one.
    """

    code: ForeignCode
    setting: RopeSetting
    dtype: Format
    fit: Fit
    lazy: _LazySession
    steps: tuple[tuple[Any, ...], ...] = ()

    @property
    def may_hold_state(self) -> bool:
        """Whether it is a function that may have been called before and kept state."""
        return not self.code.has_fresh_instances

    @property
    def in_place(self) -> bool:
        """Whether a backward pass changed its leaves where they lay."""
        return self.lazy.in_place

    def _called(self, method: str, *given: Any) -> Any:
        """Call a method of the child's rotator; return its value."""
        if self.lazy.session is None:
            self.lazy.session = self.code.session(self.fit)
        asked = self.setting, self.lazy.dtype, list(map(list, self.steps)), method, chance.number()
        value, self.lazy.in_place = self.code.ask(self.lazy.session, "called", *asked, *given)
        return value

    def _with_step(self, name: str, *how: Any) -> ForeignRotator:
        return replace(self, steps=(*self.steps, (name, *how)))

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, in one call if possible, in their order of dims."""
        return self._after((q, k), self._called("rotate_both", q, k, at), at)

    def rotate_parts(
        self, q: FloatArray, k: FloatArray, at: Positions, parts: Sequence[tuple[int, int]]
    ) -> Both:
        """Rotate q and k in parts, a call for each, in one message to the child."""
        rotated = cast(Both, self._called("rotate_parts", q, k, at, list(parts)))
        if self.code.after is None:
            return rotated
        first, second = rotated  # each part was a call of its own
        some = [np.s_[:, :, i:j] for i, j in parts]
        each = [
            self._after((q[one], k[one]), (first[one], second[one]), at[..., i:j])
            for one, (i, j) in zip(some, parts, strict=True)
        ]
        return np.concatenate([x for x, _ in each], axis=2), np.concatenate([x for _, x in each], axis=2)

    def at_once(self, threads: Sequence[Sequence[CallOf]]) -> list[list[Both]]:
        """Call in threads at the same time; return their results. threads: q, k, positions of calls."""
        both = zip(threads, self._called("at_once", threads), strict=True)
        return [
            [self._after((q, k), one, at) for (q, k, at), one in zip(calls, came, strict=True)]
            for calls, came in both
        ]

    def _after(self, given: Both, rotated: Both, at: Positions) -> Both:
        after = self.code.after
        return after(given, rotated, at, self.setting) if after else rotated

    def seconds(
        self,
        q: FloatArray,
        k: FloatArray,
        at: Positions,
        times: int,
    ) -> float:
        """Return the CPU seconds of the fastest call, as the child measures them."""
        return float(self._called("seconds", q, k, at, times))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the child's `OwnRotator`, such as `answer`."""
        if name not in _REMOTE:
            raise AttributeError(name)
        return partial(self._called, name)

    def in_dtype(self, dtype: Format, environment: Environment | None = None) -> ForeignRotator:
        """Return the same instance in another dtype, and in another environment if given."""
        narrow = self.code.narrow_tables(self.setting, dtype)
        return replace(self._with_step("in_dtype", dtype, environment, narrow), dtype=dtype)

    def with_layout(self, strides: Strides, index: Literal["int64", "int32"] = "int64") -> ForeignRotator:
        """Return the same instance, called with other strides and another dtype of positions."""
        return self._with_step("with_layout", strides, index)

    def reusing_buffers(self) -> ForeignRotator:
        """Return the same instance, called with positions in one tensor that is reused."""
        return self._with_step("reusing_buffers")

    def backward(self) -> ForeignRotator:
        """Return the same instance, whose backward pass is called."""
        return self._with_step("backward")
