"""esm and flash-attn: a table in the dtype of q and k, and a rotation in it, without their Triton kernels."""

from __future__ import annotations

from typing import Any

import einops
import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "esm",
        "needs": ("esm", "einops"),
        "layouts": ("half", "interleaved"),
        "calls": "RotaryEmbedding._update_cos_sin_cache and apply_rotary_emb_torch of esm/layers/rotary.py, "
        "those definitions alone",
    },
    {
        "name": "flash-attn",
        "needs": ("flash_attn", "einops"),
        "layouts": ("half", "interleaved"),
        "calls": "RotaryEmbedding._update_cos_sin_cache and apply_rotary_emb_torch of "
        "flash_attn/layers/rotary.py, those definitions alone: its kernel needs CUDA",
    },
)


class FlashStyle(TorchAdapter):
    """RotaryEmbedding's table, whose rows of the positions are handed to apply_rotary_emb_torch."""

    partial = True
    scalings: tuple[str, ...] = ("default", "linear")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module, whose table is cached by length and dtype as it does."""
        space = self.space()
        adjacent = setting.layout == "interleaved"
        module = self.device.moved(self.built(space, setting, adjacent))

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            module._update_cos_sin_cache(end, device=x.device, dtype=x.dtype)
            cos, sin = module._cos_cached[positions], module._sin_cached[positions]
            rotated: torch.Tensor = space["apply_rotary_emb_torch"](x.transpose(1, 2), cos, sin, adjacent)
            return rotated.transpose(1, 2)

        return rotate

    def space(self) -> dict[str, Any]:
        """Return the definitions of its file that are called."""
        package = self.name.replace("-", "_")
        names = ["rotate_half", "apply_rotary_emb_torch", "RotaryEmbedding"]
        given = {"torch": torch, "rearrange": einops.rearrange, "repeat": einops.repeat}
        return one_file.definitions(package, "layers/rotary.py", names, given)

    def built(self, space: dict[str, Any], setting: RopeSetting, adjacent: bool) -> Any:
        """Return a new module, linear scaling in it where it takes that."""
        scaled = {"scaling_factor": setting.scaling.stretch} if setting.scaling.stretch != 1 else {}
        return space["RotaryEmbedding"](
            setting.rotary_dim, base=setting.base, interleaved=adjacent, **scaled
        ).eval()


class FlashAttn(FlashStyle):
    """The same of flash-attn, which has no scaling."""

    scalings = ("default",)


IMPLEMENTATIONS = {"esm": FlashStyle, "flash-attn": FlashAttn}
