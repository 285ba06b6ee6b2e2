"""litgpt: a table of cos and sin, built from position 0 in float32."""

from __future__ import annotations

import functools

import torch
from litgpt.model import apply_rope, build_rope_cache

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "litgpt",
        "layouts": ("half",),
        "calls": "build_rope_cache and apply_rope",
    },
)


class LitGpt(TorchAdapter):
    """build_rope_cache and apply_rope."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            cos, sin = map(self.device.put, _table(end, setting.head_dim, setting.base))
            rotated: torch.Tensor = apply_rope(x, cos[positions][None], sin[positions][None])
            return rotated

        return rotate


@functools.lru_cache(maxsize=1)
def _table(end: int, dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin. Their values do not depend on their length. Shapes: -> two of (end, d)."""
    table: tuple[torch.Tensor, torch.Tensor] = build_rope_cache(end, dim, base=base)
    return table


IMPLEMENTATIONS = {"litgpt": LitGpt}
