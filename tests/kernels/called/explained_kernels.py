"""Kernels like a recipe and like none."""

import torch


def rotated(x, positions, table):
    d = x.shape[-1]
    inverse = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * inverse
    cos, sin = angles.cos().to(table), angles.sin().to(table)
    a, b = x[..., : d // 2].to(table), x[..., d // 2 :].to(table)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def like_meta(x, positions):
    return rotated(x, positions, torch.float32)


def like_hf(x, positions):
    return rotated(x, positions, x.dtype)


def shifted(x, positions):
    return like_meta(x, positions + 1)


def raising(x, positions):
    if x.dtype == torch.bfloat16:
        raise TypeError("no bfloat16")
    return like_meta(x, positions)


def short(x, positions):
    return like_meta(x, torch.arange(500)[positions])


def interleaved(x, positions):
    halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
    a, b = like_meta(halves, positions).chunk(2, -1)
    return torch.stack([a, b], -1).flatten(-2)
