# settings: --head-dim 64 --base 500000 --scaling llama3:factor=8,low=1,high=4,original=8192 --up-to 8192
# name: LlamaRope
# wrong: the scaling is looked for under "type" alone, the config has "rope_type". all dtypes. missing-scaling
import math

import torch
from torch import nn


class LlamaRope(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = config.head_dim
        inv = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        scaling = config.rope_scaling or {}
        if scaling.get("type") == "llama3":
            wl, old = 2 * math.pi / inv, scaling["original_max_position_embeddings"]
            t = ((old / wl - 1) / 3).clamp(0, 1)
            inv = (1 - t) * inv / scaling["factor"] + t * inv
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, xq, xk, position_ids):
        """xq, xk: (b, s, h, d); position_ids: (b, s)."""
        f = (position_ids[:, :, None].float() * self.inv_freq)[:, :, None]
        def one(x):
            a, b = x.float()[..., : x.shape[-1] // 2], x.float()[..., x.shape[-1] // 2 :]
            return torch.cat((a * f.cos() - b * f.sin(), b * f.cos() + a * f.sin()), -1).to(x.dtype)
        return one(xq), one(xk)
