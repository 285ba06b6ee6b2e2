# settings: --head-dim 128 --base 500000 --scaling llama3:factor=8,low=1,high=4,original=8192 --up-to 16384
# name: Rope
# The config is a plain dict, as json.load gives it; llama3's smoothing is written as a formula of wavelengths.
import math

import torch


class Rope(torch.nn.Module):
    def __init__(self, cfg: dict):
        super().__init__()
        dim = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
        inv = 1.0 / cfg["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        sc = cfg.get("rope_scaling") or {}
        if sc.get("rope_type", sc.get("type")) == "llama3":
            lo, hi, old = sc["low_freq_factor"], sc["high_freq_factor"], sc["original_max_position_embeddings"]
            wavelen = 2 * math.pi / inv
            smooth = ((old / wavelen - lo) / (hi - lo)).clamp(0, 1)
            inv = inv / sc["factor"] * (1 - smooth) + inv * smooth
        self.register_buffer("inv", inv, persistent=False)

    def forward(self, q, k, pos):
        ang = pos.to(torch.float32).unsqueeze(-1) * self.inv
        ang = torch.cat((ang, ang), -1).unsqueeze(-3)
        def f(x):
            y = x.float()
            return (y * ang.cos() + torch.cat((-y[..., y.shape[-1] // 2:], y[..., : y.shape[-1] // 2]), -1) * ang.sin()).to(x.dtype)
        return f(q), f(k)
