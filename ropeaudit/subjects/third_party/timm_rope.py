"""timm: one axis of its axial rotary embeddings, in a grid of one column whose rows are the positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from timm.layers import pos_embed_sincos as timm

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields, structure
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end
from ropeaudit.subjects.third_party.module_rope import placed

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "timm",
        "layouts": ("interleaved", "half"),
        "calls": "RotaryEmbedding.get_embed of a grid of one column, in_pixels=False, and apply_rot_embed; "
        "its head has as many dims again for the columns, which are left at 0",
    },
)


class Timm(TorchAdapter):
    """RotaryEmbedding and apply_rot_embed; positions are rows of the grid, from 0."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the grid is as long as the largest position needs, or it raises."""
        half = setting.layout == "half"
        dims = 2 * setting.head_dim
        module: Any = timm.RotaryEmbedding(
            dims, temperature=setting.base, in_pixels=False, feat_shape=None, rotate_half=half
        ).eval()
        tables: dict[int, Any] = {}

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            if end not in tables:
                tables[end] = module.get_embed([end, 1])
            sin, cos = (part[positions] for part in tables[end])
            rotated: torch.Tensor = timm.apply_rot_embed(x, sin, cos, half=half)
            return rotated

        def probed(x: FloatArray, at: Positions) -> FloatArray:
            given = torch.from_numpy(x.astype(np.float32))[None]
            rotated: FloatArray = rotate(given, torch.from_numpy(at))[0].numpy()
            return rotated

        expected = setting.base ** (-2.0 * np.arange(setting.pairs) / setting.rotary_dim)
        return placed(rotate, structure.measured(probed, dims).chosen(expected))


IMPLEMENTATIONS = {"timm": Timm}
