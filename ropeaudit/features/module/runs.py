"""Every RoPE module of a target, run in each way of loading and each dtype; a result each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import BadInput
from ropeaudit.features.module import running, ways
from ropeaudit.features.module.outputs import Places, places
from ropeaudit.features.module.running import Exact, Measured
from ropeaudit.features.module.source import moved
from ropeaudit.subjects.calling import devices, forwards
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.forwards import Fitted
from ropeaudit.subjects.calling.implementation import one_line

Array = NDArray[np.float64]
Known = tuple[str, Array, Array]  # a buffer's name, its frequencies, a relative tolerance of each
_NAMED = re.compile(r"rot(ary|emb)|rope|pos_?emb", re.IGNORECASE)
_SAME = 2.0**-20  # relative: what float32 arithmetic on another road leaves of frequencies


@dataclass(frozen=True, slots=True)
class Options:
    """How modules are run. loaded: the ways, all usual ones where None. arguments: for a class."""

    loaded: tuple[str, ...] | None
    dtypes: tuple[Format, ...]
    up_to: int = running.UP_TO
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """What one RoPE module does, loaded in one way.

    module: its place in what was built, and its class. dtype: of the way. device: where it was run. call: of
    forward. held: the dtypes of its buffers that hold RoPE. buffer_error: what those are off from as built,
    relative. measured: None where it was not run, for the `reason`.
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

    @property
    def wrong(self) -> bool:
        """Whether what it returns, or without a run what it holds, is off beyond what float32 explains."""
        if self.measured is not None:
            return not self.measured.excess <= 1
        return self.buffer_error is not None and not self.buffer_error <= _SAME

    @property
    def way(self) -> str:
        """How it was loaded, in words."""
        return ways.words(self.loaded, self.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """A RoPE module as built: where it is, how it is called, and what it should return."""

    name: str
    kind: str
    device: str
    known: list[Known]
    fitted: Fitted[Places] | str
    positions: int = 0
    references: Sequence[Exact] = ()


def run(
    builder: Builder,
    built: Any,
    known: Sequence[Known],
    options: Options,
    place: Device | None,
    notes: list[str],
) -> list[Run]:
    """Return what every RoPE module does in every way. known: what the buffers of the built one hold.

    place: where modules are moved; those that are built lie where they were made by default.
    """
    dtype, device = _own_dtype(built), place or devices.of_module(built) or devices.CPU
    places = list(_modules(built, known, notes))
    parts = [_part(name, module, dtype, device, known, options, notes) for name, module in places]
    if not parts:
        return []
    results: list[Run] = []
    for way in options.loaded or ways.usual(builder):
        for dtype in options.dtypes if way != ways.BUILT else options.dtypes[:1]:
            results += _loaded(builder, built, way, dtype, parts, device, notes)
    return results


def _modules(built: Any, known: Sequence[Known], notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield modules that hold RoPE buffers or are called so, each kind with the same buffers once.

    Without any, what was built, where it holds no other modules.
    """
    holders = {name.rpartition(".")[0] for name, _, _ in known}
    seen: dict[tuple[Any, ...], int] = {}
    for name, module in built.named_modules():
        if name not in holders and not (_NAMED.search(type(module).__name__) and _is_leaf(module)):
            continue
        own = [values.tobytes() for place, values, _ in known if place.rpartition(".")[0] == name]
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
    name: str,
    module: Any,
    dtype: Any,
    device: Device,
    known: Sequence[Known],
    options: Options,
    notes: list[str],
) -> _Part:
    """Return a module with how it is called, as built. dtype: of the parameters of what was built."""
    kind = type(module).__name__
    own = [one for one in known if one[0].rpartition(".")[0] == name]
    whole = next(module.children(), None) is None or _NAMED.search(kind)
    fitted = forwards.fitted(module, dtype, device.name, places) if whole else "it does more than RoPE"
    if isinstance(fitted, str):
        return _Part(name, kind, device.label, own, fitted)
    if "self.training" in _source(module):
        notes.append(
            f"{kind}.forward asks whether it is trained: it was run in eval mode, without what training adds"
        )
    count = running.length(module, fitted, options.up_to, dtype)
    if count < options.up_to:
        notes.append(f"{kind} holds {count} positions; it was run at those, and not up to {options.up_to}")
    if " axes" in (call := fitted.calls[0].words):
        notes.append(f"{kind} was run at {call.partition('), ')[2]}")
    before = _state(module)
    try:
        references = [running.exact(seen, own) for seen in running.shown(module, fitted, count, dtype)]
    except Exception as error:  # whatever other people's code raises
        return _Part(name, kind, device.label, own, f"raised {one_line(error)}")
    if _state(module) != before:
        most = min(count, running.TOGETHER)
        notes.append(f"{kind}: its frequencies change with the length; those of {most} positions were run")
        count = most
    return _Part(name, kind, device.label, own, fitted, count, references)


def _state(module: Any) -> list[bytes]:
    return [buffer.detach().cpu().double().numpy().tobytes() for buffer in _real_buffers(module)]


def _real_buffers(module: Any) -> list[Any]:
    return [one for _, one in module.named_buffers() if not one.is_complex() and not one.is_meta]


def _source(module: Any) -> str:
    try:
        return inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return ""


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
    parts: Sequence[_Part],
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
        notes.append(f"from_pretrained loaded a model of one parameter that holds the {parts[0].kind}")
    for part in parts:
        module = whole.get_submodule(part.name)
        given = _own_dtype(whole) if way in (ways.BUILT, "saved") else dtype
        name = str(given).removeprefix("torch.") if way == ways.BUILT else fmt.name
        yield _result(part, module, way, name, given)


def _result(part: _Part, module: Any, way: str, name: str, given: Any) -> Run:
    held, error = _held(part, module)
    where = part.name or part.kind
    if isinstance(part.fitted, str):
        return Run(where, part.kind, way, name, part.device, "none", held, error, "none", None, part.fitted)
    call, against = part.fitted.calls[0].words, part.references[0].words
    try:
        measured = running.measured(module, part.fitted, part.references, part.positions, given)
    except Exception as raised:  # whatever other people's code raises
        reason = f"raised {one_line(raised)}"
        return Run(where, part.kind, way, name, part.device, call, held, error, against, None, reason)
    return Run(where, part.kind, way, name, part.device, call, held, error, against, measured)


def _held(part: _Part, module: Any) -> tuple[str, float | None]:
    """Return the dtypes of buffers that hold RoPE, and what they are off from what was built, relative."""
    from ropeaudit.features.module.known import frequencies_of

    dtypes, errors = [], []
    for place, values, _ in part.known:
        tensor = getattr(module, place.rpartition(".")[2], None)
        if tensor is None or tensor.is_meta:
            continue
        dtypes.append(str(tensor.dtype).removeprefix("torch."))
        now = frequencies_of(place, tensor)
        if now is not None and now.shape == values.shape:
            usable = values != 0
            errors.append(float(np.max(np.abs(now - values)[usable] / np.abs(values[usable]), initial=0.0)))
    return ", ".join(dict.fromkeys(dtypes)) or "none", max(errors, default=None)
