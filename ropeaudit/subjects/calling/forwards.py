"""How a module's forward is called at positions, by the names of arguments."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.subjects.calling import signatures
from ropeaudit.subjects.calling.conventions import contained

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


# what is given as positions, and what a reader must know of it
POSITIONS: tuple[tuple[str, Argument], ...] = (
    ("", lambda at, dtype: at[None]),
    ("", lambda at, dtype: at),
    *(_several(count, last=True, batch=True) for count in (3, 2)),
    *(_several(count, last=True, batch=False) for count in (3, 2, 4)),
    *(_several(count, last=False, batch=True) for count in (3, 2, 4)),
    ("", lambda at, dtype: at[:, None]),
    ("the first of 3 axes, the others at 0", lambda at, dtype: (at, at[:1] * 0, at[:1] * 0)),
)


_WHERE = ((True, False), (False, False), (True, True), (False, True))
MORE_POSITIONS: tuple[tuple[str, Argument], ...] = (
    *POSITIONS[:2],
    *(_several(count, *where) for count in (2, 3, 4) for where in _WHERE),
    *POSITIONS[-2:],
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


Where = TypeVar("Where")  # what a returned value is read by
# from what is returned for positions 0 to n - 1, and n: where cos and sin stand, None where they do not
Read: TypeAlias = Callable[[Any, int], Where | None]
PROBE = 67  # positions by which a call is known; a prime, which no other size is
_NOT_SEEN = (
    "what it returns is not seen to be cos and sin of positions times frequencies (code that rotates x is "
    "for `check`)"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One way to call a forward, with what builds its arguments.

    signature: how it reads. given: what is given, where that does not say it. free: whether positions are
    given, so that any may be; else only how many. axes: whether each position has several. device: where
    positions are made.
    """

    signature: str
    given: str
    free: bool
    arguments: Mapping[str, Argument]
    device: str = "cpu"
    axes: bool = False

    @property
    def words(self) -> str:
        """How it reads, with what is given."""
        return ", ".join(filter(None, (self.signature, self.given)))

    def run(self, module: Any, start: int, stop: int, dtype: Any) -> Any:
        """Return what a module returns at positions start to stop - 1. Raises: whatever it raises."""
        import torch

        with contained():
            return self.at(module, torch.arange(start, stop, device=self.device), dtype)

    def at(self, module: Any, positions: Any, dtype: Any) -> Any:
        """Return a module's output at positions (n,). Raises: whatever it raises."""
        import torch

        arguments = {name: one(positions, dtype) for name, one in self.arguments.items()}
        with torch.no_grad():
            return module(**arguments)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Where]):
    """The calls of a module, one a layer type, and where results hold cos and sin."""

    calls: tuple[Call, ...]
    places: Where


@dataclass(frozen=True, slots=True)
class NotFitted:
    """Why it is not known how a module is called, or what it returns, in words.

    why: it has no forward, its arguments are unknown, every call raised, or what a call returned was not
    understood.
    """

    reason: str
    why: Literal["no forward", "unknown", "raised", "not seen"] = "unknown"

    @classmethod
    def unseen(cls, more: str) -> NotFitted:
        """Return that an output was not understood, and what is known of it."""
        return cls(f"{_NOT_SEEN}{more}", "not seen")


def fitted(
    module: Any,
    dtype: Any,
    device: str,
    read: Read[Where],
    misplaced: Read[Where],
) -> Fitted[Where] | NotFitted:
    """Return how a module is called on a device, or why it is not known.

    read: finds cos and sin in what is returned. misplaced: finds those of other positions than were given, as
    they are; a call with one position a row counts then, before calls with several.
    """
    parameters, wrong = _parameters(module)
    if wrong is not None:
        return wrong
    seen: NotFitted | None = None
    moved: Fitted[Where] | None = None
    for calls in _calls(module, parameters, device):
        first = calls[0]
        try:
            returned = first.run(module, 0, PROBE, dtype)
            where = read(returned, PROBE)
            if where is None and first.free and not first.given:
                elsewhere = misplaced(returned, PROBE)
                moved = moved or (Fitted(calls, elsewhere) if elsewhere else None)
        except RopeAuditError as error:
            return NotFitted(str(error))
        except Exception as error:  # whatever other people's code raises
            seen = seen or NotFitted(f"raised {one_line(error)}", "raised")
            continue
        if where is not None:
            return moved if moved is not None and first.axes else Fitted(calls, where)
        if seen is None or seen.why == "raised":  # the likeliest of the calls that it takes
            seen = NotFitted.unseen(f", called as {first.words}")
    return moved or seen or NotFitted.unseen("")


def possible(module: Any, device: str) -> Iterator[Call]:
    """Yield the calls that a module may take on a device, likeliest first; none where nothing is known.

    Among them are calls with a grid or a video that is one token high and wide.
    """
    for calls in _calls(module, _parameters(module, grids=True)[0], device, grids=True):
        yield from calls


def _parameters(module: Any, grids: bool = False) -> tuple[list[inspect.Parameter], NotFitted | None]:
    """Return the parameters to fill in, or why that fails, as without a forward."""
    forward = type(module).forward
    if getattr(forward, "__qualname__", "").startswith(("Module.", "_forward_unimplemented")):
        return [], NotFitted("it has no forward", "no forward")
    try:
        all_of_them = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return [], NotFitted("its forward has no signature")
    fixed = [one for one in all_of_them if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    roles = {one.name: role(one.name) for one in fixed}
    known = {name for name, role in roles.items() if role and (grids or role not in SIZES)}
    unknown = [one.name for one in fixed if one.default is one.empty and one.name not in known]
    if unknown:
        names = ", ".join(roles)
        return [], NotFitted(f"forward({names}) wants {', '.join(unknown)}, which is not known")
    stays = {one.name for one in fixed if roles[one.name] == "offset" and one.default is not one.empty}
    return [one for one in fixed if one.name in known - stays], None


def _calls(
    module: Any, parameters: list[inspect.Parameter], device: str, grids: bool = False
) -> Iterator[tuple[Call, ...]]:
    """Yield calls, likeliest first, one a layer type; none if positions have no place."""
    named = {one.name: role(one.name) for one in parameters}
    if not named:
        return
    free, has_x = "positions" in named.values(), "x" in named.values()
    places = MORE_POSITIONS if grids else POSITIONS
    vectors = [*VECTOR_SHAPES]
    if not free:
        vectors += [*([VIDEO] if grids else []), AS_POSITIONS]
    layer = next((name for name, one in named.items() if one == "layer"), None)
    buffers = [str(key) for key, _ in module.named_buffers(recurse=False)]
    ends = [key.removesuffix("_inv_freq") for key in buffers if key.endswith("_inv_freq")]
    types = [one for one in ends if one and not one.endswith("original")]
    for (axes, place), (form, vector) in itertools.product(
        places if free else places[:1], vectors if has_x else vectors[:1]
    ):
        first = "the first of 3 axes, the others of size 1"
        sizes = first if SIZES & set(named.values()) and not axes else ""
        builders = {**PLAIN, "positions": place, "x": vector}
        arguments = {name: builders[one] for name, one in named.items() if one != "layer"}
        several = bool(axes or sizes or vector is VIDEO[1])
        given = ", ".join(filter(None, (axes, sizes, form)))
        call = Call(f"forward({', '.join(named)})", given, free, arguments, device, several)
        if layer is None or not types:
            yield (call,)
        else:
            yield tuple(replace(call, arguments={**arguments, layer: constant(one)}) for one in types)


def tensors_of(returned: Any) -> list[Any]:
    """Return all tensors of nested lists, tuples and dicts, in order."""
    import torch

    if isinstance(returned, torch.Tensor):
        return [returned]
    parts = list(returned.values()) if isinstance(returned, Mapping) else returned
    if not isinstance(parts, list | tuple):
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]
