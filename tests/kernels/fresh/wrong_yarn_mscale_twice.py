# settings: --head-dim 64 --base 10000 --scaling yarn:factor=40,original=4096 --up-to 4096
# name: YarnTables
# wrong: YaRN's factor is on cos and sin and again on q and k. all dtypes. attention-factor
import math

import torch


class YarnTables(torch.nn.Module):
    factor, original, fast, slow = 40.0, 4096, 32, 1

    def __init__(self, dim, base=10000):
        super().__init__()
        pos_freqs = base ** (torch.arange(0, dim, 2).float() / dim)
        cut = lambda r: dim * math.log(self.original / (r * 2 * math.pi)) / (2 * math.log(base))
        lo, hi = max(math.floor(cut(self.fast)), 0), min(math.ceil(cut(self.slow)), dim - 1)
        keep = 1 - ((torch.arange(dim // 2).float() - lo) / (hi - lo)).clamp(0, 1)
        self.register_buffer("inv", (1 / (self.factor * pos_freqs)) * (1 - keep) + (1 / pos_freqs) * keep)
        self.mscale = 0.1 * math.log(self.factor) + 1.0

    def forward(self, q, k, input_pos):
        ang = torch.outer(input_pos.float().flatten(), self.inv)
        cos, sin = ang.cos() * self.mscale, ang.sin() * self.mscale
        qs, ks = q.float() * self.mscale, k.float() * self.mscale
        rot = lambda x: torch.cat((x[..., :32] * cos - x[..., 32:] * sin, x[..., 32:] * cos + x[..., :32] * sin), -1)
        return rot(qs).to(q.dtype), rot(ks).to(k.dtype)
