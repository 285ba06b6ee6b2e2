"""A kernel of some frequencies, whose table ends at a last position."""

import torch

THETA, FACTOR, LAST = torch.ones(8), 1.0, 10**9  # of which a test writes others


def rope(x, positions):
    positions = positions.clamp(max=LAST)
    angles = positions.to(torch.float32)[..., None] * THETA
    cos, sin = (FACTOR * angles.cos()).to(x.dtype), (FACTOR * angles.sin()).to(x.dtype)
    first, second = x[..., :8], x[..., 8:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
