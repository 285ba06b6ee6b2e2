"""megatron-core: its rotary embedding without the fused kernels, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, runs

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "megatron-core",
        "needs": ("megatron",),
        "layouts": ("half", "interleaved"),
        "calls": "RotaryEmbedding.get_freqs_non_repeated and _apply_rotary_pos_emb_bshd, "
        "a run of positions a call",
    },
)


class Megatron(TorchAdapter):
    """get_freqs_non_repeated, which takes the first position, and _apply_rotary_pos_emb_bshd."""

    partial = True
    movable = False
    scalings = ("default", "linear")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module. Angles are repeated as its get_emb does, which needs CUDA."""
        adjacent = setting.layout == "interleaved"
        module: Any = RotaryEmbedding(
            setting.rotary_dim,
            1.0,
            rotary_interleaved=adjacent,
            seq_len_interpolation_factor=setting.scaling.stretch if setting.scaling.stretch != 1 else None,
            rotary_base=setting.base,
            use_cpu_initialization=True,
        )

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            parts = [
                module.get_freqs_non_repeated(run.stop - run.start, first)
                for run, first in runs(positions.numpy())
            ]
            angles = torch.cat(parts)
            per_dim = angles.repeat_interleave(2, dim=-1) if adjacent else torch.cat((angles, angles), dim=-1)
            rows = x.permute(2, 0, 1, 3)  # (s, 1, h, d)
            rotated: torch.Tensor = _apply_rotary_pos_emb_bshd(rows, per_dim[:, None, None], adjacent)
            return rotated.permute(1, 2, 0, 3)

        return rotate


IMPLEMENTATIONS = {"megatron-core": Megatron}
