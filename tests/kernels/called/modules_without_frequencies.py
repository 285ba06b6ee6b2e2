"""RoPE modules that hold no frequencies, or that hold them under no known name."""

import math

import torch
from torch import nn


class Computed(nn.Module):
    base, factor, out = 10000.0, 1.0, torch.bfloat16

    def angles(self, positions):
        return positions.double()[..., None] * self.base ** (-torch.arange(0, 64, 2).double() / 64)

    def forward(self, positions):
        a = self.angles(positions)
        return (a.cos() * self.factor).to(self.out), (a.sin() * self.factor).to(self.out)


class Half(Computed):
    out = torch.float16


class Factor(Computed):
    factor = 1.1386


class Single(Computed):
    out = torch.float32

    def angles(self, positions):
        return positions[..., None].float() / self.base ** (torch.arange(0, 64, 2).float() / 64)


class Own(Computed):
    base = 12345.678


class Late(Computed):
    def angles(self, positions):
        return super().angles(torch.where(positions > 20000, positions + 1, positions))


class Table(Single):
    def __init__(self):
        super().__init__()
        self.table = torch.polar(torch.ones(4096, 32), self.angles(torch.arange(4096)))

    def forward(self, positions):
        return self.table[positions]


class Sized(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, positions):
        return torch.outer(positions, torch.arange(self.dim, dtype=torch.float32))


class SinOfOthers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inv = 1 / 10000 ** (torch.arange(0, 64, 2).float() / 64)

    def forward(self, positions):
        a = positions[..., None].float() * self.inv
        return a.cos(), a.bfloat16().float().sin()


class Next(Single):
    def angles(self, positions):
        return super().angles(positions + 1)


class Reversed(Single):
    def angles(self, positions):
        return super().angles(positions.flip(-1))


class First(Single):
    def angles(self, positions):
        return super().angles(positions[..., :1].expand_as(positions))


class Buffered(Next):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", self.base ** (-torch.arange(0, 64, 2).float() / 64))


class Through(nn.Module):
    def forward(self, x, positions):
        return x, x


class Ends(Single):
    def angles(self, positions):
        return super().angles(positions).where(positions[..., None] <= 4000, torch.nan)


class Pixels(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.freqs = torch.nn.Parameter(torch.linspace(1.0, 5.0, 8) * math.pi)

    def forward(self, t):
        return (t[:, None].float() * self.freqs).repeat_interleave(2, -1)
