"""How a module's forward is called at positions, by the names of arguments."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ropeaudit.subjects.calling import signatures

Argument: TypeAlias = Callable[[Any, Any], Any]
DIMS = 64  # of vectors whose values do not matter
_LIKE = {role: signatures.ROLES[role] for role in ("positions", "offset", "x")}
_LIKE["x"] += signatures.ROLES["q"] + signatures.ROLES["k"]
_ROLES = {name: role for part in (_LIKE, signatures.FORWARD) for role in part for name in part[role]}
SIZES = {"height", "width", "shape", "sizes", "list of sizes"}


def role(name: str) -> str:
    """Return what an argument is; nothing where its name does not say."""
    return _ROLES.get(name.lower(), "")


def constant(value: object) -> Argument:
    """Return an argument that is always the same."""
    return lambda at, dtype: value


def zeros(*sizes: int | None) -> Argument:
    """Return zeros that carry dtype, device and sizes; None stands for n."""

    def build(at: Any, dtype: Any) -> Any:
        import torch  # not at.new_zeros: who logs operations would take vectors for positions

        return torch.zeros(
            [len(at) if size is None else size for size in sizes], dtype=dtype, device=at.device
        )

    return build


# roles of what says no position: a grid is one token high and wide
PLAIN: dict[str, Argument] = {
    "length": lambda at, dtype: len(at),
    "device": lambda at, dtype: at.device,
    "dtype": lambda at, dtype: dtype,
    "offset": constant(0),
    "sizes": lambda at, dtype: (len(at), 1, 1),
    "list of sizes": lambda at, dtype: [(len(at), 1, 1)],
    "height": constant(1),
    "width": constant(1),
    "shape": lambda at, dtype: (1, len(at), 1, 1),
}


def _several(count: int, last: bool, batch: bool, alike: bool = True) -> tuple[str, Argument]:
    """Return positions of axes, (b, n, axes) or (axes, b, n): alike, or the first alone."""

    def build(at: Any, dtype: Any) -> Any:
        rows = at[None] if batch else at
        rows = rows[..., None].expand(*rows.shape, count) if last else rows.expand(count, *rows.shape)
        if alike:
            return rows
        rows = rows * 0  # a new tensor
        (rows[..., 0] if last else rows[0]).copy_(at)
        return rows

    words = f"{count} axes at the same position" if alike else f"the first of {count} axes, the others at 0"
    return words, build


_WHERE = ((True, False), (False, False), (True, True), (False, True))
# what is given as positions, and what a reader must know of it
POSITIONS: tuple[tuple[str, Argument], ...] = (
    ("", lambda at, dtype: at[None]),
    ("", lambda at, dtype: at),
    *(_several(count, *where) for count in (2, 3, 4) for where in _WHERE),
    ("", lambda at, dtype: at[:, None]),
    ("the first of 3 axes, the others at 0", lambda at, dtype: (at, at[:1] * 0, at[:1] * 0)),
    *(_several(count, *where, alike=False) for count in (2, 3, 4) for where in _WHERE),
)
AS_POSITIONS: tuple[str, Argument] = ("positions in float32", lambda at, dtype: at.float())
# (b, channels, frames, height, width), of one patch each
VIDEO = ("frames of a video, the first of 3 axes, the others at 0", zeros(1, 16, None, 2, 2))
VECTOR_SHAPES: tuple[tuple[str, Argument], ...] = (
    ("", zeros(1, None, DIMS)),
    ("", zeros(1, 2, None, DIMS)),
    ("", zeros(None, DIMS)),
)


PROBE = 67  # positions by which a call is known; a prime, which no other size is


@dataclass(frozen=True, slots=True)
class Call:
    """One way to call a forward, with what builds its arguments.

    signature: how it reads. given: what is given, where that does not say it. free: whether positions are
    given, so that any may be; else only how many.
    """

    signature: str
    given: str
    free: bool
    arguments: Mapping[str, Argument]

    @property
    def words(self) -> str:
        """How it reads, with what is given."""
        return ", ".join(filter(None, (self.signature, self.given)))

    def at(self, module: Any, positions: Any, dtype: Any) -> Any:
        """Return a module's output at positions (n,). Raises: whatever it raises."""
        import torch

        arguments = {name: one(positions, dtype) for name, one in self.arguments.items()}
        with torch.no_grad():
            return module(**arguments)


def possible(module: Any) -> Iterator[Call]:
    """Yield the calls that a module may take, likeliest first; none where nothing is known.

    Among them are calls with a grid or a video that is one token high and wide, and one for each layer type.
    """
    named = {name: role(name) for name in _parameters(module)}
    if not named:
        return
    free, has_x = "positions" in named.values(), "x" in named.values()
    vectors = [*VECTOR_SHAPES, *([] if free else [VIDEO, AS_POSITIONS])]
    layer = next((name for name, one in named.items() if one == "layer"), None)
    buffers = [str(key) for key, _ in module.named_buffers(recurse=False)]
    ends = [key.removesuffix("_inv_freq") for key in buffers if key.endswith("_inv_freq")]
    types = [one for one in ends if one and not one.endswith("original")]
    for (axes, place), (form, vector) in itertools.product(
        POSITIONS if free else POSITIONS[:1], vectors if has_x else vectors[:1]
    ):
        first = "the first of 3 axes, the others of size 1"
        sizes = first if SIZES & set(named.values()) and not axes else ""
        builders = {**PLAIN, "positions": place, "x": vector}
        arguments = {name: builders[one] for name, one in named.items() if one != "layer"}
        given = ", ".join(filter(None, (axes, sizes, form)))
        call = Call(f"forward({', '.join(named)})", given, free, arguments)
        if layer is None or not types:
            yield call
        else:
            yield from (replace(call, arguments={**arguments, layer: constant(one)}) for one in types)


def _parameters(module: Any) -> list[str]:
    """Return the parameters to fill in; none where one of those that it needs is not known."""
    if getattr(type(module).forward, "__qualname__", "").startswith(("Module.", "_forward_unimplemented")):
        return []
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return []
    fixed = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if any(one.default is one.empty and not role(one.name) for one in fixed):
        return []
    stays = {one.name for one in fixed if role(one.name) == "offset" and one.default is not one.empty}
    return [one.name for one in fixed if role(one.name) and one.name not in stays]


def tensors_of(returned: Any) -> list[Any]:
    """Return all tensors of nested lists, tuples and dicts, in order."""
    import torch

    if isinstance(returned, torch.Tensor):
        return [returned]
    parts = list(returned.values()) if isinstance(returned, Mapping) else returned
    if not isinstance(parts, list | tuple):
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]
