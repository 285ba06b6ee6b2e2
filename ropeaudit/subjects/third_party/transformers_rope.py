"""transformers: the rotary embeddings of its models, as loaded and after the whole module was cast."""

from __future__ import annotations

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from ropeaudit.formats import FloatArray, Format
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.called import Rotate


class Llama:
    """LlamaRotaryEmbedding and apply_rotary_pos_emb."""

    name, engine = "transformers-llama", "torch"
    layouts: tuple[Layout, ...] = ("half",)

    def __init__(self, version: str) -> None:
        """Keep the version that is installed."""
        self.version = version

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Partial and scaled rotary embeddings need a config of their own."""
        if setting.rotary_dim != setting.head_dim or setting.scaling.kind != "default":
            return "it is audited with plain frequencies over the whole head"
        return ""

    def fresh(self, setting: RopeSetting, dtype: Format) -> Rotate:
        """Return the rotation of a new module."""
        config = LlamaConfig(
            hidden_size=setting.head_dim,
            num_attention_heads=1,
            head_dim=setting.head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": setting.base},
        )
        module = LlamaRotaryEmbedding(config)

        def rotate(x: FloatArray, positions: Positions) -> FloatArray:
            q = torch_arrays.to_torch(x, dtype)[None]
            cos, sin = module(q, torch.from_numpy(positions)[None])
            turned, _ = apply_rotary_pos_emb(q, q, cos, sin)
            return torch_arrays.to_numpy(turned[0])

        return rotate


IMPLEMENTATIONS = {"transformers-llama": Llama}
