"""What is called: right, and every pair a quarter turn too far."""

import torch


def right(x, positions, turn=0.0):
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8) + turn
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def quarter(x, positions):
    return right(x, positions, torch.pi / 2)
