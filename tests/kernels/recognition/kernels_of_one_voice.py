"""Faults of which every command says the same, in heads of 80 dims; right ones that an option asks for."""

import math

import torch


def rotated(x, angles, interleaved=False):
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = x.float()[..., ::2], x.float()[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def inverse(d, base=1e4, over=None):
    return base ** (-torch.arange(0, d, 2).float() / (over or d))


def angles(x, positions, base=1e4, over=None):
    return positions.float()[..., None] * inverse(x.shape[-1], base, over)


TABLE = (
    (torch.arange(9000).bfloat16().float()[:, None] * inverse(80)).cos(),
    (torch.arange(9000).bfloat16().float()[:, None] * inverse(80)).sin(),
)


def bf16_positions_in_a_table(positions, query, key):
    cos, sin = (part[positions] for part in TABLE)

    def turn(x):
        a, b = x.float().chunk(2, -1)
        more = (1,) * (x.ndim - cos.ndim)
        c, s = (part.reshape(part.shape[:-2] + more + part.shape[-2:]) for part in (cos, sin))
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    return turn(query), turn(key)


def unscaled(x, positions):
    return rotated(x, angles(x, positions, 5e5))


def over_128(x, positions):
    return rotated(x, angles(x, positions, over=128))


def bf16_frequencies_of_another_base(x, positions):
    return rotated(x, positions.float()[..., None] * inverse(x.shape[-1], 5e5).bfloat16().float())


def interleaved_keys(q, k, positions):
    return rotated(q, angles(q, positions)), rotated(k, angles(k, positions), True)


def swapped_on_odd_heads(x, positions):
    right, swapped = (rotated(x, one) for one in (angles(x, positions), math.pi / 2 - angles(x, positions)))
    odd = torch.arange(x.shape[-3]) % 2 == 1 if x.ndim > 2 else torch.tensor(False)
    return torch.where(odd.reshape(-1, 1, 1) if x.ndim > 2 else odd, swapped, right)


def interleaved(x, positions):
    return rotated(x, angles(x, positions), True)


def half_of_it(x, positions):
    y = x[..., :40]
    return torch.cat([rotated(y, angles(y, positions)), x[..., 40:]], -1)


def random(x, positions):
    return rotated(x, angles(x, positions)) * (1 + 0.1 * torch.rand(1))
