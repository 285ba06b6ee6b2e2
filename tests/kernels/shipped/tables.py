"""Class T: tables and what they are computed in. Each bug in own words, its corrected version beside it.

q, k (b, h, s, d), positions (s,). Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import math

import torch
from torch import nn
from turning import angles_of, inverse, llama3, rotated, temperature, turned, yarn, yarn_range

# T1


def t1_faulty(q, k, positions):
    return rotated(q, k, positions[:, None].float() * inverse(q.shape[-1]).to(torch.bfloat16).float())


def t1_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T2


def t2_faulty(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1]).to(q.dtype)))


def t2_right(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1])))


# T3


def t3_faulty(q, k, positions):
    return rotated(q, k, torch.outer(positions.to(q.dtype), inverse(q.shape[-1]).to(q.dtype)).float())


def t3_right(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1])))


# T4


class T4Faulty(nn.Module):
    """The buffer is cast with the module, and tables are made of it."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", inverse(dim, base))
        self.half()

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.inv_freq.float()))


class T4Right(T4Faulty):
    """It is computed anew where it is used."""

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T6


def t6_faulty(q, k, positions):
    angles = inverse(q.shape[-1])[:, None] @ positions[None].float()
    return rotated(q, k, angles.T.float())


def t6_right(q, k, positions):
    with torch.autocast("cpu", enabled=False):
        return t6_faulty(q, k, positions)


# T7


def t7_faulty(q, k, positions):
    frequencies = inverse(q.shape[-1])
    seq = positions.type_as(frequencies.to(q.dtype))
    return rotated(q, k, seq[:, None].float() * frequencies)


def t7_right(q, k, positions):
    return rotated(q, k, positions.float()[:, None] * inverse(q.shape[-1]))


# T8


class T8Faulty(nn.Module):
    """`.to(dtype)` of the module."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", inverse(dim, base))
        self.to(torch.bfloat16)

    def forward(self, q, k, positions):
        return rotated(q, k, positions[:, None] * self.inv_freq.float())


class T8Right(T8Faulty):
    """Frequencies are no buffer."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        del self.inv_freq
        self.inv_freq = inverse(dim, base)


# T10


class T10Faulty(nn.Module):
    """arange takes the dtype of a buffer that was cast."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.frequencies = inverse(dim, base)
        self.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))

    def forward(self, q, k, positions):
        every = torch.arange(int(positions.max()) + 1, dtype=self.scale.dtype)
        return rotated(q, k, angles_of(every, self.frequencies)[positions])


class T10Right(T10Faulty):
    """arange in float32."""

    def forward(self, q, k, positions):
        every = torch.arange(int(positions.max()) + 1, dtype=torch.float32)
        return rotated(q, k, angles_of(every, self.frequencies)[positions])


# T11


def t11_faulty(q, k, positions):
    return rotated(q, k, angles_of(positions.to(torch.float16), inverse(q.shape[-1])))


def t11_right(q, k, positions):
    return rotated(q, k, angles_of(positions.to(torch.int32), inverse(q.shape[-1])))


# T12


def t12_faulty(q, k, positions):
    """The image's positions begin at 65536 and differ by less than bfloat16 holds there."""
    angles = positions[:, None].float() @ inverse(q.shape[-1])[None]
    return rotated(q, k, angles.float())


def t12_right(q, k, positions):
    return rotated(q, k, positions[:, None].float() * inverse(q.shape[-1]))


# T13


class T13Faulty:
    """The first forward casts the table where it lies; whoever comes later finds it so."""

    def __init__(self, dim, base):
        angles = angles_of(torch.arange(4096), inverse(dim, base))
        self.cache = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def __call__(self, q, k, positions):
        self.cache = self.cache.to(torch.bfloat16)
        cos, sin = self.cache[positions].float().chunk(2, dim=-1)
        return turned(q, cos, sin), turned(k, cos, sin)


class T13Right(T13Faulty):
    """The table stays in float32."""

    def __call__(self, q, k, positions):
        cos, sin = self.cache[positions].chunk(2, dim=-1)
        return turned(q, cos, sin), turned(k, cos, sin)


# T14


def fast(angles):
    """Reduced by a single float32 of 2 pi, as intrinsics for small angles leave it to the caller."""
    turn = torch.tensor(2 * math.pi, dtype=torch.float32)
    return angles - torch.round(angles / turn) * turn


def t14_faulty(q, k, positions):
    return rotated(q, k, fast(angles_of(positions, inverse(q.shape[-1]))))


def t14_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T15


def _of_video(q, k, positions, split):
    """A patch a frame: time is the position, height and width are 0. Pairs are neighbours."""
    sizes, at = (24, 20, 20), (positions, positions * 0, positions * 0)
    table = torch.cat([angles_of(torch.arange(4096), inverse(d)).repeat_interleave(2, -1) for d in sizes], -1)
    parts = [part[rows] for part, rows in zip(table.split(split, dim=-1), at, strict=True)]
    angles = torch.cat(parts, dim=-1)
    return tuple((x * angles.cos() + neighbours(x) * angles.sin()).to(x.dtype) for x in (q, k))


def neighbours(x):
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-second, first), dim=-1).flatten(-2)


def t15_faulty(q, k, positions):
    return _of_video(q, k, positions, (22, 21, 21))


def t15_right(q, k, positions):
    return _of_video(q, k, positions, (24, 20, 20))


# T16


def t16_faulty(q, k, positions):
    angles = angles_of(positions, inverse(q.shape[-1])).repeat_interleave(2, dim=-1)
    return tuple((x * angles.cos() + halves(x) * angles.sin()).to(x.dtype) for x in (q, k))


def t16_right(q, k, positions):
    angles = torch.cat((angles_of(positions, inverse(q.shape[-1])),) * 2, dim=-1)
    return tuple((x * angles.cos() + halves(x) * angles.sin()).to(x.dtype) for x in (q, k))


def halves(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


# T18


def t18_faulty(q, k, positions):
    scaled = llama3(q.shape[-1])
    frequencies = inverse(q.shape[-1], 500000.0)
    assert scaled.shape == frequencies.shape  # and the scaled ones are dropped here
    return rotated(q, k, angles_of(positions, frequencies))


def t18_right(q, k, positions):
    return rotated(q, k, angles_of(positions, llama3(q.shape[-1])))


# T21


def t21_faulty(q, k, positions):
    shrunk = (positions.float() / 4).clamp(max=2048 - 1)
    return rotated(q, k, shrunk[:, None] * inverse(q.shape[-1]), temperature(4.0))


def t21_right(q, k, positions):
    frequencies = yarn(q.shape[-1], 10000.0, 4.0, yarn_range(q.shape[-1], 10000.0, 2048))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


# T22


def t22_faulty(q, k, positions):
    d = q.shape[-1]
    low, high = yarn_range(d, 10000.0, 131072, truncate=False)
    frequencies = yarn(d, 10000.0, 4.0, (low, min(high, d // 2 - 1)))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


def t22_right(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 10000.0, 4.0, yarn_range(d, 10000.0, 131072))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


# T23


def t23_faulty(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 150000.0, 32.0, yarn_range(d, 150000.0, 4096))
    return rotated(q, k, angles_of(positions, frequencies), temperature(32.0))


def t23_right(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 150000.0, 32.0, yarn_range(d, 150000.0, 4096, truncate=False))
    return rotated(q, k, angles_of(positions, frequencies), temperature(32.0))


# T25


def t25_faulty(q, k, positions):
    """A quarter of the frequencies alone: pairs are then halves of a quarter of the head."""
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])[: q.shape[-1] // 8]))


def t25_right(q, k, positions):
    frequencies = inverse(q.shape[-1])
    frequencies[q.shape[-1] // 8 :] = 0.0
    return rotated(q, k, angles_of(positions, frequencies))


# T26: of fewer rows than the 4,096 that were there

ROWS = 256
_ANGLES = angles_of(torch.arange(ROWS), inverse(64))
_MEMORY = torch.cat((_ANGLES, torch.full((ROWS, 32), 0.5)))  # what lies behind the table


def t26_faulty(q, k, positions):
    return rotated(q, k, _MEMORY[positions])


def t26_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T27


class T27Faulty:
    """A table of as many rows as the model had before it was made longer."""

    rows = 128

    def __init__(self, dim, base):
        longer = base * (2.0 * 256 / 128 - 1) ** (dim / (dim - 2))
        self.angles = angles_of(torch.arange(self.rows), inverse(dim, longer))

    def __call__(self, q, k, positions):
        return rotated(q, k, self.angles[positions])


class T27Right(T27Faulty):
    """Times the factor."""

    rows = 2 * 128
