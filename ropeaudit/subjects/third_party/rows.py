"""Adapters that are the code of a table of `data/adapters.toml`, which says what it is given.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.scaling import HF_NAMES
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays
from ropeaudit.subjects.calling.code import Rotation, runs
from ropeaudit.subjects.third_party.adapter import Adapter, TensorTurn, TorchAdapter, table_end
from ropeaudit.subjects.third_party.entries import Entry

if TYPE_CHECKING:
    import torch

_INT32 = 2**31


class Row(Adapter):
    """Code that takes and returns arrays of NumPy, whatever it computes with."""

    def __init__(self, entry: Entry) -> None:
        """Import what the code does. Raises: whatever that raises."""
        super().__init__(entry)
        file = f"adapters.toml:{entry.name}"
        linecache.cache[file] = len(entry.code), None, entry.code.splitlines(True), file  # for tracebacks
        tree = ast.parse(entry.code, file)
        self._code = compile(tree, file, "exec")
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(tree, file, "exec"), {})  # noqa: S102  # ours
        if self.engine == "keras":  # which computes with one of several
            self.engine = str(sys.modules["keras"].backend.backend())

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a new instance."""
        turn = self.turn(setting, dtype)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            if self.entry.int32 and abs(positions).max(initial=0) >= _INT32:
                raise ValueError("its positions are int32")
            given = arrays.new_array(x, fmt, "numpy")
            at = positions.astype(np.int32) if self.entry.int32 else positions
            parts = [np.asarray(turn(given[:, run], at[run])) for run in self.runs(positions)]
            return np.concatenate(parts, axis=1).astype(np.float64 if fmt.name == "float64" else np.float32)

        return rotate

    def turn(self, setting: RopeSetting, dtype: Format) -> Callable[[Any, Any], Any]:
        """Return rotate(x, at) of code executed anew, once for each length of its table."""
        named = values(self.entry, setting, dtype)
        made: dict[int, Callable[[Any, Any], Any]] = {}

        def new(end: int) -> Callable[[Any, Any], Any]:
            space = {"__name__": f"adapters.{self.name}", **named, "end": end}
            exec(self._code, space)  # noqa: S102  # ours
            for name, value in space.items():
                space[name] = self.moved(value)
            made[end] = space["rotate"]
            return made[end]

        def rotate(x: Any, at: Any) -> Any:
            end = table_end(int(at.max()), int(at.min())) if self.entry.table else 0
            return (made.get(end) or new(end))(x, at)

        if not self.entry.table:
            new(0)  # in the environment in which instances are built
        return rotate

    def moved(self, value: Any) -> Any:
        """Return what the code made, on the device."""
        return value

    def runs(self, positions: Positions) -> list[slice]:
        """Return the positions that a call takes each."""
        return [run for run, _ in runs(positions)] if self.entry.runs else [slice(None)]


class TorchRow(TorchAdapter, Row):
    """Code that takes and returns tensors."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new instance."""
        import torch

        turn = self.turn(setting, dtype)

        def rotate(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            parts = [turn(x[0, :, run], at[run]) for run in self.runs(at.cpu().numpy())]
            return torch.cat(parts, dim=1)[None] if len(parts) > 1 else parts[0][None]

        return rotate

    def moved(self, value: Any) -> Any:
        """Return a module or a tensor that lies on the device; anything else as it is."""
        import torch

        if isinstance(value, torch.nn.Module):
            return self.device.moved(value)
        return self.device.put(value) if isinstance(value, torch.Tensor) else value


def adapter(entry: Entry) -> Adapter:
    """Return the adapter of a table. Raises: whatever the imports of its code raise."""
    return TorchRow(entry) if entry.engine == "torch" else Row(entry)


def values(entry: Entry, setting: RopeSetting, dtype: Format) -> dict[str, Any]:
    """Return what code is given by name, but for how long its table is."""
    given = setting.scaling.parameters()
    rope = {name: given[own] for name, own in HF_NAMES.items() if own in given and own != "maximum"}
    if rope:
        rope["factor"] = setting.scaling.stretch
    named = {
        "head_dim": setting.head_dim,
        "rotary_dim": setting.rotary_dim,
        "base": setting.base,
        "half": setting.layout == "half",
        "stretch": setting.scaling.stretch,
        "maximum": int(rope.get("original_max_position_embeddings", 2048) * rope.get("factor", 1)),
        "rope_parameters": {"rope_type": setting.scaling.kind, "rope_theta": setting.base, **rope},
    }
    if entry.engine == "torch":
        from ropeaudit.subjects import torch_arrays

        named["dtype"] = torch_arrays.dtype(dtype)
    return named


def snippet(entry: Entry, setting: RopeSetting, dtype: Format, end: int) -> str:
    """Return the lines of an entry, with values in place of names."""
    named = values(entry, setting, dtype) | {"end": end}
    pattern = rf"(?<![.\w\"])({'|'.join(named)})(?![\w=])"  # no attribute, no keyword and no text
    return re.sub(pattern, lambda found: repr(named[found[1]]), entry.snippet)
