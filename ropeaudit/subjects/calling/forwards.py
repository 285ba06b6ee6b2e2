"""How a module's forward is called at positions: which arguments it takes, by their names.

Letters: b batch, h heads, n positions, d head_dim.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from ropeaudit.errors import RopeAuditError
from ropeaudit.subjects.calling import signatures
from ropeaudit.subjects.calling.implementation import one_line
from ropeaudit.subjects.calling.timeout import patiently

PositionShape: TypeAlias = tuple[str, Callable[[Any, Any], Any]]
Where = TypeVar("Where")  # what a returned value is read by
NO_FORWARD = "it has no forward"
PROBE = 67  # positions by which a call is known; a prime, which no other size is
_LENGTHS = ("seq_len", "seqlen", "seq_length", "sequence_length", "length", "num_positions")
_POSITIONS = (*signatures.ROLES["positions"], "ids", "coords", "timestamps")
_VECTORS = (*signatures.ROLES["x"], *signatures.ROLES["q"], "value", "value_states", "device_ref")
_NOT_KNOWN = "what it returns is not seen to be cos and sin of positions times frequencies"
_DIMS = 64  # of the vectors, which are zeros and only give dtype, device and length


@dataclass(frozen=True, slots=True)
class Call:
    """One way to call a forward: argument -> what builds it from positions (n,) and a dtype.

    free: whether positions are given, so that any may be; else only how many. words: how it reads. device:
    where positions are made.
    """

    words: str
    free: bool
    arguments: Mapping[str, Callable[[Any, Any], Any]]
    device: str = "cpu"

    def run(self, module: Any, start: int, stop: int, dtype: Any) -> Any:
        """Return what a module returns at positions start to stop - 1. Raises: whatever it raises."""
        import torch

        def forward() -> Any:
            return self.at(module, torch.arange(start, stop, device=self.device), dtype)

        return patiently(forward, self.words)

    def at(self, module: Any, positions: Any, dtype: Any) -> Any:
        """Return what a module returns at positions (n,), a tensor. Raises: whatever it raises."""
        import torch

        arguments = {name: build(positions, dtype) for name, build in self.arguments.items()}
        with torch.no_grad():
            return module(**arguments)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Where]):
    """The calls that a module takes, one a layer type, and where what they return holds cos and sin."""

    calls: tuple[Call, ...]
    places: Where


def fitted(
    module: Any, dtype: Any, device: str, places: Callable[[Any, int], Where | None]
) -> Fitted[Where] | str:
    """Return how a module is called on a device, or why it is not known, in words.

    places: from what is returned for positions 0 to n - 1, and n, where cos and sin stand; None where they
    do not.
    """
    parameters, reason = _parameters(module)
    if reason:
        return reason
    seen, returned = _NOT_KNOWN, False
    for calls in _by_shape(module, parameters, device):
        try:
            result = places(calls[0].run(module, 0, PROBE, dtype), PROBE)
        except RopeAuditError as error:
            return str(error)
        except Exception as error:  # whatever other people's code raises
            seen = f"raised {one_line(error)}" if seen == _NOT_KNOWN else seen
            continue
        if result is not None:
            return Fitted(calls, result)
        if not returned:  # the likeliest of the calls that it takes
            seen, returned = f"{_NOT_KNOWN}, called as {calls[0].words}", True
    return seen


def possible(module: Any, device: str) -> Iterator[Call]:
    """Yield the calls that a module may take on a device, likeliest first; none where nothing is known."""
    for calls in _by_shape(module, _parameters(module)[0], device, _MORE_POSITION_SHAPES):
        yield from calls


def _by_shape(
    module: Any,
    parameters: list[inspect.Parameter],
    device: str,
    positions: Sequence[PositionShape] = (),
) -> Iterator[tuple[Call, ...]]:
    """Yield the calls of each shape of arguments, one a layer type. positions: other shapes than usual."""
    for words, free, arguments in _argument_lists(parameters, positions or _POSITION_SHAPES):
        calls = _per_layer_type(module, parameters, words, free, arguments)
        yield tuple(replace(call, device=device) for call in calls)


def _parameters(module: Any) -> tuple[list[inspect.Parameter], str]:
    """Return the parameters to fill in, or why that cannot be done; a module without a forward says so."""
    forward = type(module).forward
    if getattr(forward, "__qualname__", "").startswith(("Module.", "_forward_unimplemented")):
        return [], NO_FORWARD
    try:
        all_of_them = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return [], "its forward has no signature"
    fixed = [one for one in all_of_them if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = [one.name for one in fixed if one.default is one.empty and not _role(one.name)]
    if unknown:
        names = ", ".join(one.name for one in fixed)
        return [], f"forward({names}) wants {', '.join(unknown)}, which is not known"
    return [one for one in fixed if _role(one.name)], ""


def _role(name: str) -> str:
    """Return what an argument is; nothing where its name does not say."""
    roles = {"positions": _POSITIONS, "length": _LENGTHS, "x": _VECTORS, "layer": ("layer_type",)}
    roles |= {"device": ("device",), "dtype": ("dtype",)}
    return next((role for role, names in roles.items() if name.lower() in names), "")


def _argument_lists(
    parameters: list[inspect.Parameter], shapes_of_positions: Sequence[PositionShape]
) -> Iterator[tuple[str, bool, dict[str, Callable[[Any, Any], Any]]]]:
    """Yield arguments, likeliest first; nothing where no argument says where tokens stand."""
    named = {one.name: _role(one.name) for one in parameters}
    has_positions, has_x = "positions" in named.values(), "x" in named.values()
    if not named:
        return
    shapes = shapes_of_positions if has_positions else shapes_of_positions[:1]
    vectors = _X_SHAPES[:3] if has_positions else (*_X_SHAPES, _X_POSITIONS)
    for (axes, place), (video, vector) in itertools.product(shapes, vectors if has_x else vectors[:1]):
        words = ", ".join(filter(None, (f"forward({', '.join(named)})", axes, video)))
        builders = {"positions": place, "x": vector, "length": lambda at, dtype: len(at)}
        builders |= {"device": lambda at, dtype: at.device, "dtype": lambda at, dtype: dtype}
        yield words, has_positions, {name: builders[role] for name, role in named.items() if role != "layer"}


def _per_layer_type(
    module: Any,
    parameters: list[inspect.Parameter],
    words: str,
    free: bool,
    arguments: dict[str, Callable[[Any, Any], Any]],
) -> Iterator[Call]:
    """Yield a call for each layer type, where forward takes one; else the only one."""
    name = next((one.name for one in parameters if _role(one.name) == "layer"), None)
    names = [str(key) for key, _ in module.named_buffers(recurse=False)]
    ends = [key.removesuffix("_inv_freq") for key in names if key.endswith("_inv_freq")]
    types = [one for one in ends if one and not one.endswith("original")]
    if name is None or not types:
        yield Call(words, free, arguments)
        return
    for one in types:
        yield Call(words, free, {**arguments, name: partial(_constant, one)})


def _constant(value: str, at: Any, dtype: Any) -> str:
    return value


def _alike(count: int) -> str:
    return f"{count} axes at the same position"


def _axes(count: int, last: bool, batch: bool) -> Callable[[Any, Any], Any]:
    """Return what builds positions of several axes, all at the same place: (b, n, axes) or (axes, b, n)."""

    def build(at: Any, dtype: Any) -> Any:
        rows = at[None] if batch else at
        return rows[..., None].expand(*rows.shape, count) if last else rows.expand(count, *rows.shape)

    return build


# what is given as positions, and what a reader must know of it
_POSITION_SHAPES: tuple[PositionShape, ...] = (
    ("", lambda at, dtype: at[None]),
    ("", lambda at, dtype: at),
    *((_alike(count), _axes(count, last=True, batch=True)) for count in (3, 2)),
    *((_alike(count), _axes(count, last=True, batch=False)) for count in (3, 2, 4)),
    *((_alike(count), _axes(count, last=False, batch=True)) for count in (3, 2, 4)),
    ("", lambda at, dtype: at[:, None]),
    ("the first of 3 axes, the others at 0", lambda at, dtype: (at, at[:1] * 0, at[:1] * 0)),
)


def _first_axis(count: int, last: bool, batch: bool) -> PositionShape:
    """Return what builds positions of several axes, all but the first at 0: as `_axes`."""
    alike = _axes(count, last, batch)

    def build(at: Any, dtype: Any) -> Any:
        rows = alike(at, dtype) * 0  # a new tensor
        (rows[..., 0] if last else rows[0]).copy_(at)
        return rows

    return f"the first of {count} axes, the others at 0", build


_WHERE = ((True, False), (False, False), (True, True), (False, True))
_MORE_POSITION_SHAPES = (
    *_POSITION_SHAPES[:2],
    *((_alike(count), _axes(count, *where)) for count in (2, 3, 4) for where in _WHERE),
    *_POSITION_SHAPES[-2:],
    *(_first_axis(count, *where) for count in (2, 3, 4) for where in _WHERE),
)
_X_POSITIONS = ("positions in float32", lambda at, dtype: at.float())
_X_SHAPES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("", lambda at, dtype: at.new_zeros((1, len(at), _DIMS), dtype=dtype)),
    ("", lambda at, dtype: at.new_zeros((1, 2, len(at), _DIMS), dtype=dtype)),
    ("", lambda at, dtype: at.new_zeros((len(at), _DIMS), dtype=dtype)),
    (  # (b, channels, frames, height, width), of one patch each
        "frames of a video, the first of 3 axes, the others at 0",
        lambda at, dtype: at.new_zeros((1, 16, len(at), 2, 2), dtype=dtype),
    ),
)
