"""What torch does inside a rotation: the dtype of every operation, and the stage that it belongs to.

Stages are distinguished by where numbers come from: positions times frequencies are angles, their cos and sin
the table, x times the table the rotation. Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling import timeout
from ropeaudit.subjects.calling.code import Code

STAGES = ("position", "frequency", "angle", "trig", "table", "input", "rotation", "output")
_ORDER = {stage: number for number, stage in enumerate(STAGES)}
_VECTORS = frozenset(("input", "rotation", "output"))  # stages of what is rotated
_TRIG = ("cos", "sin", "polar", "exp")
PRODUCTS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "mv", "addmv", "linear", "einsum", "dot")
_TIMES = ("mul", "div", *PRODUCTS, "outer", "ger", "addcmul")
_CASTS = ("_to_copy", "to", "copy_")
_VIEWS: tuple[str, ...] = ("view", "slice", "select", "expand", "transpose", "permute", "unsqueeze", "t")
_VIEWS += ("squeeze", "alias", "detach", "unbind", "split", "chunk", "reshape", "clone", "_unsafe_view")
_VIEWS += ("as_strided", "neg", "cat", "stack", "repeat", "split_with_sizes", "_conj", "lift_fresh", "index")
_VIEWS += ("empty_like", "view_as_real", "view_as_complex", "_reshape_alias", "unfold")
_SUMS = ("add", "sub", "rsub", "addcmul")


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation: its name, the stages of its arguments, the arguments themselves, and one result."""

    name: str
    stages: frozenset[str]
    given: Sequence[torch.Tensor]
    out: torch.Tensor

    def makes_angles(self) -> bool:
        """Return whether positions are multiplied by frequencies, or by one other tensor."""
        return "frequency" in self.stages or len(self.given) == 2

    def changes_dtype(self) -> bool:
        """Return whether the result has another dtype than the first argument."""
        return self.out.dtype != self.given[0].dtype

    def without_vectors(self) -> bool:
        """Return whether no argument is a vector that is rotated."""
        return not self.stages & _VECTORS


@dataclass(frozen=True, slots=True)
class _Rule:
    """One of `operations`, on tensors of each set of stages in `on`, belongs to `stage` if `when` holds."""

    stage: str
    operations: tuple[str, ...]
    on: tuple[frozenset[str], ...]
    when: Callable[[_Operation], bool] = lambda operation: True

    def holds(self, operation: _Operation) -> bool:
        """Return whether the rule covers an operation."""
        known = operation.name in self.operations and all(operation.stages & stages for stages in self.on)
        return known and self.when(operation)


def _any(*stages: str) -> frozenset[str]:
    return frozenset(stages)


# The first rule that holds gives the stage; where none does, it is the latest stage of the arguments.
_RULES = (
    _Rule("trig", _TRIG, (_any("angle", "trig"),)),
    _Rule("trig", ("complex",), (_any("trig"),)),
    _Rule("angle", _TIMES, (_any("position"),), _Operation.makes_angles),
    _Rule("output", _CASTS, (_any("rotation"),), _Operation.changes_dtype),
    _Rule("rotation", _TIMES, (_VECTORS, _any("trig", "table"))),
    _Rule("rotation", _SUMS, (_any("rotation", "output"),)),
    _Rule("table", _CASTS + _TIMES, (_any("trig"),), _Operation.without_vectors),
)


@dataclass(slots=True)
class StageLog:
    """Of one stage: dtypes in the order in which numbers took them, and the operations.

    products: those that are matrix products, with the dtype of their factors.
    """

    dtypes: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    products: dict[str, str] = field(default_factory=dict)


class DispatchLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens to x (h, s, d) and positions (s,) while it is entered."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler, which takes longer than all checks together."""
        return False

    def __init__(self, heads: int, length: int, head_dim: int, pairs: int) -> None:
        """Keep the sizes by which arrays are recognised; they should differ from each other."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.pairs, self.size = length, pairs, heads * length * head_dim
        self.head_dim = head_dim
        self.logs: dict[str, StageLog] = {stage: StageLog() for stage in STAGES}
        # id of a tensor -> its stage, and the tensor itself, so that its id stays its own
        self.tagged: dict[int, tuple[str, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation and note it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).rpartition(".")[2]
        given = _tensors((args, kwargs or {}))
        for out in _tensors(result):
            self._note(name.rstrip("_") if name not in _CASTS else name, given, out)
        return result

    def note_output(self, tensor: torch.Tensor) -> None:
        """Note the dtype of what leaves the rotation."""
        if self.tagged.get(id(tensor), ("",))[0] in ("rotation", "output"):
            self.logs["output"].dtypes = [_dtype_name(tensor)]

    def _note(self, name: str, given: list[torch.Tensor], out: torch.Tensor) -> None:
        stages = frozenset(self._tag(tensor) for tensor in given) - {""}
        stage = self._stage(_Operation(name, stages, given, out))
        self.tagged[id(out)] = (stage, out)
        if not stage or not _is_real(out):
            return
        if given and out.dtype == given[0].dtype and name in _VIEWS:
            return
        log = self.logs[stage]
        if given and _is_real(given[0]) and not log.dtypes and name in _CASTS and given[0].dtype != out.dtype:
            log.dtypes.append(_dtype_name(given[0]))
        if _dtype_name(out) not in log.dtypes[-1:]:
            log.dtypes.append(_dtype_name(out))
        if name not in log.operations:
            log.operations.append(name)
        if name in PRODUCTS:
            log.products.setdefault(name, _dtype_name(given[-1]))

    def _stage(self, operation: _Operation) -> str:
        """Return the stage that an operation belongs to; empty where it is unknown."""
        numbers = operation.out.numel()
        if not operation.given:  # arange, zeros, a constant
            if operation.name != "arange":
                return ""
            return "frequency" if numbers in (self.pairs, 2 * self.pairs) else "position"
        rule = next((rule for rule in _RULES if rule.holds(operation)), None)
        if rule is None:
            return max(operation.stages, key=_ORDER.__getitem__, default="")
        if rule.stage == "angle" and numbers == self.length:  # positions times a number are positions
            return "position"
        return rule.stage

    def _tag(self, tensor: torch.Tensor) -> str:
        """Return the stage of a tensor; one that was made outside is recognised by its size."""
        if id(tensor) in self.tagged:
            return self.tagged[id(tensor)][0]
        count = tensor.numel()
        if not _is_real(tensor):
            stage = "position" if count == self.length else ""
        elif count == self.size:
            stage = "input"
        elif count == self.pairs or (count == 2 * self.pairs and tensor.dim() == 1):
            stage = "frequency"
        elif tensor.dim() >= 2 and tensor.shape[-1] in (self.pairs, self.head_dim, 2 * self.pairs):
            stage = "table"
        else:
            stage = "position" if count == self.length else ""
        if stage:
            self.tagged[id(tensor)] = (stage, tensor)
            if stage in ("frequency", "table", "input") and not self.logs[stage].dtypes:
                self.logs[stage].dtypes.append(_dtype_name(tensor))
                self.logs[stage].operations.append("given")
        return stage


def stages(log: DispatchLog) -> dict[str, StageLog]:
    """Return the log of every stage that was seen, in the order of the computation."""
    log.logs["input"].dtypes[1:] = []  # what it is cast to is the rotation's business
    return {stage: stage_log for stage, stage_log in log.logs.items() if stage_log.dtypes}


def logged(
    code: Code, setting: RopeSetting, dtype: Format, x: FloatArray, length: int
) -> dict[str, StageLog]:
    """Return what torch does in one call of a new instance at positions from 0, stage by stage.

    x: what is rotated, numbers of the dtype. Shapes: x (h, length, d).
    Raises: whatever the code raises; UsageError where it takes too long.
    """
    log = DispatchLog(len(x), length, setting.head_dim, setting.pairs)

    fresh = code.uncalled(setting, dtype)  # a table that is cached is made in the first call

    def called() -> FloatArray:
        with log:
            at = np.arange(length, dtype=np.int64)
            return fresh.rotator(setting, dtype).rotate_one(x, at, key=False)

    torch_arrays.listeners.append(log.note_output)
    try:
        timeout.patiently(called, code.name)
    finally:
        torch_arrays.listeners.remove(log.note_output)
    return stages(log)


def _is_real(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dicts, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []
