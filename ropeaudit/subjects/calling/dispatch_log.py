"""A log of torch's operations inside a rotation: the dtype and stage of each.

A stage is known by the origin of the numbers: positions times frequencies are angles, their cos and sin the
table, x times the table the rotation. Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import resources
from types import FrameType
from typing import Any

import torch

from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.stages import StageLog
from ropeaudit.subjects.torch_native import DispatchMode

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
_NARROW = (torch.bfloat16, torch.float16)
_NOT_THEIRS = ("torch", "ropeaudit", "contextlib", "einops")
_OURS = os.path.join(str(resources.files("ropeaudit")), "")
_SUMS = ("add", "sub", "rsub", "addcmul")


class DispatchLog(DispatchMode):
    """Logs the operations on x (h, s, d) and positions (s,) while it is entered."""

    def __init__(self, heads: int, length: int, head_dim: int, pairs: int) -> None:
        """Store the sizes by which arrays are recognised; they should all differ."""
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
        """Run an operation and log its results."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).rpartition(".")[2]
        given = _nested_tensors((args, kwargs or {}))
        for out in _nested_tensors(result):
            self._note(name.rstrip("_") if name not in _CASTS else name, given, out)
        return result

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Log the operations in the block, and the dtype of tensors that are read out."""
        torch_arrays.listeners.append(self._note_output)
        try:
            with self:
                yield
        finally:
            torch_arrays.listeners.remove(self._note_output)

    def of_stages(self) -> dict[str, StageLog]:
        """Return the logs of stages with operations, in the order of the computation."""
        self.logs["input"].dtypes[1:] = []  # casts are the rotation's
        return {stage: log for stage, log in self.logs.items() if log.dtypes}

    def _note_output(self, tensor: torch.Tensor) -> None:
        """Log the dtype of a tensor that leaves the rotation."""
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
        """Return the stage of a tensor; tensors made before the log are recognised by size."""
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


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _nested_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _nested_tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []
