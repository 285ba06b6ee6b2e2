"""The user's own function, class or module under audit, and its backward pass."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self, cast

import numpy as np

from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.errors import ForeignError, UsageError, reported, unusable_package
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import (
    arrays,
    conventions,
    environments,
    proposals,
    shapes,
    signatures,
)
from ropeaudit.subjects.calling.arrays import Engine, Strides
from ropeaudit.subjects.calling.code import CallOf, Code, Rotator
from ropeaudit.subjects.calling.conventions import Answer, Convention
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.environments import Environment, of_jax, of_torch
from ropeaudit.subjects.calling.own_files import OwnFiles
from ropeaudit.subjects.calling.signatures import can_be_copied, copied, is_module, value_of_role
from ropeaudit.subjects.calling.stages import NO_CHANGES, TABLES, Changes
from ropeaudit.subjects.exact_rotation import half_split

_GUESSED = ("class", "first_period", "last_period")  # roles whose values an answer names
_PATIENCE = 5e-3  # seconds that a thread waits for its turn
_NOT_TRACED = str(Path(__file__).parents[2])  # our own files
NOT_CHECKED = "not checked: "  # how a note of what an answer lists so begins
OWN_TABLES = f"{NOT_CHECKED}how your code makes its tables: ropeaudit gave tables of its own"


class _NotBuilt(UsageError):
    """A class or a factory that raises when it is built."""


class OwnCode(Code):
    """A function, an nn.Module, a class or a factory that the user wrote."""

    layouts: tuple[Layout, ...] = ("half", "interleaved")
    findings: list[str]
    own = True
    found: Fit | None = None  # how it is called

    def __init__(
        self,
        name: str,
        thing: Any,
        order: str | None = None,
        version: str = "none",
        changes: Changes = NO_CHANGES,
        device: str | None = None,
        files: OwnFiles | None = None,
        copied: bool = True,
    ) -> None:
        """Store the callable without calling it. Raises: UsageError for the device.

        device: the requested one; None for that of a module's tensors, else the CPU. files: None for code of
        an installed package. copied: whether a module is copied even if it is on its device already.
        """
        self.changes: Changes = {stage: fmt for stage, fmt in changes.items() if stage in TABLES}
        self.name, self.thing, self.order, self._loaded, self.files = name, thing, order, version, files
        self._copied = copied
        self.findings = []
        self.overwritten: list[str] = []  # calls that changed q or k and returned another array
        self.narrow: dict[Format, bool] = {}
        self.built_for: dict[RopeSetting, Any] = {}  # never called
        self.flag = cast("Layout | None", signatures.flag(thing))
        self.engine = signatures.engine(thing)
        self.built = inspect.isclass(thing) or (not is_module(thing) and signatures.is_factory(thing))
        self.told = list((signatures.building(thing) or {}).values()) if self.has_fresh_instances else []
        self._follows = device is None  # the module that is made
        if self.engine == "numpy" and device is not None and device.strip().lower() != "cpu":
            raise UsageError(
                f"--device {device}: {self.name} takes NumPy arrays, which lie on the CPU; leave it out"
            )
        self.device = of_jax(device) if self.engine == "jax" else of_torch(device)

    @property
    def version(self) -> str:
        """The digest of its file and of what it imports from its folder, now or in a call."""
        return self.files.version if self.files is not None else self._loaded

    @property
    def compiles(self) -> bool:
        """Whether the code uses torch.compile, by its type and source."""
        every = [self.thing]
        if type(self.thing).__module__.startswith("torch._dynamo"):
            return True
        with contextlib.suppress(Exception):  # of what has no source
            if hasattr(self.thing, "_torchdynamo_orig_callable"):
                return True
            module = inspect.getmodule(inspect.unwrap(self.thing))
            for one in every:
                with contextlib.suppress(TypeError, OSError):
                    if re.search(r"[._]compile(_|\b)", source := inspect.getsource(one)):
                        return True
                    known = vars(module)
                    named = [known[name] for name in {*re.findall(r"\w+", source)} & {*known}]
                    own = [other for other in named if getattr(other, "__module__", "") == known["__name__"]]
                    both = [*own, *map(type, own)]  # an object, and its class
                    every += [other for other in both if all(other is not seen for seen in every)]
        return False

    def under(self, environment: Environment) -> Self:
        """Return the same code in an environment; it is called as in the clean one."""
        other = super().under(environment)
        if other is not self:
            other.built_for, other._copied = {}, self._copied or environment.kind == "to"
        return other

    def try_call(
        self,
        setting: RopeSetting,
        convention: Convention,
        x: FloatArray,
        at: Positions,
        dtype: Format,
    ) -> Answer:
        """Call a new instance by a convention, for detection. Raises: WrongShape."""
        function, nothing = self.instance(setting), list[bool]()

        def called(*plain: Any, **named: Any) -> Any:
            with environments.silent(errors=True):
                returned = function(*plain, **named)
            nothing.append(returned is None)
            return returned

        try:
            answer = replace(convention, device=self.device)(called, x, at, setting, dtype)
        except Exception as error:  # of a package that it needs
            raise unusable_package(error) or error from None
        if any(nothing) and not answer.changed:
            raise shapes.WrongShape("returns None and leaves what it is given as it was")
        return replace(answer, held=())

    def possible_calls(
        self, setting: RopeSetting
    ) -> tuple[list[Convention], Engine, list[str], str, dict[str, str]]:
        """Return possible conventions, the engine, arguments for positions, what to type for several axes.

        Then argument -> how it is shown, if not by name.
        """
        function, grid = self.instance(setting), setting.grid is not None
        roles = signatures.Parameters.of(function).roles
        placing = [name for name, role in roles.items() if role in signatures.PLACING]
        likely = proposals.of_arguments(function, self.name, grid)
        several = "" if grid else signatures.several_axes_hint(self.name, function)
        shown = self._other_bases(function, setting.base, "called")
        return likely, signatures.engine(function), placing, several, shown

    def _other_bases(self, function: Any, base: float, how: str) -> dict[str, str]:
        """Note a default that the base replaces; return argument -> argument=base."""
        taken, shown = signatures.Parameters.of(function), dict[str, str]()
        for name, default in ((one.name, one.default) for one in taken.fixed):
            if taken.roles[name] == "base" and type(default) in (int, float) and default != base:
                shown[name] = f"{name}={base:.10g}"
                self._note(f"{NOT_CHECKED}its default {name}={default} ({how} with {base:.10g})")
        return shown

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why jax refuses a dtype, or why the code cannot be built in its environment.

        Calls report other reasons; `Environment.lacking` is asked before.
        """
        if self.engine == "jax" and dtype is FP64 and not environments.jax_is_wide():
            return "jax makes float32 arrays of float64 ones; set JAX_ENABLE_X64=1"
        if self.clean is None:
            return ""
        try:
            self.environment.moved(self.instance(setting))
        except environments.NothingToMove as error:
            return error.typed
        except _NotBuilt as error:
            return f"under {self.environment.label(self.device.name)} {error.typed}"
        return ""

    def instance(self, setting: RopeSetting) -> Any:
        """Return a new instance, or the function; modules are in eval mode.

        Building may be slow: objects are built once for a setting, then copied. Raises: UsageError.
        """
        thing = self.thing
        if setting in self.built_for:
            return self._for_inference(copied(self.built_for[setting]))
        if self.built:
            parameters = signatures.building(thing, setting.scaling.kind != "default")
            if parameters is None:
                unknown = ", ".join(signatures.not_for_building(thing))
                first = unknown.partition(",")[0]
                raise signatures.NotUnderstood.with_lines(
                    f"nothing was checked: what to build {self.name} with is not known",
                    f"unknown: {unknown}",
                    f"give a value: check --arg {first}=VALUE; or name a factory: {signatures.FACTORY}",
                )
            given = {
                name: value_of_role(role, setting, thing, name, engine=self.engine, of=self)
                for name, role in parameters.items()
            }
            for name in (one for one, role in parameters.items() if role in _GUESSED):
                self._note(f"is built with {name} {getattr(given[name], '__name__', given[name])}")
            self._other_bases(thing, setting.base, "built")
            built = reported(_NotBuilt, f"{self.name} cannot be built with {given}:")
            with built, self.environment.built(), conventions.contain_exits():
                chance.begin(chance.number())
                thing = self.thing(**given)
            thing = signatures.initialised(thing)
            if not callable(thing):
                raise UsageError(f"{self.name} makes a {type(thing).__name__}, which cannot be called")
            if can_be_copied(thing):
                self.built_for[setting] = thing
                with contextlib.suppress(Exception):  # what cannot be copied is built anew
                    return self._for_inference(copied(thing))
                del self.built_for[setting]
            return self._for_inference(thing)
        return self._for_inference(copied(thing)) if is_module(thing) else thing

    def _for_inference(self, thing: Any) -> Any:
        """Return an instance; a module is put on the device and in eval mode, as in serving."""
        thing = self.environment.moved(thing)
        if not is_module(thing):
            return thing
        if self._follows:
            self.device = environments.of_module(thing) or self.device
        else:
            where = f"--device {self.device.name}: {self.name}"
            with reported(UsageError, f"{where} cannot be moved there:"):
                thing = self.device.moved(thing)
        if thing.training:
            thing.eval()
            self._note(f"{NOT_CHECKED}training mode: a module is called in eval mode")
        return thing

    def rotator(self, setting: RopeSetting, dtype: Format) -> OwnRotator:
        """Return a rotator of a new instance, or of the module itself without a copy."""
        fit = cast(Fit, self.found)
        if fit.layout != setting.layout and fit.sure:
            self._note(f"behaves like {fit.layout} pairs; it is audited as {setting.layout}, as asked")
        if self.clean is not None and not self.has_fresh_instances and self.files is None:
            self._note("was called clean before: what it cached then is not made under it")
        lies_there = is_module(self.thing) and (self._follows or self.device.holds(self.thing))
        instance = self.thing if lies_there and not self._copied else self.instance(setting)
        narrow = self.narrow.get(dtype, False)
        fit = replace(fit, convention=replace(fit.convention, narrow=narrow, device=self.device))
        return OwnRotator(self, fit, setting, dtype, self.environment.wrapped(instance))

    def build(self, setting: RopeSetting) -> None:
        """Build the object that instances are copied from; later calls report any exception."""
        with contextlib.suppress(Exception):
            self.instance(setting)

    @property
    def has_fresh_instances(self) -> bool:
        """Whether it is a module, class or factory: a function has no other instance."""
        return is_module(self.thing) or self.built

    def note_answer(self, answer: Answer, dtype: Format) -> None:
        """Note side effects of a call, and a dtype or device that differs from the input's."""
        if answer.changed and not answer.in_place:
            b, h, s, _ = answer.values.shape
            self.overwritten.append(f"{b} x {h} heads, tokens: {s}")
        elsewhere = answer.device and answer.device != self.device.name
        expected, beside = torch_arrays.torch_name(dtype), " and ".join(answer.changed_beside)
        for holds, text in (
            (answer.changed, "changes its input where it lies; it was given copies"),
            (beside, f"changes the {beside} where they lie; it was given copies"),
            (elsewhere, f"returns a tensor on {answer.device} for one on {self.device.name}"),
            (answer.dtype != expected, f"a call returned {answer.dtype} for {expected}"),
        ):
            if holds:
                self._note(text)

    def _note(self, text: str) -> None:
        usual = self.environment.kind in ("none", "inference")
        where = "" if usual else f" under {self.environment.label(self.device.name)}"
        text = f"{self.name}{where}: {text}."
        if text not in self.findings:
            self.findings.append(text)


@dataclass(slots=True)
class OwnRotator(Rotator):
    """An instance of code that is called in this process."""

    own: Code
    fit: Fit
    setting: RopeSetting
    dtype: Format
    instance: Any
    held: list[Any] = field(default_factory=list)

    @property
    def in_place(self) -> bool:
        """Whether a backward pass changed its leaves where they lay."""
        return isinstance(self.instance, Backward) and self.instance.in_place

    def rotate_both(
        self,
        q: FloatArray,
        k: FloatArray,
        at: Positions,
    ) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, in one call if possible, in their order of dims."""
        if self.fit.convention.takes("k", "qkv"):
            answer = self.answer(q, k, at)
            first, second = answer.values, answer.keys
            if second is None:  # it takes k and returns q alone
                second = self.answer(k, None, at).values
        else:
            first = self.answer(q, None, at).values
            second = first if k is q else self.answer(k, None, at).values
        if not self.fit.permuted or isinstance(self.instance, Backward):
            return first, second
        back = np.argsort(half_split(self.setting.rotary_dim, self.setting.head_dim))
        return first[..., back], second[..., back]

    def hold_output(self, q: FloatArray, k: FloatArray | None, at: Positions) -> list[FloatArray]:
        """Call, hold the returned arrays, and return their values."""
        self.held[:] = self.answer(q, k, at).held
        return self.held_output()

    def held_output(self) -> list[FloatArray]:
        """Return the present values of the arrays that `hold_output` holds."""
        return [arrays.values(one)[0].copy() for one in self.held]

    def at_once(self, threads: Sequence[Sequence[CallOf]]) -> list[list[tuple[FloatArray, FloatArray]]]:
        """Call in threads at the same time; return their results. threads: q, k, positions of calls."""
        from concurrent.futures import ThreadPoolExecutor  # in-function: it loads logging

        start, turns = threading.Barrier(len(threads)), _LineScheduler(len(threads))

        def run(number: int, calls: Sequence[CallOf]) -> list[tuple[FloatArray, FloatArray]]:
            start.wait()
            sys.settrace(turns.traced(number))
            try:
                return [self.rotate_both(*call) for call in calls]
            finally:
                sys.settrace(None)
                turns.give(number, ended=True)

        sys.excepthook = getattr(sys, "excepthook", None) or sys.__excepthook__  # else no thread begins
        with ThreadPoolExecutor(len(threads)) as pool:
            numbered = enumerate(threads)
            futures = [pool.submit(copy_context().run, run, number, one) for number, one in numbered]
        return [future.result() for future in futures]

    def with_layout(self, strides: Strides, index: Literal["int64", "int32"] = "int64") -> OwnRotator:
        """Return the same instance, called with other strides and another dtype of positions."""
        convention = replace(self.fit.convention, strides=strides, index=index)
        return replace(self, fit=replace(self.fit, convention=convention))

    def reusing_buffers(self) -> OwnRotator:
        """Return the same instance, called with positions in one tensor that is reused."""
        return replace(self, instance=arrays.with_reused_buffers(self.instance))

    def backward(self) -> OwnRotator:
        """Return the same instance, whose backward pass is called like a rotation.

        It takes and returns gradients of q and k, the second of each pair negated: so they rotate as vectors.
        """
        fit = replace(self.fit, backward=not self.fit.backward)
        return replace(self, fit=fit, instance=Backward(self.instance, self.fit.convention))

    def in_dtype(
        self, dtype: Format, environment: Environment | None = None, narrow: bool = False
    ) -> OwnRotator:
        """Return the same instance in another dtype, and in another environment if given.

        narrow: whether tables are given in the dtype.
        """
        fit = replace(self.fit, convention=replace(self.fit.convention, narrow=narrow))
        if environment is None:
            return replace(self, fit=fit, dtype=dtype)
        wrapped = environment.wrapped(self.instance)
        return replace(self, fit=fit, dtype=dtype, own=self.own.under(environment), instance=wrapped)

    def answer(self, q: FloatArray, k: FloatArray | None, at: Positions) -> Answer:
        """Make one call; return its result and side effects. k is q where it is None.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) where it takes them.
        """
        convention = self.fit.convention
        if at.ndim == 2 and self.fit.rows:
            convention = convention.for_rows
        if self.fit.backward:  # around it a rotation by the negative angle is one by the angle
            q, k = conjugated(q, self.setting), None if k is None else conjugated(k, self.setting)
        if self.fit.permuted and isinstance(self.instance, Backward):
            order = half_split(self.setting.rotary_dim, self.setting.head_dim)
            q, k = q[..., order], None if k is None else k[..., order]
        with self.own.environment.entered(self.own.device.name):
            answer = convention(self.instance, q, at, self.setting, self.dtype, k, self.own.changes)
        if isinstance(self.own, OwnCode):
            self.own.note_answer(answer, self.dtype)
        if not self.fit.backward:
            return answer
        keys = None if answer.keys is None else conjugated(answer.keys, self.setting)
        return replace(answer, values=conjugated(answer.values, self.setting), keys=keys)


class _LineScheduler:
    """Lets threads run others' code line by line in turn; skips one that waits for a lock."""

    def __init__(self, count: int) -> None:
        self.changed, self.turn, self.running = threading.Condition(), 0, set(range(count))

    def traced(self, number: int) -> Callable[[FrameType, str, Any], Any]:
        """Return the trace function of a thread."""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "call":
                path = frame.f_code.co_filename
                return None if path.startswith(_NOT_TRACED) or f"{os.sep}torch{os.sep}" in path else trace
            self.give(number)
            with self.changed:
                self.changed.wait_for(lambda: self.turn == number or self.running == {number}, _PATIENCE)
            return trace

        return trace

    def give(self, number: int, ended: bool = False) -> None:
        """Let the next thread have a turn."""
        with self.changed:
            self.running -= {number} if ended else set()
            later = sorted(self.running, key=lambda other: (other <= number, other))
            self.turn = later[0] if later else number
            self.changed.notify_all()


_INFERENCE = "the code switches autograd off: it is for inference alone"
_NUMPY = "it goes through NumPy, which autograd does not see"
_TO_NUMPY = ("numpy", "__array__")  # methods of a tensor
_VECTORS = {"q": "q", "k": "k", "x": "its input", "qkv": "its input"}  # as messages call them


class NoGradient(ForeignError):
    """Autograd has no gradient of what was returned."""


class SwitchedOff(NoGradient):
    """The code uses its inputs with autograd off, as under torch.no_grad(), or in NumPy."""


def no_gradient_reason(call: Callable[[], object]) -> str:
    """Return why a call can have no gradient; empty where it could.

    Either all operations on tensors that require grad run with autograd off, or vectors go through NumPy.
    Code that uses detach() or .data and continues in torch has autograd on.
    """
    torch = arrays.torch()
    modes, in_numpy = set[bool](), list[Any]()

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            if getattr(func, "__name__", "") in _TO_NUMPY and args[0].is_floating_point():
                in_numpy.append(func)
            given = [*args, *(kwargs or {}).values()]
            given += [x for each in given if isinstance(each, (list, tuple)) for x in each]
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
                modes.add(torch.is_grad_enabled())
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    return _NUMPY if in_numpy else _INFERENCE if modes == {False} else ""


def gradients(
    returned: tuple[Any, ...],
    leaves: tuple[Any, ...],
    upstream: tuple[Any, ...],
    names: tuple[str, ...],
) -> tuple[Any, ...]:
    """Return the gradients of the leaves, given upstream ones. Raises: NoGradient."""
    for name, result in zip(names, returned, strict=True):
        if not getattr(result, "requires_grad", False):
            raise NoGradient(
                f"no gradient reaches {name}: what it returns does not require grad, as behind detach(), "
                ".data, no_grad() or NumPy"
            )
    # given as gradients they would make torch load its symbolic shapes, which takes long
    total = sum((y * x.to(y.dtype)).sum() for x, y in zip(upstream, returned, strict=True))
    results: tuple[Any, ...] = arrays.torch().autograd.grad(total, leaves, allow_unused=True)
    for name, result in zip(names, results, strict=True):
        if result is None:
            raise NoGradient(f"no gradient reaches {name}: what it returns does not depend on it")
    return results


@dataclass(slots=True)
class Backward:
    """A function's backward pass: it takes upstream gradients in place of vectors, and returns gradients.

    As rotating is linear, gradients do not depend on the vectors: these are the upstream gradients with dims
    in reverse order. The function gets copies. in_place: whether it rotates its input in place.
    """

    function: Any
    convention: Convention
    in_place: bool = False

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Return the gradient of each vector. Raises: NoGradient, WrongShape."""
        values: list[Any] = [*positional, *named.values()]
        by_place = sorted(self.convention.arguments, key=lambda argument: argument[0] is not None)
        roles = [role for _, role in by_place]
        at = [number for number, role in enumerate(roles) if role in _VECTORS]

        def called(vectors: list[Any]) -> Any:
            """Call the function with other vectors."""
            given = list(values)
            for number, x in zip(at, vectors, strict=True):
                given[number] = x
            count = len(positional)
            return self.function(*given[:count], **dict(zip(named, given[count:], strict=True)))

        upstream = [values[number] for number in at]
        with arrays.torch().enable_grad():
            leaves = [x.flip(-1).requires_grad_() for x in upstream]
            copies, others = ([x.clone() for x in leaves] for _ in "ab")
            returned = called(copies)
            in_place = any(copy._version for copy in copies)
            self.in_place |= in_place
            if in_place and (why := no_gradient_reason(lambda: called(others))):
                raise SwitchedOff(why)  # it looks as if it were passed on
            returned = tuple(copies) if returned is None else returned
            if isinstance(arrays.as_tuple(returned), (tuple, list)) and self.convention.takes("qkv"):
                raise SwitchedOff("it takes q, k and v in one array and returns them apart")
            both = arrays.split_returned(returned, len(upstream) == 2)[: len(upstream)]
            outputs = tuple(part for part in both if part is not None)
            for output, x in zip(outputs, upstream, strict=False):
                if output.shape != x.shape:
                    raise shapes.WrongShape(f"returns the shape {tuple(output.shape)} for {tuple(x.shape)}")
            count = len(outputs)
            names = tuple(_VECTORS[roles[number]] for number in at[:count])
            try:
                results = gradients(outputs, tuple(leaves[:count]), tuple(upstream[:count]), names)
            except NoGradient as error:
                if why := no_gradient_reason(lambda: called(others)):
                    raise SwitchedOff(why) from error
                raise
        return results if count == 2 else results[0]


def conjugated(x: FloatArray, setting: RopeSetting) -> FloatArray:
    """Return x with the second of each pair negated; around a rotation this inverts it."""
    result = np.array(x)
    second = split_pairs(result, setting)[1]
    np.negative(second, out=second)
    return result
