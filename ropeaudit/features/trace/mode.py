"""What torch does inside a rotation: the dtype of every operation, and the stage that it belongs to.

Stages are told apart by where numbers come from: positions times frequencies are angles, their cos and sin
the table, x times the table the rotation. Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

STAGES = ("position", "frequency", "angle", "trig", "table", "input", "rotation", "output")
_ORDER = {stage: number for number, stage in enumerate(STAGES)}
_TRIG = ("cos", "sin", "polar", "exp")
_TIMES = ("mul", "div", "mm", "bmm", "matmul", "addmm", "outer", "ger", "einsum", "dot", "mv", "addcmul")
_CASTS = ("_to_copy", "to", "copy_")
_VIEWS: tuple[str, ...] = ("view", "slice", "select", "expand", "transpose", "permute", "unsqueeze", "t")
_VIEWS += ("squeeze", "alias", "detach", "unbind", "split", "chunk", "reshape", "clone", "_unsafe_view")
_VIEWS += ("as_strided", "neg", "cat", "stack", "repeat", "split_with_sizes", "_conj", "lift_fresh", "index")
_VIEWS += ("empty_like", "view_as_real", "view_as_complex", "_reshape_alias", "unfold")
_SUMS = ("add", "sub", "rsub", "addcmul")


@dataclass(slots=True)
class Seen:
    """Of one stage: dtypes in the order in which numbers took them, and the operations."""

    dtypes: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)


class Logger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens to x (h, s, d) and positions (s,) while it is entered."""

    def __init__(self, heads: int, length: int, head_dim: int, pairs: int) -> None:
        """Keep the sizes by which arrays are recognised; they should differ from each other."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.pairs, self.size = length, pairs, heads * length * head_dim
        self.head_dim = head_dim
        self.seen: dict[str, Seen] = {stage: Seen() for stage in STAGES}
        self.tags: dict[int, tuple[str, Any]] = {}  # the tensor is kept, so that its id stays its own

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).rpartition(".")[2]
        given = [one for one in _flat((args, kwargs or {})) if isinstance(one, torch.Tensor)]
        for out in _flat(result):
            if isinstance(out, torch.Tensor):
                self._note(name.rstrip("_") if name not in _CASTS else name, given, out)
        return result

    def _note(self, name: str, given: list[torch.Tensor], out: torch.Tensor) -> None:
        tags = [self._tag(one) for one in given]
        stage = self._stage(name, tags, given, out)
        self.tags[id(out)] = (stage, out)
        if not stage:
            return
        if not out.is_floating_point() and not out.is_complex():
            return
        if given and out.dtype == given[0].dtype and _is_view(name):
            return
        seen, before = self.seen[stage], given[0].dtype if given else None
        fresh = before is not None and (before.is_floating_point or before.is_complex) and not seen.dtypes
        if before is not None and fresh and name in _CASTS and before != out.dtype:
            seen.dtypes.append(_name(before))
        if _name(out.dtype) not in seen.dtypes[-1:]:
            seen.dtypes.append(_name(out.dtype))
        if name not in seen.operations:
            seen.operations.append(name)

    def _stage(self, name: str, tags: list[str], given: list[torch.Tensor], out: torch.Tensor) -> str:
        """The stage that an operation belongs to; empty where it cannot be told."""
        there = {tag for tag in tags if tag}
        if not given:  # arange, zeros, a constant
            if name != "arange":
                return ""
            return "frequency" if out.numel() in (self.pairs, 2 * self.pairs) else "position"
        if name in _TRIG and there & {"angle", "trig"}:
            return "trig"
        if name == "complex" and "trig" in there:
            return "trig"
        if name in _TIMES and "position" in there and ("frequency" in there or len(given) == 2):
            return "angle" if out.numel() != self.length else "position"
        if there & {"input", "rotation", "output"}:
            if name in _CASTS and "rotation" in there and out.dtype != given[0].dtype:
                return "output"
            if name in _TIMES and there & {"trig", "table"}:
                return "rotation"
            if name in _SUMS and there & {"rotation", "output"}:
                return "rotation"
            return next(stage for stage in ("output", "rotation", "input") if stage in there)
        if "trig" in there and (name in _CASTS or name in _TIMES):
            return "table"
        return max(there, key=_ORDER.__getitem__, default="")

    def _tag(self, one: torch.Tensor) -> str:
        """The stage that a tensor belongs to; of one that was made outside, told by its size."""
        if id(one) in self.tags:
            return self.tags[id(one)][0]
        stage, count = "", one.numel()
        if not one.is_floating_point() and not one.is_complex():
            stage = "position" if count == self.length else ""
        elif count == self.size:
            stage = "input"
        elif count == self.pairs or (count == 2 * self.pairs and one.dim() == 1):
            stage = "frequency"
        elif one.dim() >= 2 and one.shape[-1] in (self.pairs, self.head_dim, 2 * self.pairs):
            stage = "table"
        elif count == self.length:
            stage = "position"
        if stage:
            self.tags[id(one)] = (stage, one)
            if stage in ("frequency", "table", "input") and not self.seen[stage].dtypes:
                self.seen[stage].dtypes.append(_name(one.dtype))
                self.seen[stage].operations.append("given")
        return stage

    def on_progress(self, one: torch.Tensor) -> None:
        """Note what leaves the rotation."""
        if self.tags.get(id(one), ("",))[0] in ("rotation", "output"):
            self.seen["output"].dtypes = [_name(one.dtype)]


def stages(log: Logger) -> dict[str, Seen]:
    """Return what was seen of each stage, in the order of the computation."""
    log.seen["input"].dtypes[1:] = []  # what it is cast to is the rotation's business
    return {stage: seen for stage, seen in log.seen.items() if seen.dtypes}


def _is_view(name: str) -> bool:
    return name in _VIEWS


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _flat(results: Any) -> list[Any]:
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [leaf for one in results for leaf in _flat(one)]
    return [results]
