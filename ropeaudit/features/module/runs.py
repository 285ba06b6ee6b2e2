"""Every RoPE module of a target, run in each way of loading and each dtype; a result each."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import BadInput, one_line
from ropeaudit.features.module import outputs, references, running, ways
from ropeaudit.features.module.buffers import CASTS
from ropeaudit.features.module.expected import Expected
from ropeaudit.features.module.outputs import Places
from ropeaudit.features.module.references import Exact, Known, frequencies_of
from ropeaudit.features.module.running import Grid, Measured
from ropeaudit.features.module.source import moved
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.runtime import process_state
from ropeaudit.subjects.calling import call_arguments, devices, forwards
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.forwards import Fitted, NotFitted

_SAME = 2.0**-20  # relative: what float32 arithmetic on another road leaves of frequencies


@dataclass(frozen=True, slots=True)
class Options:
    """How modules are run. loaded: the ways, all usual ones where None. arguments: for a class."""

    loaded: tuple[str, ...] | None
    dtypes: tuple[Format, ...]
    up_to: int = running.UP_TO
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The module as built with how it is called, and the dtype of the vectors that it was given."""

    part: Part
    given: Any


@dataclass(frozen=True, slots=True)
class Run:
    """What one RoPE module does, loaded in one way.

    module: its place in what was built, and its class. dtype: of the way. device: where it was run. call: of
    forward. held: the dtypes of its buffers that hold RoPE. buffer_error: what those are off from as built,
    relative. measured: None where it was not run; unfitted says why. imaginary_lost: whether a complex table
    is real now. reproduction: what a snippet needs to run it again.
    """

    module: str
    kind: str
    loaded: str
    dtype: str
    device: str
    call: str
    held: str
    buffer_error: float | None
    against: str
    as_built: bool  # whether that is what the module as built shows
    measured: Measured | None
    unfitted: NotFitted | None = None
    imaginary_lost: bool = False
    reproduction: Reproduction | None = field(default=None, repr=False, compare=False)

    @property
    def wrong(self) -> bool:
        """Whether what it returns, or without a run what it holds, is off beyond what float32 explains."""
        if self.imaginary_lost:
            return True
        if self.measured is not None:
            return not self.measured.excess <= 1 and not self.measured.rounded
        return self.buffer_error is not None and not self.buffer_error <= _SAME

    @property
    def reason(self) -> str:
        """Why it was not run, or what it returned was not understood, in words."""
        return "" if self.unfitted is None else self.unfitted.reason

    @property
    def raised(self) -> bool:
        """Whether it was not run for having raised."""
        return self.unfitted is not None and self.unfitted.why == "raised"

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What explains that it is off; None where it is not, and where nothing that was tried does."""
        if self.measured is not None:
            return self.measured.diagnosis
        return Diagnosis("buffer-cast", {"format": self.held}) if self.wrong and self.held in CASTS else None

    @property
    def way(self) -> str:
        """How it was loaded, in words."""
        return ways.words(self.loaded, self.dtype)


def run(target: Target, options: Options, notes: list[str]) -> list[Run]:
    """Return what every RoPE module of a target does in every way."""
    with process_state.at_home(target.builder.home):
        return _run(target, options, notes)


def _run(target: Target, options: Options, notes: list[str]) -> list[Run]:
    built = target.built
    dtype, device = _own_dtype(built), target.place or devices.of_module(built) or devices.CPU
    found = parts(target, dtype, device, options.up_to, notes)
    if not found:
        return []
    results: list[Run] = []
    for way in options.loaded or ways.usual(target.builder):
        for dtype in options.dtypes if way != ways.BUILT else options.dtypes[:1]:
            results += _loaded(target.builder, built, way, dtype, found, device, notes)
    return results


def _own_dtype(module: Any) -> Any:
    """Return the dtype of a module's parameters, or float32."""
    import torch

    floats = (one.dtype for one in module.parameters() if one.is_floating_point())
    return next(floats, torch.float32)


def _loaded(
    builder: Builder,
    built: Any,
    way: str,
    fmt: Format,
    found: Sequence[Part],
    device: Device,
    notes: list[str],
) -> Iterator[Run]:
    """Yield the result of every module, loaded in a way; a note instead where that cannot be."""
    import torch

    dtype = getattr(torch, fmt.name)
    try:
        whole, place = (built, "") if way == ways.BUILT else ways.loaded(builder, way, dtype)
        whole = whole if way == ways.BUILT else moved(builder.spec, whole, device)
    except (ways.NotThisWay, BadInput) as error:
        text = error.typed if isinstance(error, BadInput) else str(error)
        notes.append(f"{way} was not tried: {text}")
        return
    if place:
        notes.append(f"from_pretrained loaded a model of one parameter that holds the {found[0].kind}")
    for part in found:
        module = whole.get_submodule(part.name)
        given = _own_dtype(whole) if way in (ways.BUILT, "saved") else dtype
        name = str(given).removeprefix("torch.") if way == ways.BUILT else fmt.name
        yield _result(part, module, way, name, given)


def _result(part: Part, module: Any, way: str, name: str, given: Any) -> Run:
    held, error = part.held(module)
    where, lost = part.name or part.kind, part.imaginary_lost(module)
    base = Run(
        where,
        part.kind,
        way,
        name,
        part.device,
        part.call,
        held,
        error,
        part.against,
        part.as_built,
        None,
        imaginary_lost=lost,
    )
    if isinstance(part.fitted, NotFitted):
        return replace(base, unfitted=part.fitted)
    try:
        seen = part.measured(module, given)
    except Exception as raised:  # whatever other people's code raises
        return replace(base, unfitted=NotFitted(f"raised {one_line(raised)}", "raised"))
    return replace(base, measured=seen, reproduction=Reproduction(part, given))


_NAMED = re.compile(r"rot(ary|emb)|rope|pos_?emb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """What is run: how it is built, what was built, and what is known of its frequencies.

    known: what the buffers of the built one hold. expected: what was given explicitly, if anything. sizes:
    how many pairs options say that there are, with what says so. place: where modules are moved; those that
    are built lie where they were made by default.
    """

    builder: Builder
    built: Any
    known: Sequence[Known]
    expected: Expected | None = None
    sizes: Sequence[tuple[str, int]] = ()
    place: Device | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A RoPE module as built: where it is, how it is called, and what it should return.

    fitted: why it cannot be called, where it cannot. own: the dtype of the parameters of what was
    built. pairs: how many a setting may have that what is returned belongs to.
    """

    name: str
    kind: str
    device: str
    known: list[Known]
    module: Any
    own: Any
    fitted: Fitted[Places] | Grid | NotFitted
    positions: int = 0
    references: Sequence[Exact] = ()
    pairs: frozenset[int] = frozenset()

    @property
    def call(self) -> str:
        """How it is called, in words; none where it is not."""
        if isinstance(self.fitted, NotFitted):
            return "none"
        return self.fitted.call.words if isinstance(self.fitted, Grid) else self.fitted.calls[0].words

    @property
    def against(self) -> str:
        """What its results are compared with, in words; none where there are none."""
        if isinstance(self.fitted, Grid):
            return self.fitted.against
        return self.references[0].words if self.references else "none"

    @property
    def as_built(self) -> bool:
        """Whether that is what the module as built shows."""
        return bool(self.references) and self.references[0].source is None

    def measured(self, module: Any, dtype: Any) -> Measured:
        """Return what the module, loaded in some way, returns. Raises: whatever it raises."""
        assert not isinstance(self.fitted, NotFitted)  # noqa: S101
        usual = self._usual(dtype)
        if isinstance(self.fitted, Grid):
            return running.measured_grid(module, self.fitted, dtype, usual)
        return running.measured(module, self.fitted, self.references, self.positions, dtype, usual)

    def _usual(self, dtype: Any) -> str:
        """Return the dtype that the module as built returns where it is given vectors of a dtype."""
        assert not isinstance(self.fitted, NotFitted)  # noqa: S101
        grid = isinstance(self.fitted, Grid)
        call = self.fitted.call if isinstance(self.fitted, Grid) else self.fitted.calls[0]
        count = call_arguments.LONGEST if grid else min(forwards.PROBE, self.positions)
        try:
            returned = call.run(self.module, 0, count, dtype)
        except Exception:  # it does not take them: whatever other people's code raises
            returned = call.run(self.module, 0, count, self.own)
        return self.fitted.places.dtype(returned)

    def held(self, module: Any) -> tuple[str, float | None]:
        """Return dtypes of the buffers that hold RoPE, and what they are off from as built, relative."""
        dtypes, errors = [], []
        for one in self.known:
            place, values = one.buffer, one.theta
            tensor = getattr(module, place.rpartition(".")[2], None)
            if tensor is None or tensor.is_meta:
                continue
            dtypes.append(str(tensor.dtype).removeprefix("torch."))
            now = frequencies_of(place, tensor)
            if now is not None and now.shape == values.shape:
                usable = values != 0
                off = np.abs(now - values)[usable] / np.abs(values[usable])
                errors.append(float(np.max(off, initial=0.0)))
        return ", ".join(dict.fromkeys(dtypes)) or "none", max(errors, default=None)

    def imaginary_lost(self, module: Any) -> bool:
        """Return whether a complex table of the module is real now."""
        before = {name: one for name, one in vars_of(self.module) if one.is_complex()}
        return any(name in before and not one.is_complex() for name, one in vars_of(module))


def vars_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module's own tensors, registered or not, with their names."""
    import torch

    yield from module.named_buffers(recurse=False)
    yield from ((name, one) for name, one in vars(module).items() if isinstance(one, torch.Tensor))


def parts(target: Target, dtype: Any, device: Device, up_to: int, notes: list[str]) -> list[Part]:
    """Return the RoPE modules of what was built. dtype: of its parameters.

    Raises: BadInput where nothing that they return has as many pairs as options say, and no buffer does.
    """
    places = list(_modules(target.built, target.known, notes))
    found = [_part(name, module, dtype, device, target, up_to, notes) for name, module in places]
    seen = [one for one in found if one.pairs]
    wanted = {count for _, count in target.sizes}
    if seen and wanted and not target.known and not any(one.pairs & wanted for one in seen):
        label, count = target.sizes[0]
        raise BadInput(
            f"{target.builder.spec!r}: what {seen[0].kind} returns is of {min(seen[0].pairs)} pairs and "
            f"{label} has {count}; give what belongs to it with --config, --model, --head-dim or --rotary-dim"
        )
    return found


def _modules(built: Any, known: Sequence[Known], notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield modules that hold RoPE buffers or are called so, each kind with the same buffers once.

    Without any, what was built, where it holds no other modules.
    """
    holders = {one.buffer.rpartition(".")[0] for one in known}
    seen: dict[tuple[Any, ...], int] = {}
    for name, module in built.named_modules():
        if name not in holders and not (_NAMED.search(type(module).__name__) and _is_leaf(module)):
            continue
        own = [one.theta.tobytes() for one in known if one.buffer.rpartition(".")[0] == name]
        key = (type(module), *own)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 1:
            yield name, module
    if not seen and next(built.children(), None) is None:
        yield "", built
    for (kind, *_), count in seen.items():
        if count > 1:
            notes.append(f"{count} modules {kind.__name__} hold the same values: the first stands for all")


def _is_leaf(module: Any) -> bool:
    return next(module.children(), None) is None and next(module.parameters(), None) is None


def _part(
    name: str, module: Any, dtype: Any, device: Device, target: Target, up_to: int, notes: list[str]
) -> Part:
    """Return a module with how it is called, as built. dtype: of the parameters of what was built."""
    kind = type(module).__name__
    own = [one for one in target.known if one.buffer.rpartition(".")[0] == name]
    base = Part(name, kind, device.label, own, module, dtype, NotFitted("it does more than RoPE"))
    if next(module.children(), None) is not None and not _NAMED.search(kind):
        return base
    given = [] if target.expected is None else target.expected.settings(None)
    listed = [*(one.theta for one in own), *(allowance.frequencies(setting) for _, setting in given)]
    misplaced = functools.partial(outputs.misplaced, listed)
    sizes = [one.theta.size for one in own]
    fitted = forwards.fitted(module, dtype, device.name, outputs.read, misplaced, sizes)
    if isinstance(fitted, NotFitted):
        grid = running.fitted_grid(module, forwards.on_grids(module, device.name), dtype)
        part = replace(base, fitted=grid or outputs.cos_alone(module, dtype, device.name) or fitted)
    else:
        part = _with_references(replace(base, fitted=fitted), fitted, target, up_to, notes)
    if not isinstance(part.fitted, NotFitted) and "self.training" in _source(module):
        notes.append(
            f"{kind}.forward asks whether it is trained: it was run in eval mode, without what training adds"
        )
    if isinstance(part.fitted, Grid):
        notes.append(
            f"{kind} was run at {part.fitted.call.given}, whose positions are not known: "
            f"it is compared with {part.against}"
        )
        if target.expected is not None:
            notes.append(f"{_given(target.expected)} was not used for {kind}, whose positions are not known")
    return part


def _with_references(
    part: Part, fitted: Fitted[Places], target: Target, up_to: int, notes: list[str]
) -> Part:
    """Return a module with what each of its calls should return."""
    module, kind = part.module, part.kind
    count = running.length(module, fitted, up_to, part.own)
    if count < up_to:
        notes.append(f"{kind} holds {count} positions; it was run at those, and not up to {up_to}")
    axes = fitted.calls[0].axes
    if axes:
        notes.append(f"{kind} was run at {fitted.calls[0].given}")
    before, given = _state(module), target.expected
    if given is not None and any(one.scaling.kind == "dynamic" for _, one in given.settings(None)):
        count = min(count, references.TOGETHER)
        notes.append(f"{kind} is held to what scaling dynamic makes of a call with {count} positions")
    try:
        seen = references.shown(module, fitted, count, part.own)
    except Exception as error:  # whatever other people's code raises
        return replace(part, fitted=NotFitted(f"raised {one_line(error)}", "raised"))
    if columns := fitted.places.theta:
        seen = [replace(one, theta=np.array(columns), uncertain=np.zeros(len(columns))) for one in seen]
    given = target.expected
    expected = [None if given is None else references.explicit(one, given, axes, count) for one in seen]
    exact = [said or references.exact(one, part.known) for said, one in zip(expected, seen, strict=True)]
    if given is not None and None in expected:
        speeds = references.speeds(seen[expected.index(None)]).size
        notes.append(
            f"{_given(given)} was not used for what {kind} returns, which shows {speeds} "
            f"frequencies that are not its: it is compared with {exact[expected.index(None)].words}"
        )
    if _state(module) != before:
        most = min(count, references.TOGETHER)
        notes.append(f"{kind}: its frequencies change with the length; those of {most} positions were run")
        count = most
    pairs = frozenset(count for one in seen for count in references.possible_pairs(one, axes))
    return replace(part, positions=count, references=exact, pairs=pairs)


def _given(expected: Expected) -> str:
    """Return what was given explicitly, in words."""
    if expected.model is not None:
        return expected.words(expected.model.name)
    return expected.words("what was given" if expected.base is None else f"base {expected.base:.8g}")


def _state(module: Any) -> list[bytes]:
    return [buffer.detach().cpu().double().numpy().tobytes() for buffer in _real_buffers(module)]


def _real_buffers(module: Any) -> list[Any]:
    return [one for _, one in module.named_buffers() if not one.is_complex() and not one.is_meta]


def _source(module: Any) -> str:
    try:
        return inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return ""
