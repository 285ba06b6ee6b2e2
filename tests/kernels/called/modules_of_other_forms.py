"""RoPE modules that return cos and sin in other orders and forms."""

import torch
from torch import nn


def theta(dim, base=1e4):
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def angles(n, dim=64):
    return torch.outer(torch.arange(n).float(), theta(dim))


class Rope(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim))

    def angles(self, positions):
        return positions[..., None].float() * self.inv_freq.float()


class SinFirst(Rope):
    def forward(self, positions):
        return [self.angles(positions).sin(), self.angles(positions).cos()]


class Stacked(Rope):
    def forward(self, positions):
        a = self.angles(positions)
        return torch.stack([a.cos(), a.sin()], -1)


class InTurns(Stacked):
    def forward(self, positions):
        return super().forward(positions).flatten(-2)


class Rotates(Rope):
    def forward(self, x, positions):
        a = self.angles(positions)
        first, second = x.chunk(2, -1)
        return torch.cat([first * a.cos() - second * a.sin(), second * a.cos() + first * a.sin()], -1)


class Anew(nn.Module):
    "Frequencies are computed anew at each call."

    def __init__(self, dim=64, base=5e5):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, positions):
        a = positions[..., None].float() * theta(self.dim, self.base)
        return a.cos(), a.sin()


class Axes(Anew):
    "Three axes, whose frequencies are not those of one base and one size."

    def forward(self, position_ids):
        a = torch.cat([position_ids[..., k, None].float() * theta(16, 1e4) for k in range(3)], -1)
        return a.cos(), a.sin()


class Tables(nn.Module):
    def __init__(self, length=512):
        super().__init__()
        a = angles(length)
        self.register_buffer("c", a.cos())
        self.register_buffer("s", a.sin())

    def forward(self, positions):
        return self.c[positions], self.s[positions]


class Sum(Tables):
    def __init__(self):
        super().__init__()
        self.s = self.c + self.s

    def forward(self, positions):
        return self.c[positions], (self.s - self.c)[positions]


class Complex(nn.Module):
    def __init__(self, length=512):
        super().__init__()
        a = angles(length)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(a), a))

    def forward(self, positions):
        return self.freqs_cis[positions]


class Plain(nn.Module):
    def forward(self, hidden_states):
        return hidden_states + 1, hidden_states


class Small(Rope):
    def __init__(self, d=64):
        super().__init__(d if d > 1 else 0)

    def forward(self, positions):
        return self.angles(positions).cos(), self.angles(positions).sin()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.right, self.rotary = Small(), RotarySecret()

    def forward(self, x):
        return x


class RotarySecret(nn.Module):
    def forward(self, secret):
        return secret


def cast_complex():
    return Complex().to(torch.bfloat16)
