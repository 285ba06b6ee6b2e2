"""Code that is told no layer type, beside a config with two (cases/layer_types/config.json)."""

import torch


def rotated(x, position_ids, base):
    at = position_ids if position_ids.dim() == 2 else position_ids[None]
    inv_freq = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angles = at[:, None, :, None].double() * inv_freq
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def of_full_attention(q, k, position_ids):
    return rotated(q, position_ids, 1e6), rotated(k, position_ids, 1e6)


def of_any_base(q, k, position_ids, base=1e4):
    return rotated(q, position_ids, base), rotated(k, position_ids, base)
