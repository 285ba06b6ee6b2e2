"""Every RoPE module of a target, run in each way of loading and each dtype; a result each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import BadInput
from ropeaudit.features.module import running, ways
from ropeaudit.features.module.parts import Part, parts
from ropeaudit.features.module.parts import Target as Target
from ropeaudit.features.module.running import Measured
from ropeaudit.features.module.source import moved
from ropeaudit.runtime import process_state
from ropeaudit.subjects.calling import devices
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.implementation import one_line

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
    relative. measured: None where it was not run, for the `reason`. imaginary_lost: whether a complex table
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
    measured: Measured | None
    reason: str = ""
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
    base = Run(where, part.kind, way, name, part.device, part.call, held, error, part.against, None, "", lost)
    if isinstance(part.fitted, str):
        return replace(base, reason=part.fitted)
    try:
        seen = part.measured(module, given)
    except Exception as raised:  # whatever other people's code raises
        return replace(base, reason=f"raised {one_line(raised)}")
    return replace(base, measured=seen, reproduction=Reproduction(part, given))
