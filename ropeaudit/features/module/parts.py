"""The RoPE modules of what was built: where they are, how each is called, and what each should return."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.errors import BadInput
from ropeaudit.features.module import cos_alone, grids, outputs, references, running
from ropeaudit.features.module.expected import Expected
from ropeaudit.features.module.grids import Grid
from ropeaudit.features.module.known import frequencies_of
from ropeaudit.features.module.outputs import Places
from ropeaudit.features.module.references import Exact, Known
from ropeaudit.features.module.running import Measured
from ropeaudit.subjects.calling import call_arguments, forwards
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.forwards import Fitted
from ropeaudit.subjects.calling.implementation import one_line

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

    fitted: why it cannot be called, in words, where it cannot. own: the dtype of the parameters of what was
    built. pairs: how many a setting may have that what is returned belongs to.
    """

    name: str
    kind: str
    device: str
    known: list[Known]
    module: Any
    own: Any
    fitted: Fitted[Places] | Grid | str
    positions: int = 0
    references: Sequence[Exact] = ()
    pairs: frozenset[int] = frozenset()

    @property
    def call(self) -> str:
        """How it is called, in words; none where it is not."""
        if isinstance(self.fitted, str):
            return "none"
        return self.fitted.call.words if isinstance(self.fitted, Grid) else self.fitted.calls[0].words

    @property
    def against(self) -> str:
        """What its results are compared with, in words; none where there are none."""
        if isinstance(self.fitted, Grid):
            return self.fitted.against
        return self.references[0].words if self.references else "none"

    def measured(self, module: Any, dtype: Any) -> Measured:
        """Return what the module, loaded in some way, returns. Raises: whatever it raises."""
        assert not isinstance(self.fitted, str)  # noqa: S101
        usual = self._usual(dtype)
        if isinstance(self.fitted, Grid):
            return grids.measured(module, self.fitted, dtype, usual)
        return running.measured(module, self.fitted, self.references, self.positions, dtype, usual)

    def _usual(self, dtype: Any) -> str:
        """Return the dtype that the module as built returns where it is given vectors of a dtype."""
        assert not isinstance(self.fitted, str)  # noqa: S101
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
        for place, values, _ in self.known:
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
    name: str, module: Any, dtype: Any, device: Device, target: Target, up_to: int, notes: list[str]
) -> Part:
    """Return a module with how it is called, as built. dtype: of the parameters of what was built."""
    kind = type(module).__name__
    own = [one for one in target.known if one[0].rpartition(".")[0] == name]
    base = Part(name, kind, device.label, own, module, dtype, "it does more than RoPE")
    if next(module.children(), None) is not None and not _NAMED.search(kind):
        return base
    fitted = forwards.fitted(module, dtype, device.name, outputs.read, [one[1].size for one in own])
    if isinstance(fitted, str):
        grid = grids.grid(module, forwards.on_grids(module, device.name), dtype)
        part = replace(base, fitted=grid or cos_alone.seen(module, dtype, device.name) or fitted)
    else:
        part = _with_references(replace(base, fitted=fitted), fitted, target, up_to, notes)
    if not isinstance(part.fitted, str) and "self.training" in _source(module):
        notes.append(
            f"{kind}.forward asks whether it is trained: it was run in eval mode, without what training adds"
        )
    if isinstance(part.fitted, Grid):
        notes.append(
            f"{kind} was run at {part.call.rpartition('), ')[2]}, whose positions are not known: "
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
    axes = " axes" in part.call
    if axes:
        notes.append(f"{kind} was run at {part.call.partition('), ')[2]}")
    before = _state(module)
    try:
        seen = references.shown(module, fitted, count, part.own)
    except Exception as error:  # whatever other people's code raises
        return replace(part, fitted=f"raised {one_line(error)}")
    given = target.expected
    expected = [None if given is None else references.explicit(one, given, axes) for one in seen]
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
