"""Any RoPE class of a package: how it is built, called and applied is found out by what it then rotates.

Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import MissingPackage, one_line
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import forwards
from ropeaudit.subjects.calling.environments import silent
from ropeaudit.subjects.calling.forwards import Call
from ropeaudit.subjects.third_party import applying, structure
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end
from ropeaudit.subjects.third_party.applying import Apply
from ropeaudit.subjects.third_party.entries import Entry
from ropeaudit.subjects.third_party.structure import NoRotation, Structure

_AXES = (1, 2, 3, 4)  # tried sizes of heads, in rotary dims: other axes take the rest
_LARGEST = 8  # numbers that a table holds for each dim of a position


@dataclass(frozen=True, slots=True)
class Fit:
    """How a class is used: its variant, its call, how it is applied, and its pairs."""

    axes: int
    number: int
    call: Call
    apply: Apply
    pairs: Structure

    @property
    def dims(self) -> int:
        """The dims of a head of the class."""
        return self.pairs.dims


class ModuleRope(TorchAdapter):
    """A class that returns cos and sin, or the like, and the function of its file that rotates by them.

    Dims that rotate are handed to it, in a head as large as it needs for them; others are left alone.
    """

    def __init__(self, entry: Entry) -> None:
        self._fits: dict[tuple[int, float], Fit | str] = {}
        self.findings: list[str] = []
        super().__init__(entry)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout that it is seen to have."""
        fit = self._fit(RopeSetting())
        return self.entry.layouts if isinstance(fit, str) else (fit.pairs.layout,)

    @layouts.setter
    def layouts(self, value: tuple[Layout, ...]) -> None:
        """Leave it to be measured."""

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        fit = self._fit(setting)
        return super().refuses(setting, dtype) or (fit if isinstance(fit, str) else "")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module."""
        fit = self._fit(setting)
        if isinstance(fit, str):
            raise MissingPackage(fit)
        cls = self._class()
        with silent():  # about default configs
            built = structure.variants_of_arguments(cls, fit.dims, fit.axes, setting.base)[fit.number]
            module = cls(**built).eval()
        rotate = placed(lambda x, at: _rotated(module, fit, x, at), fit.pairs)
        dims = setting.rotary_dim

        def of_part(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            rotated = rotate(x[..., :dims], at)
            return torch.cat((rotated, x[..., dims:].to(rotated.dtype)), dim=-1)

        return rotate if dims == setting.head_dim else of_part

    def _class(self) -> Any:
        place, _, name = self.entry.target.partition(":")
        return getattr(import_module(place), name)

    def _fit(self, setting: RopeSetting) -> Fit | str:
        """Return how the class is used for a setting, or why not; found out once."""
        key = setting.rotary_dim, setting.base
        if key not in self._fits:
            try:
                earlier = next((fit for fit in self._fits.values() if isinstance(fit, Fit)), None)
                with silent():  # about default configs
                    fit = found(self._class(), *key, earlier)
            except Exception as error:  # whatever a module raises when it is imported
                fit = f"it cannot be imported: {one_line(error)}"
            self._fits[key] = fit
            if isinstance(fit, Fit) and (note := _note(self.name, fit, setting.rotary_dim)):
                self.findings.append(note)
        return self._fits[key]


adapter = ModuleRope


def _note(name: str, fit: Fit, rotary_dim: int) -> str:
    """Return what is unusual in how a class is called; empty if nothing is."""
    parts = []
    if fit.dims != rotary_dim or " axes " in fit.call.words or fit.call.words.endswith("at 0"):
        place = fit.call.words.partition("), ")[2] or "one axis"
        parts.append(f"is audited in {rotary_dim} of {fit.dims} dims, {place}")
    elif not fit.pairs.plain:
        backwards = bool((fit.pairs.first > fit.pairs.second).all())
        parts.append("rotates the other way" if backwards else "pairs dims in an order of its own")
    if not fit.call.free:
        parts.append("takes no positions: its table is built from 0")
    return f"{name} {' and '.join(parts)}" if parts else ""


def found(cls: Any, dims: int, base: float, earlier: Fit | None = None) -> Fit | str:
    """Return how a class is used to rotate `dims` dims with a base, or why that is not known, in words.

    earlier: how it is used for another setting, which is tried first.
    """
    expected = base ** (-2.0 * np.arange(dims // 2) / dims)
    reasons: list[str] = []
    for axes in [earlier.axes] if earlier else _AXES:
        for number, arguments in enumerate(structure.variants_of_arguments(cls, axes * dims, axes, base)):
            if earlier and number != earlier.number:
                continue
            try:
                module = cls(**arguments).eval()
            except Exception as error:  # whatever other people's code raises
                reasons.append(one_line(error, 120))
                continue
            ways = [(earlier.call, earlier.apply)] if earlier else _ways(cls, module, axes * dims, reasons)
            for call, apply in ways:
                none = np.zeros(0, dtype=np.int64)  # all dims as they come, before more is known
                whole = Structure(none, none, np.zeros(0), np.arange(axes * dims))
                trial = Fit(axes, number, call, apply, whole)
                try:
                    return replace(trial, pairs=_seen(module, trial).chosen(expected))
                except NoRotation as error:
                    reasons.insert(0, f"called as {call.words}, with {apply.name}, {error}")
                except Exception as error:  # whatever other people's code raises
                    reasons.append(f"{apply.name} raises {one_line(error)}")
    if earlier:
        return found(cls, dims, base)
    unlike = [one for one in reasons if "radians a token" in one]  # the reason that tells most
    if not unlike and not applying.functions(cls):
        return "its file has no function that rotates by what it returns"
    return (unlike or reasons or ["what it takes is not known"])[0]


def _seen(module: Any, trial: Fit) -> Structure:
    """Return what rotates. Raises: NoRotation; whatever the code raises."""

    def rotate(x: FloatArray, at: Positions) -> FloatArray:
        given = torch.from_numpy(x.astype(np.float32))[None]
        with torch.no_grad():
            rotated: FloatArray = _rotated(module, trial, given, torch.from_numpy(at))[0].numpy()
        return rotated

    rotate(np.zeros((3, structure.PROBE.size, trial.dims)), structure.PROBE)  # shapes, before much work
    return structure.measured(rotate, trial.dims)


def _ways(cls: Any, module: Any, dims: int, reasons: list[str]) -> Iterator[tuple[Call, Apply]]:
    """Yield ways to call a module and to apply what it returns."""
    applies = list(applying.possible(cls))
    at = torch.from_numpy(structure.PROBE)
    for call in forwards.possible(module):
        try:
            tables = call.at(module, at, torch.float32)
        except Exception as error:  # whatever other people's code raises
            reasons.append(f"{call.words} raises {one_line(error)}")
            continue
        tensors = forwards.tensors_of(tables)
        rows = len(at) if call.free else None
        if not tensors or any(one.numel() > len(at) * dims * _LARGEST for one in tensors):
            reasons.append(f"{call.words} returns no table of the positions")
        elif rows is None or any(rows in one.shape for one in tensors):
            yield from ((call, apply) for apply in applies)


def _rotated(module: Any, fit: Fit, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return x rotated by the code alone. Shapes: (1, h, s, d), (s,) -> (1, h, s, d)."""
    return fit.apply(x, tables(module, fit.call, at, x.dtype))


def tables(module: Any, call: Call, at: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return what a module returns at positions; rows of a table from 0 where it takes none.

    Raises: ValueError where no table can be built that long.
    """
    if call.free:
        return call.at(module, at, dtype)
    largest = int(at.max())
    table_end(largest, int(at.min()))  # whether there is one
    end = max(largest + 1, forwards.PROBE) | 1  # odd and at least a prime, unlike any other
    return _rows(call.at(module, torch.arange(end), dtype), at, end)


def _rows(returned: Any, at: torch.Tensor, end: int) -> Any:
    if isinstance(returned, torch.Tensor):
        axis = next((axis for axis, size in enumerate(returned.shape) if size == end), None)
        return returned if axis is None else returned.index_select(axis, at)
    return type(returned)(_rows(part, at, end) for part in returned)


def placed(rotate: TensorTurn, pairs: Structure) -> TensorTurn:
    """Return the function with dims in the audit's order instead of the code's."""
    if pairs.plain and (pairs.output == np.arange(pairs.dims)).all():
        return rotate
    order = (pairs.first, pairs.second)
    half = pairs.layout == "half"
    places = torch.from_numpy(np.concatenate(order) if half else np.stack(order, axis=1).reshape(-1))
    returned = torch.from_numpy(pairs.output)[places]

    def elsewhere(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        head = x.new_zeros((*x.shape[:-1], pairs.dims))
        head[..., places] = x
        return rotate(head, at)[..., returned]

    return elsewhere
