"""Code that takes cos and sin, and the function beside it that makes them: of a largest length, one late."""

import torch


def precompute(head_dim, theta_base=10000, context_length=4096):
    frequencies = 1.0 / theta_base ** (torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(1, context_length + 1)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().float(), angles.sin().float()


def apply(x, cos, sin):
    a, b = x.chunk(2, -1)
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)
