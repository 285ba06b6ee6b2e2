"""rotary-embedding-torch (lucidrains): positions are counted in the dtype of q and k."""

from __future__ import annotations

import torch
from rotary_embedding_torch import RotaryEmbedding

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, runs

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "rotary-embedding-torch",
        "layouts": ("interleaved",),
        "calls": "RotaryEmbedding.rotate_queries_or_keys, a run of positions a call",
        "snippet": (
            "from rotary_embedding_torch import RotaryEmbedding",
            "rope = RotaryEmbedding(<rotary_dim>, theta=<base>)",
            "def rotate(x, at):",
            "    return rope.rotate_queries_or_keys(x[None], offset=int(at[0]))[0]",
        ),
    },
)


class Lucid(TorchAdapter):
    """RotaryEmbedding.rotate_queries_or_keys, which takes the first position; its angles are cached."""

    partial = True
    scalings = ("default", "linear")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module; it keeps angles up to position 8191 that start at 0."""
        module = self.device.moved(
            RotaryEmbedding(
                setting.rotary_dim, theta=setting.base, interpolate_factor=setting.scaling.stretch
            )
        )

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            parts = [
                module.rotate_queries_or_keys(x[:, :, run], offset=first)
                for run, first in runs(positions.cpu().numpy())
            ]
            return torch.cat(parts, dim=2)

        return rotate


IMPLEMENTATIONS = {"rotary-embedding-torch": Lucid}
