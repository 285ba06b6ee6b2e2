"""What torch does inside a rotation: the dtype and stage of every operation.

Stages are distinguished by where numbers come from: positions times frequencies are angles, their cos and sin
the table, x times the table the rotation. Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import os
import sys
from importlib import resources
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.code import Code, StageLog
from ropeaudit.subjects.torch_native import Numbers

STAGES = ("position", "frequency", "angle", "trig", "table", "input", "rotation", "output")
_VECTORS = frozenset(("input", "rotation", "output"))  # stages of what is rotated
_TRIG = ("cos", "sin", "polar", "exp")
PRODUCTS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "mv", "addmv", "linear", "einsum", "dot")
_TIMES = ("mul", "div", *PRODUCTS, "outer", "ger", "addcmul")
_CASTS = ("_to_copy", "to", "copy_")
_VIEWS: tuple[str, ...] = ("view", "slice", "select", "expand", "transpose", "permute", "unsqueeze", "t")
_VIEWS += ("squeeze", "alias", "detach", "unbind", "split", "chunk", "reshape", "clone", "_unsafe_view")
_VIEWS += ("as_strided", "neg", "cat", "stack", "repeat", "split_with_sizes", "_conj", "lift_fresh", "index")
_VIEWS += ("empty_like", "view_as_real", "view_as_complex", "_reshape_alias", "unfold")
# operations that cuBLAS computes in TF32 where that is allowed -> the first of their two factors
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_NARROW = (torch.bfloat16, torch.float16)
_NOT_THEIRS = ("torch", "ropeaudit", "contextlib", "einops")
_OURS = os.path.join(str(resources.files("ropeaudit")), "")
_TF32 = parse("tf32")
_SUMS = ("add", "sub", "rsub", "addcmul")


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler, which takes long."""
        return False


class Tf32Products(_Mode):  # type: ignore[no-untyped-call]
    """While it is entered, rounds what float32 matrix products are formed of to 11 bits.

    TF32 in software: operands are rounded to nearest, ties to even, as in the recipe `hf-tf32-matmul`.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Run an operation, a product of rounded factors."""
        first = _FACTORS.get(str(func.overloadpacket).rpartition(".")[2])
        if first is not None:
            args = [
                Numbers(one.device).keep(one, _TF32)
                if number in (first, first + 1) and one.dtype == torch.float32
                else one
                for number, one in enumerate(args)
            ]
        return func(*args, **(kwargs or {}))


class DispatchLog(_Mode):
    """Notes what happens to x (h, s, d) and positions (s,) while it is entered."""

    def __init__(self, heads: int, length: int, head_dim: int, pairs: int) -> None:
        """Keep the sizes that tell arrays apart; they should all differ."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.pairs, self.size = length, pairs, heads * length * head_dim
        self.head_dim = head_dim
        self.logs: dict[str, StageLog] = {stage: StageLog() for stage in STAGES}
        # id of a tensor -> its stage, and the tensor itself, so that its id stays its own
        self.tagged: dict[int, tuple[str, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
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
        stage = self._stage(name, {self._tag(tensor) for tensor in given} - {""}, given, out)
        self.tagged[id(out)] = (stage, out)
        view = given and out.dtype == given[0].dtype and name in _VIEWS
        if view or not stage or not _is_real(out):
            return
        log = self.logs[stage]
        if log.narrow is None and out.dtype in _NARROW:
            frame: FrameType | None = sys._getframe(1)  # the innermost of others
            while frame is not None and (
                frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THEIRS
                or frame.f_code.co_filename.startswith((_OURS, "<frozen "))  # of which one is __main__
            ):
                frame = frame.f_back
            where = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
            log.narrow = (len(self.tagged), *where)
        if given and _is_real(given[0]) and not log.dtypes and name in _CASTS and given[0].dtype != out.dtype:
            log.dtypes.append(_dtype_name(given[0]))
        if _dtype_name(out) not in log.dtypes[-1:]:
            log.dtypes.append(_dtype_name(out))
        if name not in log.operations:
            log.operations.append(name)
        if name in PRODUCTS:
            log.products.setdefault(name, _dtype_name(given[-1]))

    def _stage(
        self,
        name: str,
        stages: set[str],
        given: list[torch.Tensor],
        out: torch.Tensor,
    ) -> str:
        """Return the stage of an operation from those of its arguments, or nothing."""
        numbers, times = out.numel(), name in _TIMES
        if not given and name != "arange":  # zeros, a constant
            return ""
        if not given:
            return "frequency" if numbers in (self.pairs, 2 * self.pairs) else "position"
        if (name in _TRIG and stages & {"angle", "trig"}) or (name == "complex" and "trig" in stages):
            return "trig"
        if times and "position" in stages and ("frequency" in stages or len(given) == 2):
            # positions times a number are positions
            return "position" if numbers == self.length else "angle"
        if name in _CASTS and "rotation" in stages and out.dtype != given[0].dtype:
            return "output"
        product = times and stages & _VECTORS and stages & {"trig", "table"}
        if product or (name in _SUMS and stages & {"rotation", "output"}):
            return "rotation"
        if (times or name in _CASTS) and "trig" in stages and not stages & _VECTORS:
            return "table"
        return max(stages, key=STAGES.index, default="")

    def _tag(self, tensor: torch.Tensor) -> str:
        """Return the stage of a tensor; tensors made outside are known by size."""
        if id(tensor) in self.tagged:
            return self.tagged[id(tensor)][0]
        count, real = tensor.numel(), _is_real(tensor)
        stage = "position" if count == self.length else ""
        if real and count == self.size:
            stage = "input"
        elif real and (count == self.pairs or (count == 2 * self.pairs and tensor.dim() == 1)):
            stage = "frequency"
        elif real and tensor.dim() >= 2 and tensor.shape[-1] in (self.pairs, self.head_dim, 2 * self.pairs):
            stage = "table"
        if stage:
            self.tagged[id(tensor)] = (stage, tensor)
            if stage in ("frequency", "table", "input") and not self.logs[stage].dtypes:
                self.logs[stage].dtypes.append(_dtype_name(tensor))
                self.logs[stage].operations.append("given")
        return stage


def logged(
    code: Code, setting: RopeSetting, dtype: Format, x: FloatArray, length: int
) -> dict[str, StageLog]:
    """Return what torch does in one call of a new instance from 0: all stages, in order.

    x: what is rotated, numbers of the dtype. Shapes: x (h, length, d).
    Raises: whatever the code raises.
    """
    log = DispatchLog(len(x), length, setting.head_dim, setting.pairs)
    torch_arrays.listeners.append(log.note_output)
    try:
        with log:
            at = np.arange(length, dtype=np.int64)
            both = x[None]
            code.rotator(setting, dtype).rotate_both(both, both, at)
    finally:
        torch_arrays.listeners.remove(log.note_output)
    log.logs["input"].dtypes[1:] = []  # casts are the rotation's
    return {stage: one for stage, one in log.logs.items() if one.dtypes}


def _is_real(tensor: torch.Tensor) -> bool:
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
