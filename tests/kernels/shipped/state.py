"""State: a call gives other numbers for what was called before it; what is right stands beside each.

Half-split, x (b, h, s, d), computed in float32. Letters: s positions, d head_dim, p pairs.
"""

import torch
from torch import nn

ORIGINAL, FACTOR = 64, 4.0  # positions of training, and how much dynamic scaling stretches them
DYNAMIC = {"scaling": f"dynamic:factor={FACTOR:g},maximum={ORIGINAL}"}


def half(x, angle):
    """angle (s, p)."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def inverse(dim, length=0):
    """Frequencies for so many positions, by transformers' formula of dynamic scaling."""
    stretch = FACTOR * max(length, ORIGINAL) / ORIGINAL - (FACTOR - 1)
    base = 10000.0 * stretch ** (dim / (dim - 2))
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def plain(dim):
    return inverse(dim, ORIGINAL)


def rotated(x, positions, frequencies):
    return half(x, positions.float()[:, None] * frequencies)


def s3(q, k, positions):
    """Frequencies are those of the length so far: keys that were cached at a shorter one keep theirs."""
    frequencies = inverse(q.shape[-1], int(positions.max()) + 1)
    return rotated(q, positions, frequencies), rotated(k, positions, frequencies)


def s3_right(q, k, positions):
    """Frequencies are those of the length that is served, whatever is there yet."""
    frequencies = inverse(q.shape[-1], 4 * ORIGINAL)
    return rotated(q, positions, frequencies), rotated(k, positions, frequencies)


def s4(x, positions):
    """Frequencies are those of the longest sequence that is served, for short ones too."""
    return rotated(x, positions, inverse(x.shape[-1], int(FACTOR) * ORIGINAL))


def s4_right(x, positions):
    return rotated(x, positions, inverse(x.shape[-1], int(positions.max()) + 1))


class S6(nn.Module):
    """What is kept is found by the number of tokens alone."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def key(self, x, offset):
        return x.shape[-2]

    def forward(self, x, offset=0):
        key = self.key(x, offset)
        if key not in self.kept:
            at = torch.arange(offset, offset + x.shape[-2])
            self.kept[key] = at.float()[:, None] * plain(x.shape[-1])
        return half(x, self.kept[key])


class S6Right(S6):
    def key(self, x, offset):
        return x.shape[-2], offset


class S8(nn.Module):
    """All models of a process share a rotation: it ends with the first, and does nothing for later ones."""

    models = 0

    def __init__(self):
        super().__init__()
        S8.models += 1
        self.usable = S8.models == 1

    def forward(self, x, positions):
        if self.usable:
            x.copy_(rotated(x, positions, plain(x.shape[-1])))
        return x


class S8Right(nn.Module):
    def forward(self, x, positions):
        x.copy_(rotated(x, positions, plain(x.shape[-1])))
        return x


class S9(nn.Module):
    """A prefill leaves the position that follows; each token that comes alone takes it, whosesoever it is."""

    def __init__(self):
        super().__init__()
        self.following = None

    def forward(self, x, positions):
        if positions.numel() > 1:
            self.following = positions[-1:] + 1
        elif self.following is not None:
            positions, self.following = self.following, self.following + 1
        return rotated(x, positions, plain(x.shape[-1]))


class S9Right(nn.Module):
    def forward(self, x, positions):
        return rotated(x, positions, plain(x.shape[-1]))
