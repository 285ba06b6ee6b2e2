"""Twenty kernels with a fault each, ten right ones in ten signatures; half-split unless they say otherwise.

Each fault shows somewhere in positions 0 ... 127, 32768 ... and 131072 ...; none of them in all scores.
"""

import numpy as np
import torch

D = 64


def inverse(d, base=10000.0):
    return 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float32) / d)


def rotate(x, angles):
    """Half-split, in float32, rounded once; angles (..., s, p)."""
    cos, sin = angles.cos(), angles.sin()
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    a, b = x.to(wide).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def right(x, positions, base=10000.0):
    return rotate(x, positions.float()[..., None] * inverse(x.shape[-1], base))


# positions


def held_in_int16(x, positions):
    return right(x, positions.to(torch.int16))


def modulo_65536(x, positions):
    return right(x, positions % 65536)


def from_the_first(x, positions):
    return right(x, positions - positions[0])


def counted_anew(x, positions):
    return right(x, torch.arange(x.shape[-2]))


def offset_unused(x, offset=0):
    return right(x, torch.arange(x.shape[-2]))


def one_position(x, positions):
    return right(x, torch.where(positions == 131072 + 77, positions + 1, positions))


def restart_every_100(x, positions):
    return right(x, positions[0] + (positions - positions[0]) % 100)


def last_ones_late(x, positions):
    return right(x, torch.where(positions >= 32768 + 90, positions - 1, positions))


# pairs


def other_base(q, k, positions):
    return right(q, positions, 10500.0), right(k, positions, 10500.0)


def exponent(x, positions):
    d = x.shape[-1]
    return rotate(x, positions.float()[:, None] * (1.0 / 10000.0 ** (torch.arange(0, d, 2) / (d - 2))))


def one_pair(x, positions):
    theta = inverse(x.shape[-1])
    theta[5] *= 1.01
    return rotate(x, positions.float()[:, None] * theta)


# heads and batch elements


def one_head(x, positions):
    result = right(x, positions)
    result[:, 1:2] = x[:, 1:2]
    return result


def one_element(x, positions):
    result = right(x, positions)
    result[1:] = right(x[1:], positions + 1)
    return result


def one_head_of_one_element(x, positions):
    result = right(x, positions)
    result[1:, 1:2] = x[1:, 1:2]
    return result


# k


def k_unrotated(q, k, positions):
    return right(q, positions), k


def k_other_base(q, k, positions):
    return right(q, positions), right(k, positions, 500000.0)


def swapped(q, k, positions):
    return right(k, positions), right(q, positions)


# tables, caches, dtypes


def table_ends(x, positions):
    return right(x, positions.clamp(max=99999))


class Caching(torch.nn.Module):
    """Keeps the angles of its first call as long as the length stays."""

    def __init__(self):
        super().__init__()
        self.angles, self.length = None, 0

    def forward(self, x, positions):
        if self.length != x.shape[-2]:
            self.angles, self.length = positions.float()[:, None] * inverse(x.shape[-1]), x.shape[-2]
        return rotate(x, self.angles)


caching = Caching()


def twice(x, positions):
    return right(right(x, positions), positions)


def other_direction(x, positions):
    return right(x, -positions)


# right ones, in ten signatures


def x_positions(x, positions):
    return right(x, positions)


def q_k_positions(q, k, positions):
    return right(q, positions), right(k, positions)


def q_k_tables(q, k, cos, sin):
    def one(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    return one(q), one(k)


def x_tables(x, cos, sin):
    """Of the whole width, everything in the dtype, as in many model files."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def q_k_complex(xq, xk, freqs_cis):
    """bshd, interleaved."""
    rotations = freqs_cis[None, :, None]

    def one(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations).flatten(-2).type_as(x)

    return one(xq), one(xk)


class Module(torch.nn.Module):
    """Keeps a table that grows."""

    def __init__(self):
        super().__init__()
        self.angles = torch.zeros(0, D // 2)

    def forward(self, x, positions):
        if positions.max() >= len(self.angles):
            self.angles = torch.arange(int(positions.max()) + 1).float()[:, None] * inverse(x.shape[-1])
        return rotate(x, self.angles[positions])


module = Module()


class Built:
    """Made of dim and base."""

    def __init__(self, dim, base=10000.0):
        self.theta = inverse(dim, base)

    def __call__(self, x, positions):
        return rotate(x, positions.float()[:, None] * self.theta)


def in_numpy(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    d = x.shape[-1]
    angles = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    a, b = np.split(x.astype(np.float32), 2, axis=-1)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def x_offset(x, offset=0):
    return right(x, torch.arange(x.shape[-2]) + offset)


def bshd(q, k, position_ids):
    angles = (position_ids.float()[..., None] * inverse(q.shape[-1]))[:, :, None]
    assert position_ids.ndim == 2
    return rotate(q, angles), rotate(k, angles)
