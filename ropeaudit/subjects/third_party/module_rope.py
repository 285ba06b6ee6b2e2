"""The adapter of a family: a package's RoPE class and its file's rotating function, as f(x, positions).

Argument names tell how the class is built and called, and how its tables are applied. Of the ways that
remain possible the first is taken that rotates as requested.
Letters: h heads, n positions, d head_dim, p pairs.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import MissingPackage, one_line
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling import signatures
from ropeaudit.subjects.calling.environments import silent
from ropeaudit.subjects.third_party import Entry
from ropeaudit.subjects.third_party.adapter import Adapter, Turn, executed, table_end

_ROLES = signatures.ROLES
_LENGTH = 2**12  # positions of a class that wants to know how many
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_num_attention_heads")
_PATCHES = {"patch_size": 2, "patch_size_t": 1}  # one in a frame of 2x2


def variants(
    cls: Any,
    dims: int,
    axes: int,
    base: float,
) -> Iterator[dict[str, Any]]:
    """Yield arguments that may build a class for heads of `dims` dims, one set for each config.

    axes: the number of position axes that share the dims.
    """
    usual: dict[str, Any] = dict.fromkeys((*_ROLES["dim"], "attention_head_dim"), dims)
    usual |= dict.fromkeys(_ROLES["base"], base)
    usual |= dict.fromkeys(signatures.AXIS_NAMES, (dims // axes,) * axes)
    parameters = inspect.signature(cls).parameters.items()
    integers = [name for name, one in parameters if one.annotation in (int, "int")]
    usual |= {name: size for name, size in _PATCHES.items() if name in integers}
    given = {name: usual[name] for name, _ in parameters if name in usual}
    sections = "mrope_section" in inspect.getsource(cls)
    for one in signatures.possible_arguments(cls, given, _LENGTH):
        configs = [name for name in one if name == "config" or name.endswith("_config")]
        yield one | {name: _configured(one[name], dims, base, sections) for name in configs}


def _configured(config: Any, dims: int, base: float, sections: bool) -> Any:
    """Return a copy of a config whose heads have `dims` dims that all rotate, without a scaling."""
    heads = next((count for name in _HEADS if isinstance(count := vars(config).get(name), int)), 1)
    rules = (
        (r"hidden_size|embed_dim|d_model|n_embd", (int,), dims * heads),
        (r"(\w+_)?head_dim|kv_channels|rotary_dim|rotary_ndims|rope_dim", (int, type(None)), dims),
        (r"\w*(theta|rope\w*base|rotary\w*base|base_freq)", (int, float), base),
        (r"partial_rotary_factor|rotary_pct", (int, float), 1.0),
    )
    changed = copy.deepcopy(config)
    for name, value in vars(config).items():
        if name == "rope_parameters" and isinstance(value, Mapping):
            setattr(changed, name, _unscaled(value, dims, base, sections))
        for pattern, kinds, new in rules:
            if re.fullmatch(pattern, name) and isinstance(value, kinds):
                setattr(changed, name, new)
    return changed


def _unscaled(given: Mapping[str, Any], dims: int, base: float, sections: bool) -> dict[str, Any]:
    """Return rope_parameters without scaling and partial rotation, also within layer types."""
    nested = [key for key, value in given.items() if isinstance(value, Mapping)]
    if nested:
        return {**given, **{key: _unscaled(given[key], dims, base, sections) for key in nested}}
    kind = given.get("rope_type", "default")
    kept = kind if kind in ("axial", "axial_2d") else "default"  # which are no scalings
    results = {**given, "rope_type": kept, "rope_theta": base}
    if "partial_rotary_factor" in results:
        results["partial_rotary_factor"] = 1.0
    if sections or "mrope_section" in results:
        rest = len(results.get("mrope_section") or "thw") - 1
        each = dims // 2 // (rest + 1)
        results["mrope_section"] = [dims // 2 - each * rest, *[each] * rest]
    return results


_APPLIES = re.compile(r"(apply|rotate_queries).*(rot|rope)|(rot|rope).*apply", re.IGNORECASE)


def functions(cls: Any) -> list[Callable[..., Any]]:
    """Return the rotating functions in a class's file, those that attention calls first.

    They may be defined or imported within other functions.
    """
    module = sys.modules[cls.__module__]
    tree = ast.parse(inspect.getsource(module))
    found = {name: value for name, value in vars(module).items() if _APPLIES.search(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _APPLIES.search(node.name) and node.name not in found:
            if [one.arg for one in node.args.args[:1]] != ["self"]:  # no method
                node.decorator_list = []
                place = str(module.__file__)
                found[node.name] = executed([node], place, dict(vars(module)))[node.name]
        elif isinstance(node, ast.ImportFrom):
            for name in (one.name for one in node.names if _APPLIES.search(one.name)):
                place = "." * node.level + (node.module or "")
                imported = importlib.import_module(place, module.__package__)
                found.setdefault(name, getattr(imported, name, None))
    attention = [one for one in tree.body if isinstance(one, ast.ClassDef) and "Att" in one.name]
    start = re.split("Rot|RoPE|Rope|Pos", cls.__name__)[0]
    attention.sort(key=lambda one: not one.name.startswith(start))
    calls = [node.func for one in attention for node in ast.walk(one) if isinstance(node, ast.Call)]
    called = [func.id for func in calls if isinstance(func, ast.Name) and func.id in found]
    results = (found[name] for name in dict.fromkeys([*called, *found]))
    return [one for one in results if callable(one) and not isinstance(one, type)]


_APPLIED = {name: role for role in ("q", "k", "x", "cos", "sin") for name in _ROLES[role]}
_APPLIED = {name: role for role, names in signatures.APPLIED.items() for name in names} | _APPLIED


def arguments(function: Any, x: torch.Tensor, tables: Any, order: str) -> dict[str, Any]:
    """Return the arguments with which a function rotates x by tables. order: of the axes of x.

    Raises: TypeError for an unknown argument, ValueError for tables that are not cos and sin.
    """
    results: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        role, needed = _APPLIED.get(one.name.lower(), ""), one.default is one.empty
        if role in ("q", "k", "x"):
            results[one.name] = x
        elif role in ("cos", "sin"):
            cos, sin = tables
            results[one.name] = cos if role == "cos" else sin
        elif role == "tables" and (needed or one.default is None):
            results[one.name] = tables
        elif role in ("h", "s"):
            results[one.name] = order.index(role)
        elif needed and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise TypeError(f"its argument {one.name} is not known")
    return results


_OF_FORWARD = {name: role for role in ("positions", "x") for name in _ROLES[role]}
_OF_FORWARD |= dict.fromkeys((*_ROLES["q"], *_ROLES["k"]), "x")
_OF_FORWARD |= {name: role for role, names in signatures.FORWARD.items() for name in names}
_Place: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_ALIKE = "2 axes at the same position"
# positions (n,) as they are given, and what a reader must know of it
_POSITIONS: tuple[tuple[str, _Place], ...] = (
    ("", lambda at: at[None]),
    ("", lambda at: at),
    ("", lambda at: at[:, None]),
    (_ALIKE, lambda at: at[:, None].expand(-1, 2)),
    (_ALIKE, lambda at: at[None, :, None].expand(1, -1, 2)),
)
_VIDEO = "frames of a video, the first of 3 axes, the others at 0"
# vectors of any values, -1 standing for n: tokens; frames, channels, patches
_SHAPES = (("", (1, -1, 64)), (_VIDEO, (1, 16, -1, 2, 2)))
_ROWS = 67  # of the shortest table: a prime, which no other size is
_ORDERS = ("bhsd", "bshd", "shd")  # of the axes of what is rotated


class NoRotation(ValueError):
    """A function does not rotate as requested; the text says why."""


@dataclass(frozen=True, slots=True)
class Way:
    """A class and a function that rotate heads of `size` dims, and which dims were requested.

    cls, given: what is built, and with what. roles: argument of its forward -> what it is. layer: its type.
    place, shape: positions and vectors as they are given. axes: what a reader must know of these.
    function: what applies what that returns to vectors. order: of their axes.
    layout: whether the dims of a pair stand beside each other. places: the requested dims, in that layout.
    returned: where these come back.
    """

    cls: Any
    given: Mapping[str, Any]
    size: int
    roles: Mapping[str, str]
    layer: str
    axes: str
    place: _Place
    shape: tuple[int, ...]
    function: Callable[..., Any]
    order: str
    layout: Layout = "half"
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    returned: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def any_positions(self) -> bool:
        """Whether it takes positions; else only their number."""
        return "positions" in self.roles.values()

    @property
    def in_layout_order(self) -> bool:
        """Whether all dims rotate in the layout's usual order."""
        return self.places.size == self.size and bool((np.diff(self.places) == 1).all())

    def rotate(
        self,
        module: Any,
        x: torch.Tensor,
        at: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate x, its dims put where the code expects them. Shapes: as `head`, of these dims."""
        if self.in_layout_order and (self.returned == self.places).all():
            return self.head(module, x, at)
        head = x.new_zeros((*x.shape[:-1], self.size))
        head[..., torch.from_numpy(self.places)] = x
        return self.head(module, head, at)[..., torch.from_numpy(self.returned)]

    def head(self, module: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Rotate full heads by the code alone. Shapes: (1, h, n, size), (n,) -> (1, h, n, size).

        Raises: ValueError for too long a table, whatever the module raises.
        """
        batched = "b" in self.order
        letters = "bhsd" if batched else "hsd"
        given = (x if batched else x[0]).permute([letters.index(axis) for axis in self.order])
        asked, largest = at, int(at.max())
        if not self.any_positions:  # it makes a table from 0
            table_end(largest, int(at.min()))  # whether there is one
            asked = torch.arange(max(largest + 1, _ROWS) | 1)  # odd, unlike any other
        values = {
            "positions": self.place(asked),
            "x": torch.zeros([len(asked) if n == -1 else n for n in self.shape], dtype=x.dtype),
            "length": len(asked),
            "device": asked.device,
            "dtype": x.dtype,
            "layer": self.layer,
        }
        with torch.no_grad():
            tables = module(**{name: values[role] for name, role in self.roles.items()})
        tables = tables if self.any_positions else _rows(tables, at, len(asked))
        returned = self.function(**arguments(self.function, given, tables, self.order))
        y = returned[0] if isinstance(returned, tuple | list) else returned
        if y.shape != given.shape:
            raise NoRotation(f"it returns the shape {tuple(y.shape)} for {tuple(given.shape)}")
        rotated: torch.Tensor = y.permute([self.order.index(axis) for axis in letters])
        return rotated if batched else rotated[None]

    def note(self, name: str) -> str:
        """Describe what is unusual about the way of calling; empty if nothing is."""
        parts, dims = [], self.places.size
        if dims != self.size or self.axes:
            parts.append(f"is audited in {dims} of {self.size} dims, {self.axes or 'one axis'}")
        elif not self.in_layout_order:
            backwards = (self.places[dims // 2 :] < self.places[: dims // 2]).all()
            parts.append("rotates the other way" if backwards else "pairs dims in an order of its own")
        if not self.any_positions:
            parts.append("takes no positions: its table is built from 0")
        return f"{name} {' and '.join(parts)}" if parts else ""


def _rows(returned: Any, at: torch.Tensor, end: int) -> Any:
    if isinstance(returned, torch.Tensor):
        axis = next((axis for axis, size in enumerate(returned.shape) if size == end), None)
        return returned if axis is None else returned.index_select(axis, at)
    return type(returned)(_rows(part, at, end) for part in returned)


def ways(module: Any, given: Mapping[str, Any], size: int, applying: Sequence[Any]) -> Iterator[Way]:
    """Yield how a built module and functions may be called, likeliest first.

    None if its forward needs an unknown argument.
    """
    taken = signatures.Parameters.of(module)
    every = {one.name: _OF_FORWARD.get(one.name.lower(), "") for one in taken.fixed}
    if not all(every[name] for name in taken.needed):
        return
    roles = {name: role for name, role in every.items() if role}
    ends = [name.removesuffix("_inv_freq") for name, _ in module.named_buffers(recurse=False)]
    types = [end for end in ends if not end.endswith(("inv_freq", "original"))]
    if not types:
        roles = {name: role for name, role in roles.items() if role != "layer"}
    layers = types if "layer" in roles.values() else [""]
    free, vectors = "positions" in roles.values(), "x" in roles.values()
    places = _POSITIONS if free else _POSITIONS[:1]
    shapes = _SHAPES if vectors and not free else _SHAPES[:1]
    forwards = itertools.product(places, shapes, layers if roles else ())
    for ((alike, place), (video, shape), layer), *apply in itertools.product(forwards, applying, _ORDERS):
        yield Way(type(module), given, size, roles, layer, alike or video, place, shape, *apply)


PROBE: Positions = np.array([0, 1, 2, 3, 5, 7, 11])
_NEAR = 0.02  # relative error of frequencies and a trial: passes rounding, no other base
_BELOW = 1e-6  # radians by which frequencies may be off
_TRIED = 3  # heads of the trial
_AXES = (1, 2, 3)  # tried sizes of heads, in rotary dims: other axes take the rest


def find_way(cls: Any, dims: int, base: float) -> Way | str:
    """Find the way in which a class rotates `dims` dims with a base; return it, or the reason why not."""
    applying = functions(cls)
    if not applying:
        return "its file has no function that rotates by what it returns"
    reasons: list[str] = []
    for axes in _AXES:
        for given in variants(cls, axes * dims, axes, base):
            try:
                module = cls(**given).eval()
            except Exception as error:  # whatever other people's code raises
                reasons.append(one_line(error, 120))
                continue
            for way in ways(module, given, axes * dims, applying):
                forward = ", ".join(filter(None, (f"forward({', '.join(way.roles)})", way.axes)))
                called = f"called as {forward}, with {way.function.__name__},"
                try:
                    return check_way(way, module, RopeSetting.of(dims, base=base))
                except NoRotation as error:
                    reasons.insert(0, f"{called} {error}")  # the reason that tells most
                except Exception as error:  # whatever other people's code raises
                    reasons.append(f"{called} it raises {one_line(error)}")
    return (reasons or ["what it takes is not known"])[0]


def check_way(way: Way, module: Any, setting: RopeSetting) -> Way:
    """Measure by unit vectors which dims rotate as the setting asks; return the way with these dims.

    Raises: NoRotation, whatever the code raises.
    """

    def rotate(x: FloatArray, by: Callable[..., torch.Tensor]) -> FloatArray:
        given = torch.from_numpy(x.astype(np.float32))[None]
        with torch.no_grad():
            return np.asarray(by(module, given, torch.from_numpy(PROBE))[0], np.float64)

    seen = rotate(np.repeat(np.eye(way.size)[:, None], PROBE.size, axis=1), way.head)
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
    way = replace(way, layout=layout, places=places, returned=returned[places])
    x = np.random.default_rng(0).standard_normal((_TRIED, PROBE.size, setting.head_dim))
    exact = exact_rotation.rotated(x, PROBE, replace(setting, layout=layout))
    error = np.sqrt(np.mean((rotate(x, way.rotate) - exact) ** 2))  # of vectors whose RMS is 1
    if not error <= _NEAR:
        raise NoRotation(f"it is {100 * error:.2g} % off the requested rotation")
    return way


class ModuleRope(Adapter):
    """A class that returns cos and sin, or the like, and the function that rotates by them.

    Dims that rotate are handed to it, in a head as large as it needs; others are left alone.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self._ways: dict[tuple[int, float], Way | str] = {}
        self.findings: list[str] = []
        if isinstance(way := self._way(RopeSetting()), Way):
            self.layouts = (way.layout,)  # the layout that it is seen to have

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        way = self._way(setting)
        return super().refuses(setting, dtype) or (way if isinstance(way, str) else "")

    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return the rotation of a new module."""
        way, dims = self._way(setting), setting.rotary_dim
        if isinstance(way, str):
            raise MissingPackage(way)
        with silent():  # about default configs
            module = way.cls(**way.given).eval()

        def rotate(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            turned = way.rotate(module, x[None, ..., :dims], at)[0]
            return torch.cat((turned, x[..., dims:].to(turned.dtype)), dim=-1)

        return rotate

    def _way(self, setting: RopeSetting) -> Way | str:
        """Return the way of calling for a setting, or the reason why there is none; cached."""
        key = setting.rotary_dim, setting.base
        if key not in self._ways:
            place, _, name = self.entry.target.partition(":")
            try:
                with silent():  # about default configs
                    way = find_way(getattr(importlib.import_module(place), name), *key)
            except Exception as error:  # whatever a module raises when it is imported
                way = f"it cannot be imported: {one_line(error)}"
            self._ways[key] = way
            if isinstance(way, Way) and (note := way.note(self.name)):
                self.findings.append(note)
        return self._ways[key]


adapter = ModuleRope
