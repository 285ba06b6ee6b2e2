"""Kernels as one meets them: one that is right, the others each with one fault."""

import torch


def rotated(x, positions, base=1e4, dtype=torch.float32):
    """Rotate x (batch, heads, positions, head_dim): half-split pairs, one rounding at the end."""
    d = x.shape[-1]
    frequencies = (1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)).to(dtype)
    angles = positions.to(dtype)[..., :, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def right(x, positions):
    return rotated(x.float(), positions).to(x.dtype)


def another_base(x, positions):
    return rotated(x.float(), positions, base=5e5).to(x.dtype)


def narrow_positions(x, positions):
    return right(x, positions.to(x.dtype))


def table_ends(x, positions):
    """Rotate with a table of 2,048 rows, of which the last one stands for all that follow."""
    return right(x, positions.clamp(max=2047))


def from_the_first(x, positions):
    """Take positions for consecutive ones."""
    first = positions.reshape(-1)[0]
    return right(x, first + torch.arange(x.shape[-2]))
