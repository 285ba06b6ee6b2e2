"""Kernels for the command lines of the net: right ones of several forms, and one for each kind of refusal."""

import torch


def _tables(positions, dims, base=10000.0):
    frequencies = 1.0 / base ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    angles = positions.float()[..., None] * frequencies
    return angles.cos(), angles.sin()


def _turned(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def right(x, positions):
    """Rotate x (batch, heads, positions, head_dim): half-split pairs, float32, one rounding at the end."""
    return _turned(x, *_tables(positions, x.shape[-1]))


def both(q, k, positions):
    """Rotate q and k together."""
    return right(q, positions), right(k, positions)


def of_tables(q, k, cos, sin):
    """Rotate q and k by cos and sin of whole heads, as transformers does."""

    def rotated(x):
        a, b = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)

    return rotated(q), rotated(k)


def interleaved(x, positions):
    """Rotate dims 2i and 2i + 1."""
    cos, sin = _tables(positions, x.shape[-1])
    a, b = x.float()[..., 0::2], x.float()[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


def careless(x, positions):
    """Keep positions in the dtype of x."""
    return right(x, positions.to(x.dtype))


def restarted(x, positions):
    """Start again from 0 at position 300."""
    return right(x, positions % 300)


def other_base(x, positions):
    """Use base 500000."""
    return _turned(x, *_tables(positions, x.shape[-1], 500000.0))


def backwards(x, positions):
    """Rotate the other way."""
    return right(x, -positions)


def raises(x, positions):
    """Take no position from 256 on, as a table of 256 rows."""
    if int(positions.max()) >= 256:
        raise IndexError("the table has 256 rows")
    return right(x, positions)


def unknown(spam):
    """Take no positions."""
    return spam


class Rotary(torch.nn.Module):
    """A module whose frequencies are stored in bfloat16."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__()
        theta = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", theta.bfloat16())

    def forward(self, x, positions):
        """Return cos and sin."""
        angles = positions.float()[..., None] * self.inv_freq.float()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Careful(torch.nn.Module):
    """A module that computes its frequencies in float32 when it is called."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x, positions):
        """Return cos and sin."""
        cos, sin = _tables(positions, self.dim, self.base)
        return torch.cat([cos, cos], -1).to(x.dtype), torch.cat([sin, sin], -1).to(x.dtype)
