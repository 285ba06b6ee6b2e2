# settings: --head-dim 128 --rotary-dim 64 --base 500000 --up-to 8192
# name: RotaryEmbedding
# vLLM's native path: rows of tokens with all heads side by side, one cache for cos and sin, a part rotated.
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype):
        super().__init__()
        self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
        inv_freq = 1.0 / (base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float) / rotary_dim))
        freqs = torch.einsum("i,j -> ij", torch.arange(max_position_embeddings, dtype=torch.float), inv_freq)
        self.register_buffer("cos_sin_cache", torch.cat((freqs.cos(), freqs.sin()), -1).to(dtype), persistent=False)

    def _rot(self, x, cos, sin, n):
        shape = x.shape
        x = x.view(n, -1, self.head_size)
        rot, rest = x[..., : self.rotary_dim].float(), x[..., self.rotary_dim :]
        a, b = rot.chunk(2, -1) if self.is_neox_style else (rot[..., ::2], rot[..., 1::2])
        o1, o2 = a * cos - b * sin, b * cos + a * sin
        rot = torch.cat((o1, o2), -1) if self.is_neox_style else torch.stack((o1, o2), -1).flatten(-2)
        return torch.cat((rot.to(rest.dtype), rest), -1).reshape(shape)

    def forward(self, positions, query, key=None):
        positions = positions.flatten()
        cos, sin = self.cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, -1)
        n = positions.shape[0]
        query = self._rot(query, cos, sin, n)
        return query, key if key is None else self._rot(key, cos, sin, n)
