"""torchtune: RotaryPositionalEmbeddings, its file alone, as built and after a cast of the module."""

from __future__ import annotations

from typing import Any

import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "torchtune",
        "layouts": ("interleaved",),
        "calls": "RotaryPositionalEmbeddings of torchtune/modules/position_embeddings.py, its file alone",
    },
    {
        "name": "torchtune-cast",
        "package": "torchtune",
        "layouts": ("interleaved",),
        "calls": "the same after .to(dtype) of the module, which rounds its table of cos and sin",
    },
)


class Torchtune(TorchAdapter):
    """RotaryPositionalEmbeddings with input_pos; its table starts at position 0."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        cls = one_file.module("torchtune", "modules/position_embeddings.py").RotaryPositionalEmbeddings
        modules: dict[int, Any] = {}

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            if end not in modules:
                modules[end] = self.device.moved(self.loaded(cls(setting.head_dim, end, setting.base), dtype))
            rotated: torch.Tensor = modules[end](x.transpose(1, 2), input_pos=positions[None])
            return rotated.transpose(1, 2)

        return rotate

    def loaded(self, module: Any, dtype: Format) -> Any:
        """Return a module as it is built."""
        return module


class Cast(Torchtune):
    """The same after .to(dtype) of the module."""

    def loaded(self, module: Any, dtype: Format) -> Any:
        """Return a module, cast."""
        return module.to(torch_arrays.dtype(dtype))


IMPLEMENTATIONS = {"torchtune": Torchtune, "torchtune-cast": Cast}
