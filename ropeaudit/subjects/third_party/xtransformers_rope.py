"""x-transformers: its rotary embedding, as built and after the whole module was cast."""

from __future__ import annotations

import torch
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "x-transformers",
        "layouts": ("interleaved",),
        "calls": "RotaryEmbedding and apply_rotary_pos_emb",
        "snippet": (
            "from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb",
            "rope = RotaryEmbedding(<rotary_dim>, base=<base>)",
            "def rotate(x, at):",
            "    return apply_rotary_pos_emb(x[None], *rope(at))[0]",
        ),
    },
    {
        "name": "x-transformers-cast",
        "package": "x-transformers",
        "layouts": ("interleaved",),
        "calls": "the same after .to(dtype) of the module, which rounds positions and angles",
        "snippet": (
            "from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb",
            "rope = RotaryEmbedding(<rotary_dim>, base=<base>).to(<dtype>)  # as model.to(dtype) does",
            "def rotate(x, at):",
            "    return apply_rotary_pos_emb(x[None], *rope(at))[0]",
        ),
    },
)


class XTransformers(TorchAdapter):
    """RotaryEmbedding and apply_rotary_pos_emb."""

    partial = True
    scalings = ("default", "linear")

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module."""
        embedding = self.device.moved(self.embedding_module(setting, dtype))

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            frequencies, scale = embedding(positions)
            rotated: torch.Tensor = apply_rotary_pos_emb(x, frequencies, scale)
            return rotated

        return rotate

    def embedding_module(self, setting: RopeSetting, dtype: Format) -> torch.nn.Module:
        """Return a new embedding, as it is built."""
        embedding: torch.nn.Module = RotaryEmbedding(
            setting.rotary_dim, base=setting.base, interpolation_factor=setting.scaling.stretch
        )
        return embedding


class Cast(XTransformers):
    """The same after .to(dtype) of the module: inv_freq, positions and angles are rounded."""

    def embedding_module(self, setting: RopeSetting, dtype: Format) -> torch.nn.Module:
        """Return a new embedding, cast."""
        return super().embedding_module(setting, dtype).to(torch_arrays.dtype(dtype))


IMPLEMENTATIONS = {"x-transformers": XTransformers, "x-transformers-cast": Cast}
