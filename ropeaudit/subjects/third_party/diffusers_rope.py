"""diffusers: the angles of Flux in float64, and those of other models in float32."""

from __future__ import annotations

import torch
from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed
from diffusers.models.transformers.transformer_flux import FluxPosEmbed

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "diffusers-flux",
        "package": "diffusers",
        "layouts": ("interleaved",),
        "calls": "FluxPosEmbed and apply_rotary_emb",
        "snippet": (
            "from diffusers.models.embeddings import apply_rotary_emb",
            "from diffusers.models.transformers.transformer_flux import FluxPosEmbed",
            "def rotate(x, at):",
            "    return apply_rotary_emb(x[None], FluxPosEmbed(<base>, [<head_dim>])(at[:, None]))[0]",
        ),
    },
    {
        "name": "diffusers-1d",
        "package": "diffusers",
        "layouts": ("interleaved",),
        "calls": "get_1d_rotary_pos_embed and apply_rotary_emb",
        "snippet": (
            "from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed",
            "def rotate(x, at):",
            "    table = get_1d_rotary_pos_embed(<head_dim>, at, <base>, use_real=True)",
            "    return apply_rotary_emb(x[None], table)[0]",
        ),
    },
)


class OneAxis(TorchAdapter):
    """get_1d_rotary_pos_embed, float32 by default, and apply_rotary_emb."""

    scalings: tuple[str, ...] = ("default", "linear")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation."""

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            rotated: torch.Tensor = apply_rotary_emb(x, self.table(setting, positions))
            return rotated

        return rotate

    def table(self, setting: RopeSetting, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin. Shapes: (s,) -> two of (s, d)."""
        table: tuple[torch.Tensor, torch.Tensor] = get_1d_rotary_pos_embed(
            setting.head_dim, positions, setting.base, use_real=True, linear_factor=setting.scaling.stretch
        )
        return table


class Flux(OneAxis):
    """FluxPosEmbed with one axis, and apply_rotary_emb; positions are float32."""

    scalings = ("default",)

    def table(self, setting: RopeSetting, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin. Shapes: (s,) -> two of (s, d)."""
        embedding = FluxPosEmbed(setting.base, [setting.head_dim])
        table: tuple[torch.Tensor, torch.Tensor] = embedding(positions[:, None])
        return table


IMPLEMENTATIONS = {"diffusers-1d": OneAxis, "diffusers-flux": Flux}
