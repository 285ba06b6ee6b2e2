"""q and k of a layer before rotation: followed from the module that returned them to attention.

What a projection or a norm returns is followed through views and casts, then through what a rotation does:
products with a table that has a row for every position, sums, parts that are joined. Anything else ends the
trail, such as a clamp, or a product with a number; then it is not known what was rotated.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.features.model.layers import Called

_VIEWS = {
    *("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "clone"),
    *("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "flip", "get", "contiguous"),
    *("getitem", "narrow", "select", "chunk", "split", "split_with_sizes", "tensor_split", "unbind"),
    *("to", "type", "type_as", "float", "half", "double", "bfloat16", "view_as_complex", "view_as_real"),
    *("expand", "expand_as", "repeat", "repeat_interleave", "detach"),
}
_SUMS = {"add", "sub", "iadd", "isub", "neg", "negative", "complex"}
_JOINED = {"cat", "concat", "concatenate", "stack"}
_PRODUCTS = {"mul", "multiply", "imul", "rmul"}
_ASSIGNED = {"setitem", "copy"}  # in place: the last argument is what is written
_SIDES = {"q", "wq", "query", "queries", "k", "wk", "key", "keys"}  # in names of modules
_TRAIL = "_ropeaudit_trail"


@dataclass(frozen=True, slots=True)
class Trail:
    """Whence the numbers of a tensor come.

    views: what a module returned, and views of it, that all of the tensor was made from, with their versions.
    rotated: whether a table has multiplied it. whole: whether it is itself a view, no part put together anew.
    module: the name of that module.
    """

    module: str
    views: tuple[tuple[Any, int], ...] = ()
    rotated: bool = False
    whole: bool = True


class Calls:
    """Listens to the functions by which a library's models rotate q and k, "apply_rotary…" by name.

    heard: what they were given and returned since attention was last asked about.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.heard: list[tuple[list[Any], list[Any]]] = []

    def take(self, q: Any, k: Any) -> Called | None:
        """Return the call whose results attention gets, within its first or its last dims; None without any.

        Shapes: (..., h, s, d), (..., g, s, d) of a batch of one.
        """
        heard, self.heard = self.heard, []
        for given, rotated in reversed(heard):
            sides = []
            for whole, x, y in zip((q, k), given, rotated, strict=True):
                own = whole.reshape(-1, *whole.shape[-2:])
                for before_it, after in ((x[0], y[0]), (x[0].transpose(0, 1), y[0].transpose(0, 1))):
                    if _holds(own, after) and before_it.shape == after.shape:
                        sides.append((as_array(before_it), as_array(after)))
                        break
            if len(sides) == 2:
                return (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])
        return None

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Listen to the functions in the files of a model's modules, within the block."""
        files = {type(module).__module__ for module in model.modules()}
        found = [
            (file, name, function)
            for file in sorted(files)
            for name, function in list(vars(sys.modules.get(file, torch)).items())
            if name.startswith("apply_rotary") and callable(function) and file != "torch"
        ]
        for file, name, function in found:
            setattr(sys.modules[file], name, functools.wraps(function)(self._heard(function)))
        try:
            yield
        finally:
            for file, name, function in found:
                setattr(sys.modules[file], name, function)

    def _heard(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)][:2]
            result = function(*args, **kwargs)
            self._keep(given, result)
            return result

        return call

    def _keep(self, given: list[Any], result: Any) -> None:
        """Keep a call with q and k of one sequence, (1, h, s, d) and (1, g, s, d)."""
        both = isinstance(result, tuple) and len(result) == len(given) == 2
        if not both or not all(isinstance(x, torch.Tensor) and x.ndim == 4 and len(x) == 1 for x in result):
            return
        if all(x.shape == y.shape for x, y in zip(given, result, strict=True)):
            self.heard.append(([x.detach().clone() for x in given], [y.detach().clone() for y in result]))


def _holds(whole: Any, part: Any) -> bool:
    """Return whether the first or the last dims of each head are those of a part, or of its only head.

    Shapes: (h, s, d), (h or 1, s, r).
    """
    r = part.shape[-1]
    if part.shape[-2] != whole.shape[-2] or part.shape[0] not in (1, whole.shape[0]) or r > whole.shape[-1]:
        return False
    return any(bool((x == part.to(x.dtype)).all()) for x in (whole[..., :r], whole[..., -r:]))


@contextlib.contextmanager
def following(model: Any, positions: int) -> Iterator[Calls]:
    """Follow, for `before`, what those modules return that have parameters of their own.

    positions: how many a pass reads. Yields what functions that rotate were called with.
    """
    calls = Calls()
    named = [
        (name.rpartition(".")[2], module) for name, module in model.named_modules() if module._parameters
    ]
    hooks = [module.register_forward_hook(functools.partial(_begin, name)) for name, module in named]
    try:
        with _Followed(positions), calls.listening(model):
            yield calls
    finally:
        for hook in hooks:
            hook.remove()


class _Followed(TorchFunctionMode):
    def __init__(self, positions: int) -> None:
        super().__init__()
        self.positions = positions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        trail = self._followed(name, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if name in _ASSIGNED:
            setattr(args[0], _TRAIL, trail)
        for one in result if isinstance(result, (tuple, list)) else (result,):
            same = name in _VIEWS and args and one is args[0]  # it is contiguous, or of that dtype, already
            if isinstance(one, torch.Tensor) and not same and (trail or hasattr(one, _TRAIL)):
                setattr(one, _TRAIL, trail)
        return result

    def _followed(self, name: str, args: Any, kwargs: Any) -> Trail | None:
        """Return the trail of what a function will return; None where it ends."""
        if name in _VIEWS:
            return _joined(args[:1], whole=True)
        if name in _SUMS:
            return None if kwargs else _joined(args)
        if name in _JOINED:
            return _joined(args[0]) if args and isinstance(args[0], (tuple, list)) else None
        if name in _ASSIGNED:
            return _joined([x for x in (args[0], args[-1]) if x is args[-1] or _trail(x) is not None])
        if name in _PRODUCTS and len(args) == 2:
            tables = [x for x in args if self._is_table(x)]
            rest = [x for x in args if _trail(x) is not None]
            return _joined(rest, rotated=True) if len(tables) == len(rest) == 1 else None
        return None

    def _is_table(self, x: Any) -> bool:
        """Return whether it has a row for each position. Shapes: (..., s, ..., p)."""
        known = isinstance(x, torch.Tensor) and _trail(x) is None
        return known and x.ndim > 1 and x.shape[-1] > 1 and self.positions in x.shape[:-1]


def _begin(name: str, module: Any, args: Any, result: Any) -> None:
    """Begin a trail at what a module returns; none where the module is given what is rotated already."""
    if isinstance(result, torch.Tensor):
        after = any((trail := _trail(x)) is not None and trail.rotated for x in args)
        setattr(result, _TRAIL, None if after else Trail(name))


def _trail(x: Any) -> Trail | None:
    return getattr(x, _TRAIL, None) if isinstance(x, torch.Tensor) else None


def _views(x: Any, trail: Trail) -> tuple[tuple[Any, int], ...]:
    """Return the views that a tensor was made from, itself among them if it is one."""
    if not trail.whole or x.is_inference():
        return trail.views
    return (*trail.views, (x, x._version))


def _joined(given: Any, *, rotated: bool = False, whole: bool = False) -> Trail | None:
    """Return the trail of what is made from some tensors; None where they are not all of one module."""
    shared: tuple[tuple[Any, int], ...] | None = None
    module = ""
    for x in given:
        if (trail := _trail(x)) is None:
            return None
        views, rotated, whole = _views(x, trail), rotated or trail.rotated, whole and trail.whole
        if shared is not None:
            same = [one[0] is other[0] for one, other in zip(shared, views, strict=False)]
            views = views[: same.index(False) if False in same else len(same)]
        shared, module = views, trail.module
    return Trail(module, shared, rotated, whole) if shared else None


def before(q: Any, k: Any) -> tuple[Array, Array] | None:
    """Return q and k of attention before rotation; None where that is not known, or neither is rotated.

    Shapes: (..., h, s, d), (..., g, s, d) of a batch of one -> (h, s, d), (g, s, d).
    """
    trails = [trail for x in (q, k) if (trail := _trail(x)) is not None]
    if len(trails) < 2 or not any(trail.rotated for trail in trails):
        return None
    if [_side(trail.module) for trail in trails] == ["k", "q"]:  # exchanged on the way
        trails = [replace(trail, whole=False) for trail in reversed(trails)]
    found = [array for x, trail in zip((q, k), trails, strict=True) for array in _first(x, trail)]
    return (found[0], found[1]) if len(found) == 2 else None


def still(q: Any, k: Any) -> bool:
    """Return whether q and k of attention are views of what modules returned, which nothing has rotated."""
    trails = [_trail(x) for x in (q, k)]
    return all(trail is not None and trail.whole and not trail.rotated for trail in trails)


def _side(module: str) -> str:
    """Return q or k where the name of a module says it is of one of them: q_proj, wk, key_layernorm."""
    words = (word.removeprefix("w")[0] for word in module.lower().split("_") if word in _SIDES)
    return next(words, "")


def _first(x: Any, trail: Trail) -> list[Array]:
    """Return the first view that has the heads of x, in its dtype if one has that; nothing without any."""
    h, s, d = x.shape[-3:]
    views = _views(x, trail)
    if h == s or any(view._version != version for view, version in views):  # which is which; overwritten
        return []
    found = [view for view, _ in views if view.numel() == h * s * d and not view.is_complex()]
    found = [view for view in found if view.shape[-3:] in ((h, s, d), (s, h, d))]
    found = [view for view in found if view.dtype == x.dtype] or found
    heads = [view if view.shape[-3] == h else view.transpose(-2, -3) for view in found[:1]]
    return [as_array(view.reshape(h, s, d)) for view in heads]


def as_array(x: Any) -> Array:
    """Return a copy of a tensor in float64."""
    array: Array = x.detach().to("cpu", torch.float64).numpy().copy()
    return array
