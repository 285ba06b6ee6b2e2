"""litgpt: a table of cos and sin, built from position 0 in float32."""

from __future__ import annotations

import torch
from litgpt.model import apply_rope, build_rope_cache

from ropeaudit.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end


class LitGpt(TorchAdapter):
    """build_rope_cache and apply_rope."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""

        def turn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            cos, sin = build_rope_cache(end, setting.head_dim, base=setting.base)
            turned: torch.Tensor = apply_rope(x, cos[positions][None], sin[positions][None])
            return turned

        return turn


IMPLEMENTATIONS = {"litgpt": LitGpt}
