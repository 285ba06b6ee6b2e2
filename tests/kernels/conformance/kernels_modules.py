"""Right kernels that keep something: modules with buffers, a growing cache, a factory; base 10,000.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import torch
from torch import nn


class HfRotary(nn.Module):
    """As Hugging Face writes it: inv_freq is a buffer, cos and sin are cast to the dtype of x."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def table(self, x, position_ids):
        """cos and sin (b, 1, s, d)."""
        inv_freq = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        angles = (inv_freq @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, x, position_ids):
        """x (b, h, s, d), position_ids (b, s)."""
        cos, sin = self.table(x, position_ids)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


class GrowingCache(nn.Module):
    """A float32 table of cos and sin that doubles when a position lies behind its end."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base
        self._grow(2048)

    def _grow(self, rows):
        inv_freq = self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angles = torch.arange(rows, dtype=torch.float64)[:, None] * inv_freq
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, q, k, positions):
        """q (b, s, h, d), k (b, s, g, d), positions (s,), interleaved pairs."""
        rows = self.cos.shape[0]
        while rows <= int(positions.max()):
            rows *= 2
        if rows > self.cos.shape[0]:
            self._grow(rows)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        return self._rotated(q, cos, sin), self._rotated(k, cos, sin)

    @staticmethod
    def _rotated(x, cos, sin):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).type_as(x)


def make_rotary(dim, base=10000.0):
    """A factory: the function that it returns rotates q and k (b, h, s, d) by positions (s,) or (b, s)."""
    exponents = torch.arange(dim // 2, dtype=torch.float32) * 2.0 / dim
    inv_freq = torch.exp(-exponents * torch.log(torch.tensor(base)))

    def rotate(q, k, positions):
        angles = positions[..., None].float() * inv_freq
        if positions.ndim == 2:
            angles = angles[:, None]
        cos, sin = torch.cos(angles), torch.sin(angles)
        results = []
        for x in (q, k):
            first, second = torch.tensor_split(x.to(torch.float32), 2, dim=-1)
            results.append(
                torch.concat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)
            )
        return tuple(results)

    return rotate
