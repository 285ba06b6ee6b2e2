"""The user's own function, class or module under audit.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.errors import RopeAuditError, UsageError, one_line
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import anew, building, conventions, detection, devices, signatures
from ropeaudit.subjects.calling.anew import Source, can_be_copied, copied, is_module
from ropeaudit.subjects.calling.arrays import Refilling, Strides
from ropeaudit.subjects.calling.code import NO_CHANGES, Changes, Code, Rotator
from ropeaudit.subjects.calling.conventions import Answer, Convention
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.timeout import patiently, together
from ropeaudit.subjects.exact_rotation import half_split

NOT_CHECKED = "not checked: "  # how a note of what an answer lists so begins
_MOST_BITS = 16  # of a dtype whose tables are otherwise wider


class _NotBuilt(UsageError):
    """A class or a factory raises where it is called as it has to be."""


class OwnCode(Code):
    """A function, an nn.Module, a class or a factory that the user wrote.

    source: the file that it is from, None of an installed package. executed_anew: whether nothing called it
    before this audit did. overwritten: calls that changed q or k and returned another array.
    """

    layouts: tuple[Layout, ...] = ("half", "interleaved")
    clean: OwnCode | None = None  # it says how the same is called in an environment
    findings: list[str]
    declared: int | None = None  # the largest position + 1 by its config; None where nothing says it
    served: int | None = None  # up to where its setting serves; None where nothing says it
    _started: OwnCode | None = None  # the same, its file executed anew

    def __init__(
        self,
        name: str,
        thing: Any,
        order: str | None = None,
        version: str = "none",
        changes: Changes = NO_CHANGES,
        home: process_state.State | None = None,
        alone: bool = False,
        device: str | None = None,
    ) -> None:
        """Keep what is to be called; nothing is called here. Raises: UsageError for the device.

        home: the state in which its calls begin. alone: whether `changes` can reach nothing else.
        device: the one that was requested; None for the one where a module lies, else the CPU.
        """
        self._requested, self._alone = changes, alone
        self.changes: Changes = {stage: fmt for stage, fmt in changes.items() if stage in conventions.TABLES}
        self.name, self.thing, self.order, self._loaded = name, thing, order, version
        self.home = home
        self.findings = []
        self.overwritten: list[str] = []
        self._fits: dict[RopeSetting, Fit] = {}
        self._narrow: dict[Format, bool] = {}
        self.source: Source | None = None
        self.executed_anew = False
        self._built: dict[RopeSetting, Any] = {}  # never called
        self.flag = cast("Layout | None", signatures.flag(thing))
        self.engine = "jax" if signatures.wants_jax(thing) else "torch"
        if self.engine == "torch" and signatures.wants_numpy(thing):
            self.engine = "numpy"
        self._follows = device is None  # the module that is made
        if self.engine == "numpy" and device is not None and device.strip().lower() != "cpu":
            raise UsageError(
                f"--device {device}: {self.name} takes NumPy arrays, which lie on the CPU; leave it out"
            )
        self.device = devices.of_jax(device) if self.engine == "jax" else devices.of_torch(device)

    @property
    def version(self) -> str:
        """The digest of its file and of what it imported from its folder so far, or may import in a call."""
        modules = (self.home or {}).get("modules")
        return modules.version if modules is not None else self._loaded

    @property
    def loaded_version(self) -> str:
        """What `version` was before any call."""
        return self._loaded

    def under(self, environment: Environment) -> OwnCode:
        """Return the same code in an environment; how it is called is found out without it."""
        if environment.kind == "none":
            return self
        other = copy.copy(self)
        other.environment, other.clean, other.findings, other._built = environment, self, [], {}
        other._started = None
        return other

    def fit(self, setting: RopeSetting) -> Fit:
        """Return how it is called, found out once a setting. Raises: UsageError."""
        if self.clean is not None:
            fit = self.clean.fit(setting)
            self.engine, self.changes, self.device = self.clean.engine, self.clean.changes, self.clean.device
            return fit
        key = replace(setting, layout=setting.layout if self.flag else "half", scale=1.0)
        if key not in self._fits:
            with process_state.at_home(self.home):
                fit = detection.fit(
                    lambda: self.instance(key), self.name, key, self.order, lambda: self.device
                )
            self.engine, self._fits[key] = fit.convention.engine, fit
            tables = fit.convention.signature.tables
            what, reach = "computes the rest itself", ""
            if tables:
                reach = f"; {', '.join(conventions.TABLES)} of the tables can be changed"
            else:
                self.changes, what = {}, f"takes no tables from here ({fit.convention.signature})"
            ignored = [stage for stage in self._requested if stage not in self.changes]
            if ignored and self._alone:
                raise UsageError(
                    f"--set {ignored[0]}: {self.name} {what}{reach}; add --recipe, or leave it out"
                )
            if ignored:
                self._note(f"{what}: --set {', '.join(ignored)} changes the recipes alone")
            self._note(f"called as {fit.convention}, layout {fit.layout}{detection.sureness(fit)}")
            if tables:
                self._note(f"{NOT_CHECKED}how your code makes its tables: ropeaudit gave tables of its own")
            if left := signatures.left_out(self.instance(key), fit.convention.signature):
                self._note(f"not given, though it takes them: {', '.join(left)}")
            if fit.permuted:
                self._note("takes interleaved pairs and returns them half-split, which leaves scores alone")
        return self._fits[key]

    def layout(self, setting: RopeSetting) -> Layout:
        """Return the layout in which it is audited unless another is requested. Raises: UsageError.

        Of code that is told which by an argument, that of the argument's default.
        """
        return super().layout(setting if self.flag is None else replace(setting, layout=self.flag))

    def narrow_tables(self, fit: Fit, setting: RopeSetting, dtype: Format) -> bool:
        """Return whether cos and sin are given in the dtype, which is found out once."""
        if dtype not in self._narrow:
            self._narrow[dtype] = self._wants_narrow_tables(fit.convention, setting, dtype)
            if self._narrow[dtype]:
                self._note(f"tables are given in {dtype}: with float32 ones it returns float32")
        return self._narrow[dtype]

    def _wants_narrow_tables(self, convention: Convention, setting: RopeSetting, dtype: Format) -> bool:
        """Return whether float32 tables alone make what is returned float32: then the dtype's are wanted."""
        roles = set(convention.signature.roles)
        real = {"cos", "cos_sin", "sin_cos"} & roles or ("freqs" in roles and convention.width != "pairs")
        if not real or dtype.storage_bits > _MOST_BITS or "table" in self.changes:
            return False
        x, at = np.ones((1, 1, 2, setting.head_dim), dtype.carrier), np.arange(2, dtype=np.int64)

        def returned(narrow: bool) -> set[str]:
            with process_state.at_home(self.home):
                answer = replace(convention, narrow=narrow)(self.instance(setting), x, at, setting, dtype)
            return {answer.dtype, answer.keys_dtype}

        with contextlib.suppress(Exception):  # whatever other people's code raises: the calls will show it
            return returned(False) == {FP32.name} and returned(True) == {torch_arrays.spelled(dtype)}
        return False

    def lies_there(self) -> bool:
        """Return whether it is a module that is called where it lies: no copy has to be moved."""
        return is_module(self.thing) and (self._follows or self.device.holds(self.thing))

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why jax does not take a dtype, or its environment cannot be had; the rest shows in calls.

        Or why nothing can be built in it, where something can be without.
        """
        if self.engine == "jax" and dtype is FP64 and not devices.jax_is_wide():
            return "jax makes float32 arrays of float64 ones; set JAX_ENABLE_X64=1"
        if self.clean is None:
            return ""
        if lacking := self.environment.lacking(self.fit(setting).convention.engine, dtype, self.device.name):
            return lacking
        try:
            self.instance(setting)
        except _NotBuilt as error:
            return f"under {self.environment.label(self.device.name)} {error.typed}"
        return ""

    def state(self) -> process_state.State | None:
        """Return the state in which its calls begin."""
        return self.environment.calls(self.home, self.device.name)

    def instance(self, setting: RopeSetting) -> Any:
        """Return a new instance, or the function itself, which has but one; modules in eval mode.

        Objects are built once a setting and copied, for tables take long to build. Raises: UsageError.
        """
        thing = self.thing
        if setting in self._built:
            return self._for_inference(copied(self._built[setting]))
        if inspect.isclass(thing) or (not is_module(thing) and signatures.is_factory(thing)):
            parameters = signatures.building(thing, setting.scaling.kind != "default")
            if parameters is None:
                unknown = ", ".join(signatures.not_for_building(thing))
                raise signatures.NotUnderstood(
                    f"{self.name} needs arguments that are not known here ({unknown}); give a function, or a "
                    "class that takes nothing but dims, base, a largest position, a layout or a config. "
                    f"{signatures.WRAP}"
                )
            given = {
                name: building.building_argument(
                    role, setting, thing, name, declared=self.declared, served=self.served
                )
                for name, role in parameters.items()
            }
            try:
                with process_state.at_home(self.environment.builds(self.home)):
                    thing = patiently(lambda: self.thing(**given), self.name)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever it raises is reported
                raise _NotBuilt(f"{self.name} cannot be built with {given}: {one_line(error)}") from None
            if not callable(thing):
                raise UsageError(f"{self.name} makes a {type(thing).__name__}, which cannot be called")
            if can_be_copied(thing):
                self._built[setting] = thing
                with contextlib.suppress(Exception):  # what cannot be copied is built anew
                    return self._for_inference(copied(thing))
                del self._built[setting]
            return self._for_inference(thing)
        return self._for_inference(copied(thing)) if is_module(thing) else thing

    def _for_inference(self, thing: Any) -> Any:
        """Return what was made, a module in eval mode, in which models run that are served, on the device."""
        if not is_module(thing):
            return thing
        if self._follows:
            self.device = devices.of_module(thing) or self.device
        else:
            try:
                thing = patiently(lambda: self.device.moved(thing), self.name)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever it raises is reported
                why = f"{self.name} cannot be moved there: {one_line(error)}"
                raise UsageError(f"--device {self.device.name}: {why}") from None
        if thing.training:
            patiently(thing.eval, self.name)
            self._note("a module is called in eval mode; training mode is not")
        return thing

    def rotator(self, setting: RopeSetting, dtype: Format, instance: Any = None) -> OwnRotator:
        """Return what calls an instance, a new one where it is None."""
        fit = self.fit(setting)
        if fit.layout != setting.layout and fit.sure:
            self._note(f"behaves like {fit.layout} pairs; it is audited as {setting.layout}, as asked")
        if instance is None and (renewed := self._renewed(setting, dtype)) is not self:
            return renewed.rotator(setting, dtype)
        instance = self.instance(setting) if instance is None else instance
        return OwnRotator(self, fit, setting, dtype, self.environment.wrapped(instance, self.device.name))

    def uncalled(self, setting: RopeSetting, dtype: Format) -> OwnCode:
        """Return the same of the file executed anew, which nothing has called; itself where there is none."""
        made = anew.thing(self.clean or self, setting, dtype)
        return self if made is None else self.of(*made)

    def _renewed(self, setting: RopeSetting, dtype: Format) -> OwnCode:
        """Return the same code without the past of clean calls, where an environment is to be seen.

        A table that is cached at the first call is made in the environment then, as in a process that runs in
        it. Itself where it is clean, of a package, or dear to execute: clean calls came first then.
        """
        if self.clean is None or self.executed_anew:
            return self
        if self._started is None:
            self._started = self.uncalled(setting, dtype)
            if self._started is self and not self.has_instances:
                self._note("was called clean before: what it cached then is not made under it")
        return self._started

    def of(self, thing: Any, modules: process_state.State) -> OwnCode:
        """Return the same of a thing that the file executed anew made, and of its modules."""
        other = copy.copy(self)
        other.thing, other.executed_anew, other._built = thing, True, {}
        other.home = (self.home or {}) | modules
        return other

    @property
    def has_instances(self) -> bool:
        """Whether it is more than a function, which has no instance but itself."""
        return inspect.isclass(self.thing) or is_module(self.thing) or signatures.is_factory(self.thing)

    def note_answer(self, answer: Answer, dtype: Format) -> None:
        """Note what is worth knowing of an answer."""
        if answer.changed and not answer.in_place:
            b, h, s, _ = answer.values.shape
            self.overwritten.append(f"{b} x {h} heads, tokens: {s}")
        if answer.changed:
            self._note("changes its input where it lies; it was given copies")
        if answer.changed_beside:
            self._note(
                f"changes the {' and '.join(answer.changed_beside)} where they lie; it was given copies"
            )
        if answer.device and answer.device != self.device.name:
            self._note(f"returns a tensor on {answer.device} for one on {self.device.name}")
        if answer.dtype != (expected := torch_arrays.spelled(dtype)):
            self._note(f"a call returned {answer.dtype} for {expected}")

    def _note(self, text: str) -> None:
        where = f" under {self.environment.label(self.device.name)}" if self.clean else ""
        text = f"{self.name}{where}: {text}."
        if text not in self.findings:
            self.findings.append(text)


T = TypeVar("T")


@dataclass(slots=True)
class OwnRotator(Rotator):
    """An instance of own code that is called."""

    own: OwnCode
    fit: Fit
    setting: RopeSetting
    dtype: Format
    instance: Any

    @property
    def has_past(self) -> bool:
        """Whether it is a function that may have been called before, and may keep something of that."""
        return not self.own.executed_anew and self.instance is self.own.thing

    def afresh(self) -> OwnRotator:
        """Return a rotator of an instance that has not been called yet."""
        return self.own.rotator(self.setting, self.dtype)

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated, as what is returned for q or for k, where both are given."""
        answer = self.answer(x[None], None, at)
        rotated: FloatArray = (answer.keys if key and answer.keys is not None else answer.values)[0]
        return rotated

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, by one call where it takes both, dims in the order they were given."""
        first, second = self.rotate_whole(q, k, at)
        if not self.fit.permuted:
            return first, second
        back = np.argsort(half_split(self.setting.rotary_dim, self.setting.head_dim))
        return first[..., back], second[..., back]

    def rotate_whole(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return the same with dims in the order in which the code returns them."""
        if self.fit.convention.takes_keys:
            answer = self.answer(q, k, at)
            first, second = answer.values, answer.keys
            if second is None:  # it takes k and returns q alone
                second = self.answer(k, None, at).values
        else:
            first = self.answer(q, None, at).values
            second = first if k is q else self.answer(k, None, at).values
        return first, second

    def together(self, calls: Callable[[], T], what: str) -> T:
        """Return what `calls` returns, which calls this instance many times in a row, in one state."""
        with process_state.at_home(self.own.state()):
            result: T = together(calls, what)
        return result

    def lying(self, strides: Strides, index: Literal["int64", "int32"] = "int64") -> OwnRotator:
        """Return the same instance, given vectors that lie so in memory, and positions as such integers."""

        def of(convention: Convention) -> Convention:
            return replace(convention, strides=strides, index=index)

        rows = None if self.fit.rows is None else of(self.fit.rows)
        return replace(self, fit=replace(self.fit, convention=of(self.fit.convention), rows=rows))

    def refilling(self) -> OwnRotator:
        """Return the same instance, given positions in one tensor that each call fills anew."""
        return replace(self, instance=Refilling(self.instance))

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> OwnRotator:
        """Return the same instance, called in another dtype, and in an environment where one is given."""
        if environment is None:
            return replace(self, dtype=dtype)
        wrapped = environment.wrapped(self.instance, self.own.device.name)
        return replace(self, dtype=dtype, own=self.own.under(environment), instance=wrapped)

    def answer(self, q: FloatArray, k: FloatArray | None, at: Positions) -> Answer:
        """Return what one call gives, with what it did beside; k is q where it is None.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) where it takes them.
        """
        convention = self.fit.rows if at.ndim == 2 and self.fit.rows is not None else self.fit.convention
        if self.own.narrow_tables(self.fit, self.setting, self.dtype):
            convention = replace(convention, narrow=True)
        with process_state.at_home(self.own.state()):
            answer = convention(self.instance, q, at, self.setting, self.dtype, k, self.own.changes)
        self.own.note_answer(answer, self.dtype)
        return answer
