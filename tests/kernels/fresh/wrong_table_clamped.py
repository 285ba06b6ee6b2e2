# settings: --head-dim 64 --up-to 4096
# name: ClampedRope
# wrong: the table has max_position_embeddings // 2 rows of the training length, 2048, and later positions are clamped.
# all dtypes. one position for all behind the end
import torch
from torch import nn


class ClampedRope(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.rows = 2048
        freqs = 10000 ** -(torch.arange(0, head_dim, 2) / head_dim)
        angle = torch.outer(torch.arange(self.rows).float(), freqs)
        self.register_buffer("lut", torch.stack((angle.cos(), angle.sin())), persistent=False)

    def forward(self, x, seq_pos):
        cos, sin = self.lut[:, seq_pos.clamp(0, self.rows - 1)]
        if seq_pos.dim() == 2:  # a row for each batch element, x is (b, h, s, d)
            cos, sin = cos[:, None], sin[:, None]
        l, r = x.float().chunk(2, dim=-1)
        return torch.cat((l * cos - r * sin, r * cos + l * sin), dim=-1).type_as(x)
