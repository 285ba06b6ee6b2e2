"""Imitations of recipes, calls of real packages, and what resembles no recipe."""

import torch


def inverse(d):
    return 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d)


def rotate(x, cos, sin):
    """Half-split; each operation in the dtype of its terms."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def hf(x, positions):
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    return rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def meta(x, positions, bent=1.0):
    angles = torch.outer(positions.float(), inverse(x.shape[-1]) * bent)
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def meta_at_once(x, positions):
    """A product that is added to something is a product still."""
    angles = torch.addcmul(torch.zeros(()), positions.float()[:, None], inverse(x.shape[-1]))
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def vllm_cuda(x, positions):
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    cos, sin = (part.to(x.dtype).float() for part in (angles.cos(), angles.sin()))
    return rotate(x.float(), cos, sin).to(x.dtype)


def hf_model_cast(x, positions):
    angles = positions.float()[:, None] * inverse(x.shape[-1]).to(x.dtype).float()
    return rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def hf_old_table(x, positions):
    angles = torch.outer(positions.to(x.dtype), inverse(x.shape[-1]).to(x.dtype))
    return rotate(x, angles.cos(), angles.sin())


def gpt_neox_te(x, positions):
    angles = (positions.float()[:, None] * inverse(x.shape[-1])).to(x.dtype).float()
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def flux(x, positions):
    d = x.shape[-1]
    omega = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.outer(positions.double(), omega)
    return rotate(x.float(), angles.cos().float(), angles.sin().float()).to(x.dtype)


def flux_double(x, positions):
    d = x.shape[-1]
    angles = torch.outer(positions.double(), 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d))
    return rotate(x, angles.cos(), angles.sin())


def positions_in_dtype(x, positions):
    angles = positions.to(x.dtype).float()[:, None] * inverse(x.shape[-1])
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def maxtext(x, positions):
    d = x.shape[-1]
    angles = positions.float()[:, None] / 10000.0 ** (torch.arange(0, d, 2).float() / d)
    return rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def rotary_embedding_torch_call(x, positions):
    from rotary_embedding_torch import RotaryEmbedding

    return RotaryEmbedding(x.shape[-1]).rotate_queries_or_keys(x, offset=int(positions[0]))


def cohere_call(q, k, positions):
    from transformers import CohereConfig
    from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding, apply_rotary_pos_emb

    config = CohereConfig(hidden_size=q.shape[-1], num_attention_heads=1, rope_theta=10000.0)
    cos, sin = CohereRotaryEmbedding(config)(q, positions[None])
    return apply_rotary_pos_emb(q, k, cos, sin)


def cast_frequencies(x, positions):
    """bfloat16 frequencies and nothing else: no recipe with a name has it."""
    angles = positions.float()[:, None] * inverse(x.shape[-1]).to(x.dtype).float()
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def wrong_exponent(x, positions):
    d = x.shape[-1]
    angles = positions.float()[:, None] * 10000.0 ** (-torch.arange(0, d, 2).float() / (d - 2))
    return rotate(x.float(), angles.cos(), angles.sin()).to(x.dtype)


def unheard_of(x, positions):
    """Frequencies that nothing known gives."""
    bent = torch.linspace(0.5, 1.5, x.shape[-1] // 2) ** 3
    return meta(x, positions, bent)


def unheard_of_rows(x, positions):
    """Frequencies that nothing known gives, and each fourth token as it was."""
    return torch.where((positions % 4 == 3)[:, None], x, unheard_of(x, positions))


def short_cache(x, positions):
    return meta(x, torch.arange(40000)[positions])


def clamped(x, positions):
    return meta(x, positions.clamp(max=65535))
