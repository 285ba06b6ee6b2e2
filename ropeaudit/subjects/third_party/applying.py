"""Functions that rotate vectors by what a RoPE module returned: found in its file, called by their names.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropeaudit.subjects.calling import signatures

if TYPE_CHECKING:
    import torch

_NAMED = re.compile(r"(apply|rotate_queries).*(rot|rope)|(rot|rope).*apply", re.IGNORECASE)
_VECTORS = (*signatures.ROLES["q"], *signatures.ROLES["k"], *signatures.ROLES["x"], "v", "value")
_TABLES = (
    *(*signatures.ROLES["freqs"], "freqs_ci", "freqs", "rope", "rotary_emb", "image_rotary_emb", "pos_emb"),
    *("position_embeddings", "rotary_freqs", "rotary_pos_emb", "rope_freqs", "cos_sin", "rope_emb", "pos"),
)
_COS, _SIN = (*signatures.ROLES["cos"], "freqs_cos"), (*signatures.ROLES["sin"], "freqs_sin")
# axes of x -> what brings (1, h, s, d) there, and back
ORDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bhsd": (lambda x: x, lambda y: y),
    "bshd": (lambda x: x.transpose(1, 2), lambda y: y.transpose(1, 2)),
    "shd": (lambda x: x[0].transpose(0, 1), lambda y: y.transpose(0, 1)[None]),
    "sbhd": (lambda x: x.permute(2, 0, 1, 3), lambda y: y.permute(1, 2, 0, 3)),
    "hsd": (lambda x: x[0], lambda y: y[None]),
}


class NotThisWay(ValueError):
    """A function is not called like this."""


@dataclass(frozen=True, slots=True)
class Apply:
    """A function and the order of axes that it is given."""

    function: Callable[..., Any]
    order: str

    @property
    def name(self) -> str:
        """What it is called."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        """Return x rotated. Shapes: (1, h, s, d) -> the same."""
        into, back = ORDERS[self.order]
        given = into(x)
        arguments: dict[str, Any] = {}
        for one in inspect.signature(self.function).parameters.values():
            value = self._argument(one, given, tables)
            if value is not one.empty:
                arguments[one.name] = value
        returned = self.function(**arguments)
        rotated = returned[0] if isinstance(returned, tuple | list) else returned
        if rotated.shape != given.shape:
            raise NotThisWay(f"it returns the shape {tuple(rotated.shape)} for {tuple(given.shape)}")
        result: torch.Tensor = back(rotated)
        return result

    def _argument(self, one: inspect.Parameter, x: Any, tables: Any) -> Any:
        """Return the value of an argument; `empty` for one that is left to its default."""
        name = one.name.lower()
        if name in _VECTORS or (name in ("q_pe", "k_pe", "xq_", "xk_")):
            return x
        if name in _COS or name in _SIN:
            second = name in _SIN
            parts = list(tables) if isinstance(tables, tuple | list) else tables
            if len(parts) != 2:
                raise NotThisWay("it takes cos and sin, and they are not what is returned")
            return parts[int(second)]
        if name in _TABLES and one.default in (one.empty, None):
            return tables
        if name == "unsqueeze_dim":
            return self.order.index("h")
        if name == "sequence_dim":
            return self.order.index("s")
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            if name in ("position_ids", "positions"):
                return None
            raise NotThisWay(f"its argument {one.name} is not known")
        return one.empty


@functools.lru_cache(maxsize=32)
def functions(cls: Any) -> tuple[Callable[..., Any], ...]:
    """Return the functions of a class's file that rotate: those first that attention calls.

    They may be defined or imported within other functions.
    """
    module = sys.modules[cls.__module__]
    tree = ast.parse(inspect.getsource(module))
    named = {name: value for name, value in vars(module).items() if _NAMED.search(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _NAMED.search(node.name) and node.name not in named:
            named[node.name] = _inner(node, module)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _NAMED.search(alias.name) and alias.name not in named:
                    named[alias.name] = _imported(node, alias.name, module)
    called = [name for name in _called(tree, cls.__name__) if name in named]
    results = (named[name] for name in dict.fromkeys([*called, *named]))
    return tuple(one for one in results if callable(one) and not isinstance(one, type))


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


def _imported(node: ast.ImportFrom, name: str, module: Any) -> Any:
    place = "." * node.level + (node.module or "")
    return getattr(importlib.import_module(place, module.__package__), name, None)


def _called(tree: ast.Module, cls: str) -> list[str]:
    """Return the names that attention classes call, those of the class's own first."""
    attention = [one for one in tree.body if isinstance(one, ast.ClassDef) and "Att" in one.name]
    start = re.split("Rot|RoPE|Rope|Pos", cls)[0]
    attention.sort(key=lambda one: not one.name.startswith(start))
    return [
        node.func.id
        for one in attention
        for node in ast.walk(one)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]


def possible(cls: Any) -> Iterator[Apply]:
    """Yield ways to rotate vectors by what a class returns, likeliest first."""
    for function in functions(cls):
        yield from (Apply(function, order) for order in ORDERS)
