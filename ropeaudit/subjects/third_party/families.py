"""What a RoPE class is built from and given, and which function rotates by what it returns.

Letters: n positions, d head_dim.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ropeaudit.subjects.calling import building, signatures
from ropeaudit.subjects.third_party.adapter import table_end

_ROLES = signatures.ROLES
_VECTORS = (*_ROLES["q"], *_ROLES["k"], *_ROLES["x"], "v", "value", "xq_", "xk_")
_COS, _SIN = _ROLES["cos"], _ROLES["sin"]
_TABLES = (
    *(*_ROLES["freqs"], "freqs_ci", "freqs", "rope", "rotary_emb", "image_rotary_emb", "pos_emb", "pos"),
    *("position_embeddings", "rotary_freqs", "rotary_pos_emb", "rope_freqs", "cos_sin", "rope_emb"),
)
_APPLIES = re.compile(r"(apply|rotate_queries).*(rot|rope)|(rot|rope).*apply", re.IGNORECASE)


def functions(cls: Any) -> list[Callable[..., Any]]:
    """Return the functions of a class's file that rotate: those first that attention calls.

    They may be defined or imported within other functions.
    """
    module = sys.modules[cls.__module__]
    tree = ast.parse(inspect.getsource(module))
    found = {name: value for name, value in vars(module).items() if _APPLIES.search(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _APPLIES.search(node.name) and node.name not in found:
            found[node.name] = _inner(node, module)
        elif isinstance(node, ast.ImportFrom):
            names = [one.name for one in node.names if _APPLIES.search(one.name) and one.name not in found]
            if names:
                place = "." * node.level + (node.module or "")
                imported = importlib.import_module(place, module.__package__)
                found |= {name: getattr(imported, name, None) for name in names}
    attention = [one for one in tree.body if isinstance(one, ast.ClassDef) and "Att" in one.name]
    start = re.split("Rot|RoPE|Rope|Pos", cls.__name__)[0]
    attention.sort(key=lambda one: not one.name.startswith(start))
    calls = [node.func for one in attention for node in ast.walk(one) if isinstance(node, ast.Call)]
    called = [func.id for func in calls if isinstance(func, ast.Name) and func.id in found]
    results = (found[name] for name in dict.fromkeys([*called, *found]))
    return [one for one in results if callable(one) and not isinstance(one, type)]


def _inner(node: ast.FunctionDef, module: Any) -> Any:
    """Return a function that another defines; None for a method."""
    if node.args.args and node.args.args[0].arg == "self":
        return None
    node.decorator_list = []
    space = dict(vars(module))
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.Module([*future, node], type_ignores=[]), str(module.__file__), "exec")
    exec(code, space)  # noqa: S102  # as the function around it does
    return space[node.name]


def arguments(function: Any, x: torch.Tensor, tables: Any, order: str) -> dict[str, Any]:
    """Return what a function is given to rotate x by tables. order: of the axes of x.

    Raises: TypeError for an unknown argument, ValueError for tables that are not cos and sin.
    """
    results: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        name, needed = one.name.lower(), one.default is one.empty
        if name in _VECTORS:
            results[one.name] = x
        elif name in (*_COS, *_SIN):
            cos, sin = tables
            results[one.name] = cos if name in _COS else sin
        elif name in _TABLES and (needed or one.default is None):
            results[one.name] = tables
        elif name in ("unsqueeze_dim", "sequence_dim"):
            results[one.name] = order.index("h" if name == "unsqueeze_dim" else "s")
        elif needed and name in ("position_ids", "positions"):
            results[one.name] = None
        elif needed and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise TypeError(f"its argument {one.name} is not known")
    return results


_LIKE = {role: _ROLES[role] for role in ("positions", "offset", "x")}
_LIKE["x"] += _ROLES["q"] + _ROLES["k"]
_OF_FORWARD = {
    name: role for part in (_LIKE, signatures.FORWARD) for role, names in part.items() for name in names
}
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
# vectors whose values do not matter, -1 standing for n: of tokens; of frames, channels and patches
_SHAPES = (("", (1, -1, 64)), (_VIDEO, (1, 16, -1, 2, 2)))
_ROWS = 67  # of the shortest table from position 0: a prime, which no other size is


@dataclass(frozen=True, slots=True)
class Forward:
    """One way to call a module.

    roles: argument -> what it is. axes: what a reader must know of the positions.
    free: whether any positions may be given; else only how many. layer: its type.
    """

    roles: Mapping[str, str]
    axes: str
    free: bool
    place: _Place
    shape: tuple[int, ...]
    layer: str = ""

    @property
    def words(self) -> str:
        """How it reads, with what is given."""
        return ", ".join(filter(None, (f"forward({', '.join(self.roles)})", self.axes)))

    def tables(self, module: Any, at: torch.Tensor, dtype: torch.dtype) -> Any:
        """Return what a module returns at positions (n,), or rows of its table from 0.

        Raises: ValueError for too long a table, whatever the module raises.
        """
        if self.free:
            return self._returned(module, at, dtype)
        largest = int(at.max())
        table_end(largest, int(at.min()))  # whether there is one
        end = max(largest + 1, _ROWS) | 1  # odd and at least a prime, unlike any other
        return _rows(self._returned(module, torch.arange(end), dtype), at, end)

    def _returned(self, module: Any, at: torch.Tensor, dtype: torch.dtype) -> Any:
        sizes = [len(at) if size == -1 else size for size in self.shape]
        values = {
            "positions": self.place(at),
            "x": torch.zeros(sizes, dtype=dtype, device=at.device),
            "length": len(at),
            "device": at.device,
            "dtype": dtype,
            "offset": 0,
            "layer": self.layer,
        }
        with torch.no_grad():
            return module(**{name: values[role] for name, role in self.roles.items()})


def _rows(returned: Any, at: torch.Tensor, end: int) -> Any:
    if isinstance(returned, torch.Tensor):
        axis = next((axis for axis, size in enumerate(returned.shape) if size == end), None)
        return returned if axis is None else returned.index_select(axis, at)
    return type(returned)(_rows(part, at, end) for part in returned)


def forwards(module: Any) -> Iterator[Forward]:
    """Yield the ways to call a module, likeliest first; none if it needs an unknown argument."""
    roles: dict[str, str] = {}
    for one in inspect.signature(module.forward).parameters.values():
        role, needed = _OF_FORWARD.get(one.name.lower(), ""), one.default is one.empty
        if role and (needed or role != "offset"):
            roles[one.name] = role
        elif needed and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            return
    layer = next((name for name, role in roles.items() if role == "layer"), None)
    ends = [name.removesuffix("_inv_freq") for name, _ in module.named_buffers(recurse=False)]
    types = [end for end in ends if not end.endswith(("inv_freq", "original"))] if layer else []
    if layer and not types:
        del roles[layer]
    if "positions" in roles.values():
        ways = [Forward(roles, axes, True, place, _SHAPES[0][1]) for axes, place in _POSITIONS]
    else:
        shapes = _SHAPES if "x" in roles.values() else _SHAPES[:1]
        ways = [Forward(roles, axes, False, _POSITIONS[0][1], shape) for axes, shape in shapes]
    for way in ways if roles else []:
        yield from (replace(way, layer=one) for one in types or [""])


_LENGTH = 2**12  # positions of a class that wants to know how many
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_num_attention_heads")
_PATCHES = {"patch_size": 2, "patch_size_t": 1}  # one in a frame of 2x2
_KEPT_TYPES = ("axial", "axial_2d")  # what a scaling is not
_SECTIONS = 3  # axes of time, height and width


def variants(cls: Any, dims: int, axes: int, base: float) -> Iterator[dict[str, Any]]:
    """Yield what a class may be built with for heads of `dims` dims, of several configs with each.

    axes: over which dims are shared out.
    """
    usual: dict[str, Any] = dict.fromkeys((*_ROLES["dim"], "attention_head_dim"), dims)
    usual |= dict.fromkeys(_ROLES["base"], base)
    usual |= dict.fromkeys(building.AXIS_NAMES, (dims // axes,) * axes)
    parameters = inspect.signature(cls).parameters.items()
    given = {name: usual[name] for name, _ in parameters if name in usual}
    given |= {
        name: _PATCHES[name]
        for name, one in parameters
        if name in _PATCHES and one.annotation in (int, "int")
    }
    sections = "mrope_section" in inspect.getsource(cls)
    for one in building.possible_arguments(cls, given, _LENGTH):
        configs = [name for name in one if name == "config" or name.endswith("_config")]
        yield one | {name: _configured(one[name], dims, base, sections) for name in configs}


def _configured(config: Any, dims: int, base: float, sections: bool) -> Any:
    """Return a copy of a config whose heads have so many dims, which all rotate, unscaled."""
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
    """Return rope_parameters unscaled, of the whole head, also of layer types."""
    if any(isinstance(value, Mapping) for value in given.values()):
        return {
            key: _unscaled(value, dims, base, sections) if isinstance(value, Mapping) else value
            for key, value in given.items()
        }
    kind = given.get("rope_type", "default")
    results = {**given, "rope_type": kind if kind in _KEPT_TYPES else "default", "rope_theta": base}
    if "partial_rotary_factor" in results:
        results["partial_rotary_factor"] = 1.0
    if sections or "mrope_section" in results:
        count = len(results.get("mrope_section") or range(_SECTIONS))
        each = dims // 2 // count
        results["mrope_section"] = [dims // 2 - each * (count - 1), *[each] * (count - 1)]
    return results
