# settings: --layout interleaved --head-dim 64 --up-to 4096
# name: RotaryPositionalEmbeddings
# wrong: one token a row takes the first row's position for all rows. all dtypes. positions-of-another-row
import torch
from torch import nn


class RotaryPositionalEmbeddings(nn.Module):
    def __init__(self, dim: int, max_seq_len: int = 4096, base: int = 10_000) -> None:
        super().__init__()
        theta = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        idx_theta = torch.einsum("i, j -> ij", torch.arange(max_seq_len).float(), theta)
        self.register_buffer("cache", torch.stack([torch.cos(idx_theta), torch.sin(idx_theta)], dim=-1), persistent=False)

    def forward(self, x: torch.Tensor, *, input_pos=None) -> torch.Tensor:
        seq_len = x.size(1)
        if input_pos is None:
            rope_cache = self.cache[:seq_len]
        elif seq_len == 1:
            rope_cache = self.cache[input_pos.reshape(-1)[0]]
        else:
            rope_cache = self.cache[input_pos]
        xs = x.float().reshape(*x.shape[:-1], -1, 2)
        rope_cache = rope_cache.view(-1, xs.size(1), 1, xs.size(3), 2)
        out = torch.stack([xs[..., 0] * rope_cache[..., 0] - xs[..., 1] * rope_cache[..., 1],
                           xs[..., 1] * rope_cache[..., 0] + xs[..., 0] * rope_cache[..., 1]], -1)
        return out.flatten(3).type_as(x)
