"""Any RoPE class of a package and the function of its file that rotates, as one f(x, positions).

Names of arguments say how it is built, called and applied. Of the ways that they leave open the
first is taken that rotates as requested.
Letters: h heads, n positions, d head_dim, p pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import MissingPackage, one_line
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling.environments import silent
from ropeaudit.subjects.third_party import families
from ropeaudit.subjects.third_party.adapter import Adapter, Turn
from ropeaudit.subjects.third_party.entries import Entry
from ropeaudit.subjects.third_party.families import Forward

PROBE: Positions = np.array([0, 1, 2, 3, 5, 7, 11])
_NEAR = 0.02  # relative error of frequencies and of a trial: rounding passes, another base does not
_BELOW = 1e-6  # radians by which small frequencies may be off, whatever their size
_HEADS = 3  # of the trial
_AXES = (1, 2, 3)  # tried sizes of heads, in rotary dims: other axes take the rest
_ORDERS = ("bhsd", "bshd", "shd")  # of the axes of what is rotated


class NoRotation(ValueError):
    """A function does not rotate as requested; the text says why."""


@dataclass(frozen=True, slots=True)
class Way:
    """A class and a function as one rotation of heads.

    cls, given: what is built, and with what. forward: how the instance is called.
    function: what applies what that returns to vectors. order: of their axes.
    """

    cls: Any
    given: Mapping[str, Any]
    forward: Forward
    function: Callable[..., Any]
    order: str

    def built(self) -> Any:
        """Return a new module."""
        return self.cls(**self.given).eval()

    def rotated(self, module: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return x rotated by the code alone. Shapes: (1, h, n, d), (n,) -> (1, h, n, d)."""
        batched = "b" in self.order
        letters = "bhsd" if batched else "hsd"
        given = (x if batched else x[0]).permute([letters.index(axis) for axis in self.order])
        tables = self.forward.tables(module, at, x.dtype)
        returned = self.function(**families.arguments(self.function, given, tables, self.order))
        y = returned[0] if isinstance(returned, tuple | list) else returned
        if y.shape != given.shape:
            raise NoRotation(f"it returns the shape {tuple(y.shape)} for {tuple(given.shape)}")
        rotated: torch.Tensor = y.permute([self.order.index(axis) for axis in letters])
        return rotated if batched else rotated[None]


@dataclass(frozen=True, slots=True)
class Fit:
    """A way, and the dims of its heads that rotate as requested.

    size: how many dims its heads have. layout: whether the dims of a pair stand beside each other.
    places: the requested dims among these, in that layout. returned: where these come back.
    """

    way: Way
    size: int
    layout: Layout
    places: NDArray[np.int64]
    returned: NDArray[np.int64]

    @property
    def plain(self) -> bool:
        """Whether all dims rotate in the layout's usual order."""
        return self.places.size == self.size and bool((np.diff(self.places) == 1).all())

    def rotated(self, module: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return x rotated, its dims put where the code has them. Shapes: as `Way.rotated`."""
        if self.plain and (self.returned == self.places).all():
            return self.way.rotated(module, x, at)
        head = x.new_zeros((*x.shape[:-1], self.size))
        head[..., torch.from_numpy(self.places)] = x
        return self.way.rotated(module, head, at)[..., torch.from_numpy(self.returned)]

    def note(self, name: str) -> str:
        """Return what is unusual in how a class is called; empty if nothing is."""
        parts, dims, axes = [], self.places.size, self.way.forward.axes
        if dims != self.size or axes:
            parts.append(f"is audited in {dims} of {self.size} dims, {axes or 'one axis'}")
        elif not self.plain:
            backwards = (self.places[dims // 2 :] < self.places[: dims // 2]).all()
            parts.append("rotates the other way" if backwards else "pairs dims in an order of its own")
        if not self.way.forward.free:
            parts.append("takes no positions: its table is built from 0")
        return f"{name} {' and '.join(parts)}" if parts else ""


class ModuleRope(Adapter):
    """A class that returns cos and sin, or the like, and the function that rotates by them.

    Dims that rotate are handed to it, in a head as large as it needs; others are left alone.
    """

    def __init__(self, entry: Entry) -> None:
        self._fits: dict[tuple[int, float], Fit | str] = {}
        self.findings: list[str] = []
        super().__init__(entry)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout that it is seen to have."""
        fit = self._fit(RopeSetting())
        return self.entry.layouts if isinstance(fit, str) else (fit.layout,)

    @layouts.setter
    def layouts(self, value: tuple[Layout, ...]) -> None:
        """Leave it to be measured."""

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        fit = self._fit(setting)
        return super().refuses(setting, dtype) or (fit if isinstance(fit, str) else "")

    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return the rotation of a new module."""
        fit, dims = self._fit(setting), setting.rotary_dim
        if isinstance(fit, str):
            raise MissingPackage(fit)
        with silent():  # about default configs
            module = fit.way.built()

        def rotate(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            turned = fit.rotated(module, x[None, ..., :dims], at)[0]
            if dims == setting.head_dim:
                return turned
            return torch.cat((turned, x[..., dims:].to(turned.dtype)), dim=-1)

        return rotate

    def _fit(self, setting: RopeSetting) -> Fit | str:
        """Return how the class is used for a setting, or why not; found out once."""
        key = setting.rotary_dim, setting.base
        if key not in self._fits:
            place, _, name = self.entry.target.partition(":")
            try:
                with silent():  # about default configs
                    fit = found(getattr(import_module(place), name), *key)
            except Exception as error:  # whatever a module raises when it is imported
                fit = f"it cannot be imported: {one_line(error)}"
            self._fits[key] = fit
            if isinstance(fit, Fit) and (note := fit.note(self.name)):
                self.findings.append(note)
        return self._fits[key]


adapter = ModuleRope


def found(cls: Any, dims: int, base: float) -> Fit | str:
    """Return how a class rotates `dims` dims with a base, or in words why that is not known."""
    functions = families.functions(cls)
    if not functions:
        return "its file has no function that rotates by what it returns"
    reasons: list[str] = []
    for axes in _AXES:
        for given in families.variants(cls, axes * dims, axes, base):
            try:
                module = cls(**given).eval()
            except Exception as error:  # whatever other people's code raises
                reasons.append(one_line(error, 120))
                continue
            forwards = families.forwards(module)
            for forward, function, order in itertools.product(forwards, functions, _ORDERS):
                way = Way(cls, given, forward, function, order)
                called = f"called as {forward.words}, with {function.__name__},"
                try:
                    return measured(way, module, axes * dims, RopeSetting.of(dims, base=base))
                except NoRotation as error:
                    reasons.insert(0, f"{called} {error}")  # the reason that tells most
                except Exception as error:  # whatever other people's code raises
                    reasons.append(f"{called} it raises {one_line(error)}")
    return (reasons or ["what it takes is not known"])[0]


def measured(way: Way, module: Any, size: int, setting: RopeSetting) -> Fit:
    """Return which dims of heads of a size rotate as in a setting, by unit vectors.

    Raises: NoRotation, whatever the code raises.
    """

    def rotate(x: FloatArray, by: Way | Fit) -> FloatArray:
        given = torch.from_numpy(x.astype(np.float32))[None]
        with torch.no_grad():
            return np.asarray(by.rotated(module, given, torch.from_numpy(PROBE))[0], np.float64)

    seen = rotate(np.repeat(np.eye(size)[:, None], PROBE.size, axis=1), way)
    returned = np.abs(seen[:, 0]).argmax(axis=1)  # the dim in which each comes back
    turned = seen[:, 1][:, returned]  # (i, j): of unit vector i, in the dim to which j goes
    angles = np.arctan2(turned, np.diagonal(turned)[:, None])
    np.fill_diagonal(angles, np.inf)
    pairs = np.zeros((setting.pairs, 2), np.int64)
    frequencies = setting.base ** (-2.0 * np.arange(setting.pairs) / setting.rotary_dim)
    for pair, theta in enumerate(frequencies):
        off = np.abs(angles - theta)
        where = np.unravel_index(off.argmin(), off.shape)
        if not off[where] <= _NEAR * theta + _BELOW:
            raise NoRotation(f"it rotates no pair by {theta:.4g} radians a token, as requested")
        angles[where, :] = angles[:, where] = np.inf
        pairs[pair] = where
    layout: Layout = "interleaved" if (pairs[:, 1] == pairs[:, 0] + 1).all() else "half"
    places = (pairs if layout == "interleaved" else pairs.T).reshape(-1)
    fit = Fit(way, size, layout, places, returned[places])
    x = np.random.default_rng(0).standard_normal((_HEADS, PROBE.size, setting.head_dim))
    exact = exact_rotation.rotated(
        x, PROBE, RopeSetting.of(setting.head_dim, base=setting.base, layout=layout)
    )
    error = np.sqrt(np.mean((rotate(x, fit) - exact) ** 2))  # of vectors whose RMS is 1
    if not error <= _NEAR:
        raise NoRotation(f"it is {100 * error:.2g} % off the requested rotation")
    return fit
