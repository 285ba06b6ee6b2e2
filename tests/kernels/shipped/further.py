"""Bugs that shipped and are not in the first list; found after the tool was finished, and counted apart.

q, k (b, h, s, d), positions (s,), unless they say otherwise. The corrected version stands beside each.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import torch
from torch import nn
from turning import angles_of, inverse, rotated, temperature, turned, yarn, yarn_range

# F1


def sinusoids(positions, dim):
    """sin and cos of each frequency beside one another (s, d)."""
    angles = angles_of(positions, inverse(dim))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def f1_faulty(q, k, positions):
    sin, cos = sinusoids(positions, q.shape[-1]).chunk(2, dim=-1)
    return turned(q, cos, sin), turned(k, cos, sin)


def f1_right(q, k, positions):
    sin, cos = sinusoids(positions, q.shape[-1]).unflatten(-1, (-1, 2)).unbind(-1)
    return turned(q, cos, sin), turned(k, cos, sin)


# F2


def f2_faulty(q, k, positions):
    d = q.shape[-1]
    frequencies = 10000.0 ** (-2.0 * (torch.arange(d // 2) - 1) / d)
    return rotated(q, k, angles_of(positions, frequencies))


def f2_right(q, k, positions):
    d = q.shape[-1]
    return rotated(q, k, angles_of(positions, 10000.0 ** (-2.0 * torch.arange(d // 2) / d)))


# F3


def f3_faulty(q, k, positions):
    periods = 1.0 / 10000.0 ** (torch.arange(0, q.shape[-1], 2).float() / q.shape[-1])
    return rotated(q, k, positions[:, None].float() / periods)


def f3_right(q, k, positions):
    periods = 10000.0 ** (torch.arange(0, q.shape[-1], 2).float() / q.shape[-1])
    return rotated(q, k, positions[:, None].float() / periods)


# F4


def f4_faulty(q, k, position_ids):
    """The table from 0 to the length; the positions that are given are not looked at."""
    every = torch.arange(q.shape[-2])
    assert position_ids.shape[-1] == every.numel()
    return rotated(q, k, angles_of(every, inverse(q.shape[-1])))


def f4_right(q, k, position_ids):
    return rotated(q, k, angles_of(position_ids, inverse(q.shape[-1])))


# F5


class F5Faulty:
    """Every call but the first is taken for a step of decoding, though it is the next part of a batch."""

    def __init__(self, dim, base):
        self.frequencies, self.first = inverse(dim, base), True

    def __call__(self, q, k, positions):
        angles = angles_of(positions, self.frequencies)
        of_q = angles if self.first else angles[-1:]
        self.first = False
        return rotated(q, q, of_q)[0], rotated(k, k, angles)[0]


class F5Right(F5Faulty):
    """Begin and end are those of the call."""

    def __call__(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.frequencies))


# F6


def f6_faulty(q, k, offset):
    """Rows are counted on from one batch element into the next."""
    b, s = q.shape[0], q.shape[2]
    at = offset + torch.arange(b * s).view(b, s)
    return rotated(q, k, angles_of(at, inverse(q.shape[-1])))


def f6_right(q, k, offset):
    at = offset + torch.arange(q.shape[2])
    return rotated(q, k, angles_of(at, inverse(q.shape[-1])))


# F7: 8 of 32 dims


def f7_faulty(q, k, positions):
    """The first 4 pairs of the whole head, with its frequencies."""
    frequencies = inverse(q.shape[-1])
    frequencies[4:] = 0.0
    return rotated(q, k, angles_of(positions, frequencies))


def f7_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(8)))


# F8


class F8Faulty(nn.Module):
    """A buffer that training sets to 0."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", torch.zeros_like(inverse(dim, base)), persistent=False)

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.inv_freq))


class F8Right(F8Faulty):
    """Computed anew."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__(dim, base)
        self.inv_freq = inverse(dim, base)


# F9

GROWN = temperature(64.0)


def neighbouring(x, cos, sin):
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = first * cos - second * sin, second * cos + first * sin
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


def f9_right(q, k, positions, factor=GROWN):
    frequencies = yarn(q.shape[-1], 10000.0, 64.0, yarn_range(q.shape[-1], 10000.0, 4096))
    angles = angles_of(positions, frequencies)
    cos, sin = factor * angles.cos(), factor * angles.sin()
    return neighbouring(q, cos, sin), neighbouring(k, cos, sin)


def f9_faulty(q, k, positions):
    """Where neighbours are paired, nobody applies the factor."""
    return f9_right(q, k, positions, factor=1.0)


# F10

FINAL = temperature(128.0)


def f10_faulty(q, k, positions, attention_factor=FINAL):
    """The factor of the config is taken for the weight in the formula that gives it."""
    frequencies = yarn(q.shape[-1], 10000.0, 128.0, yarn_range(q.shape[-1], 10000.0, 4096))
    return rotated(q, k, angles_of(positions, frequencies), temperature(128.0, attention_factor))


def f10_right(q, k, positions, attention_factor=FINAL):
    frequencies = yarn(q.shape[-1], 10000.0, 128.0, yarn_range(q.shape[-1], 10000.0, 4096))
    return rotated(q, k, angles_of(positions, frequencies), attention_factor)


# F11


def f11_faulty(q, k, positions):
    """A kernel writes into new memory; autograd sees nothing of it."""
    results = rotated(q.detach(), k.detach(), angles_of(positions, inverse(q.shape[-1])))
    return tuple(torch.empty_like(x).copy_(x) for x in results)


def f11_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# F12: q, k (b, s, h, d)


def f12_faulty(q, k, positions):
    """The last axis but one is taken for that of the tokens; here it is that of the heads."""
    results = []
    for x in (q, k):
        angles = angles_of(torch.arange(x.shape[-2]), inverse(x.shape[-1]))
        results.append(turned(x, angles.cos(), angles.sin()))
    return tuple(results)


def f12_right(q, k, positions):
    angles = angles_of(positions, inverse(q.shape[-1]))[:, None]
    return turned(q, angles.cos(), angles.sin()), turned(k, angles.cos(), angles.sin())


# F13


def f13_faulty(q, k, positions):
    """The grid has blocks for one head; the others stay as the output was allocated."""
    results = [torch.zeros_like(x) for x in (q, k)]
    parts = rotated(q[:, :1], k[:, :1], angles_of(positions, inverse(q.shape[-1])))
    for out, part in zip(results, parts, strict=True):
        out[:, :1] = part
    return tuple(results)


def f13_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# F14


class F14Faulty:
    """A kernel that returns where the position is out of the table, with nothing written."""

    rows = 128

    def __init__(self, dim, base):
        self.angles = angles_of(torch.arange(self.rows), inverse(dim, base))

    def __call__(self, q, k, positions):
        out = [torch.zeros_like(x) for x in (q, k)]
        inside = positions < self.rows
        parts = rotated(q[..., inside, :], k[..., inside, :], self.angles[positions[inside]])
        for one, part in zip(out, parts, strict=True):
            one[..., inside, :] = part
        return tuple(out)


class F14Right(F14Faulty):
    """A table as long as the positions."""

    rows = 256


# F15


def f15_faulty(q, k, offset, budget=64):
    """The offset of a call is the number of rows that the cache kept."""
    at = min(offset, budget) + torch.arange(q.shape[2])
    return rotated(q, k, angles_of(at, inverse(q.shape[-1])))


def f15_right(q, k, offset):
    at = offset + torch.arange(q.shape[2])
    return rotated(q, k, angles_of(at, inverse(q.shape[-1])))


# F16


def flat(x):
    """What a kernel reads that takes x for contiguous from where it begins."""
    strides = torch.empty(x.shape, device="meta").stride()
    enough = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset() >= x.numel()
    return x.as_strided(x.shape, strides) if enough else x


def f16_faulty(q, k, positions):
    return rotated(flat(q), flat(k), angles_of(positions, inverse(q.shape[-1])))


def f16_right(q, k, positions):
    return rotated(q.contiguous(), k.contiguous(), angles_of(positions, inverse(q.shape[-1])))


# F17


class F17Faulty(nn.Module):
    """Frequencies and a scale are buffers of a module that training casts."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", inverse(dim, base))

    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class F17Right(F17Faulty):
    """They are attributes."""

    def __init__(self, dim=32, base=10000.0):
        super().__init__(dim, base)
        del self.inv_freq
        self.inv_freq = inverse(dim, base)


def f17_faulty():
    return F17Faulty().to(torch.bfloat16)


def f17_right():
    return F17Right().to(torch.bfloat16)


# F18


def f18_faulty(q, k, positions):
    at, frequencies = positions.to(q.dtype), inverse(q.shape[-1]).to(q.dtype)
    return rotated(q, k, (at[:, None] @ frequencies[None]).float())


def f18_right(q, k, positions):
    return rotated(q, k, positions.float()[:, None] @ inverse(q.shape[-1])[None])
