"""What the bugs share: frequencies of the usual scalings and a rotation, right, in float32.

x (b, h, s, d), positions (s,) or (b, s), angles (s, p) or (b, 1, s, p); pairs are the halves of the head.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import math

import torch


def inverse(dims, base=10000.0):
    """Plain frequencies (p,)."""
    return 1.0 / base ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)


def angles_of(positions, frequencies):
    """positions times frequencies."""
    rows = positions if positions.ndim == 1 else positions[:, None]
    return rows[..., None].float() * frequencies


def turned(x, cos, sin):
    """x with its first 2p dims rotated by cos and sin (..., s, p), rounded once."""
    p = cos.shape[-1]
    first, second, rest = x[..., :p].float(), x[..., p : 2 * p].float(), x[..., 2 * p :]
    pairs = first * cos - second * sin, second * cos + first * sin
    return torch.cat((*(one.to(x.dtype) for one in pairs), rest), dim=-1)


def rotated(q, k, angles, factor=1.0):
    """q and k rotated by angles; factor: on cos and sin."""
    cos, sin = factor * angles.cos(), factor * angles.sin()
    return turned(q, cos, sin), turned(k, cos, sin)


def llama3(dims, base=500000.0, factor=32.0, low=1.0, high=4.0, original=8192):
    """Frequencies of Llama 3.1 and 3.2."""
    plain = inverse(dims, base)
    smooth = ((original * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return smooth * plain + (1 - smooth) * plain / factor


def yarn_range(dims, base, original, truncate=True):
    """The pairs between which YaRN's ramp rises, of 32 turns and of 1; whole ones where truncated."""
    low, high = (
        dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)
    )
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    return max(low, 0), min(high, dims - 1)


def yarn(dims, base, factor, ends):
    """Frequencies of YaRN; ends: those of its ramp."""
    plain, (low, high) = inverse(dims, base), ends
    ramp = ((torch.arange(dims // 2) - low) / (high - low)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def temperature(factor, weight=1.0):
    """YaRN's factor on cos and sin."""
    return 0.1 * weight * math.log(factor) + 1
