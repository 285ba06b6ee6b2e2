"""transformers: the rotary embeddings of its models, as loaded and after the whole module was cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import CohereConfig, Llama4TextConfig, LlamaConfig
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.scaling import HF_NAMES
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter

if TYPE_CHECKING:
    import torch

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "transformers-llama",
        "package": "transformers",
        "extra": "model",
        "layouts": ("half",),
        "calls": "LlamaRotaryEmbedding and apply_rotary_pos_emb",
        "snippet": (
            "from transformers.models.llama import modeling_llama as llama",
            "config = llama.LlamaConfig(head_dim=<head_dim>, "
            'rope_parameters={"rope_type": "default", "rope_theta": <base>})',
            "rope = llama.LlamaRotaryEmbedding(config)",
            "def rotate(x, at):",
            "    return llama.apply_rotary_pos_emb(x[None], x[None], *rope(x, at[None]))[0][0]",
        ),
    },
    {
        "name": "transformers-llama-cast",
        "package": "transformers",
        "extra": "model",
        "layouts": ("half",),
        "calls": "the same after .to(dtype) of the module, which rounds inv_freq",
        "snippet": (
            "from transformers.models.llama import modeling_llama as llama",
            "config = llama.LlamaConfig(head_dim=<head_dim>, "
            'rope_parameters={"rope_type": "default", "rope_theta": <base>})',
            "rope = llama.LlamaRotaryEmbedding(config).to(<dtype>)  # as model.to(dtype) does",
            "def rotate(x, at):",
            "    return llama.apply_rotary_pos_emb(x[None], x[None], *rope(x, at[None]))[0][0]",
        ),
    },
    {
        "name": "transformers-cohere",
        "package": "transformers",
        "extra": "model",
        "layouts": ("interleaved",),
        "calls": "CohereRotaryEmbedding and its apply_rotary_pos_emb",
        "snippet": (
            "from transformers.models.cohere import modeling_cohere as cohere",
            "config = cohere.CohereConfig(head_dim=<head_dim>, "
            'rope_parameters={"rope_type": "default", "rope_theta": <base>})',
            "rope = cohere.CohereRotaryEmbedding(config)",
            "def rotate(x, at):",
            "    return cohere.apply_rotary_pos_emb(x[None], x[None], *rope(x, at[None]))[0][0]",
        ),
    },
    {
        "name": "transformers-llama4",
        "package": "transformers",
        "extra": "model",
        "layouts": ("interleaved",),
        "calls": "Llama4TextRotaryEmbedding and apply_rotary_emb",
        "snippet": (
            "from transformers.models.llama4 import modeling_llama4 as llama4",
            "config = llama4.Llama4TextConfig(head_dim=<head_dim>, "
            'rope_parameters={"rope_type": "default", "rope_theta": <base>})',
            "rope = llama4.Llama4TextRotaryEmbedding(config)",
            "def rotate(x, at):",
            "    x = x.transpose(0, 1)[None]",
            "    return llama4.apply_rotary_emb(x, x, rope(x, at[None]))[0][0].transpose(0, 1)",
        ),
    },
)


def _config(kind: type[Any], setting: RopeSetting) -> Any:
    """Return a model's config with one head of this setting; scalings that depend on no length go into it."""
    given = setting.scaling.parameters()
    rope = {name: given[own] for name, own in HF_NAMES.items() if own in given and own != "maximum"}
    if rope:
        rope["factor"] = setting.scaling.stretch
    return kind(
        hidden_size=setting.head_dim,
        num_attention_heads=1,
        head_dim=setting.head_dim,
        max_position_embeddings=int(
            rope.get("original_max_position_embeddings", 2048) * rope.get("factor", 1)
        ),
        rope_parameters={"rope_type": setting.scaling.kind, "rope_theta": setting.base, **rope},
    )


class Llama(TorchAdapter):
    """LlamaRotaryEmbedding and apply_rotary_pos_emb."""

    scalings = ("default", "linear", "yarn", "llama3")
    code: Any = llama
    kind: type[Any] = LlamaConfig
    embedding = "LlamaRotaryEmbedding"

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module."""
        embedding = self.device.moved(self.embedding_module(setting, dtype))

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            cos, sin = embedding(x, positions[None])
            rotated: torch.Tensor = self.code.apply_rotary_pos_emb(x, x, cos, sin)[0]
            return rotated

        return rotate

    def embedding_module(self, setting: RopeSetting, dtype: Format) -> Any:
        """Return a new embedding, as it is loaded."""
        return getattr(self.code, self.embedding)(_config(self.kind, setting))


class LlamaCast(Llama):
    """The same after .to(dtype) of the module, as model.half() does it: inv_freq is rounded."""

    def embedding_module(self, setting: RopeSetting, dtype: Format) -> Any:
        """Return a new embedding, cast."""
        return super().embedding_module(setting, dtype).to(torch_arrays.dtype(dtype))


class Cohere(Llama):
    """CohereRotaryEmbedding and its apply_rotary_pos_emb."""

    code, kind, embedding = cohere, CohereConfig, "CohereRotaryEmbedding"


class Llama4(Llama):
    """Llama4TextRotaryEmbedding and apply_rotary_emb, which rotates complex numbers."""

    code, kind, embedding = llama4, Llama4TextConfig, "Llama4TextRotaryEmbedding"

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module."""
        embedding = self.device.moved(self.embedding_module(setting, dtype))

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            rows = x.transpose(1, 2)  # (1, s, h, d)
            rotated: torch.Tensor = llama4.apply_rotary_emb(rows, rows, embedding(x, positions[None]))[0]
            return rotated.transpose(1, 2)

        return rotate


IMPLEMENTATIONS = {
    "transformers-llama": Llama,
    "transformers-llama-cast": LlamaCast,
    "transformers-cohere": Cohere,
    "transformers-llama4": Llama4,
}
