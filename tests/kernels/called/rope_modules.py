"""RoPE modules: ones that a loading mode spoils, and ones that it does not."""

import torch
from torch import nn


def theta(dim, base=1e4):
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


class Aliasing(nn.Module):
    "Positions in the dtype of inv_freq; returns angles."

    def __init__(self, dim, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim, base))

    def forward(self, seq_len, device):
        t = torch.arange(seq_len, device=device, dtype=self.inv_freq.dtype)
        return torch.outer(t, self.inv_freq)


class Angles(nn.Module):
    "A table of angles as a buffer; returns rotation matrices."

    def __init__(self, dim, max_len=1024):
        super().__init__()
        angles = torch.outer(torch.arange(max_len).float(), theta(dim))
        self.register_buffer("some_name", angles, persistent=False)

    def forward(self, pos):
        a = self.some_name[pos]
        return torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()], -1).unflatten(-1, (2, 2))


class Llama(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim), persistent=False)

    def forward(self, x, position_ids):
        a = position_ids[..., None].float() * self.inv_freq.float()
        a = torch.cat([a, a], -1)
        return a.cos().to(x.dtype), a.sin().to(x.dtype)


class Axes(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim), persistent=False)

    def forward(self, position_ids):
        a = position_ids.float().unsqueeze(-1) * self.inv_freq.view(1, 1, -1)
        a = torch.cat(a.unbind(dim=1), -1)
        return a.cos(), a.sin()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("full_inv_freq", theta(64, 1e6), persistent=False)
        self.register_buffer("sliding_inv_freq", theta(64), persistent=False)

    def forward(self, x, position_ids, layer_type):
        a = position_ids[..., None].float() * getattr(self, layer_type + "_inv_freq").float()
        return {"cos": a.cos(), "sin": a.sin()}


# no loading mode changes what these return


class Computed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, seq_len):
        a = torch.outer(torch.arange(seq_len, dtype=torch.float32), theta(self.dim))
        return torch.cat([a.cos(), a.sin()], -1)


class Complex(nn.Module):
    def __init__(self, dim, max_position_embeddings=4096):
        super().__init__()
        a = torch.outer(torch.arange(max_position_embeddings).double(), theta(dim).double())
        self.freqs_cis = torch.polar(torch.ones_like(a), a).to(torch.complex64)

    def forward(self, positions):
        return self.freqs_cis[positions]


class Healing(Llama):
    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.inv_freq = theta(64)
        return self


class Scaled(Llama):
    "An attention factor, and dims that do not rotate."

    def forward(self, x, position_ids):
        a = position_ids[..., None].float() * torch.cat([theta(64), torch.zeros(8)])
        return 1.25 * a.cos().to(x.dtype), 1.25 * a.sin().to(x.dtype)


class Wrong(nn.Module):
    "Positions in bfloat16, always."

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim))

    def forward(self, positions):
        a = positions.bfloat16().float()[..., None] * self.inv_freq.float()
        return a.cos(), a.sin()


class Overflowing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", theta(dim))

    def forward(self, positions):
        a = positions.to(self.inv_freq.dtype)[..., None] * 64 * (self.inv_freq / 64)
        return a.cos(), a.sin()


class Needs(nn.Module):
    def __init__(self, dim, secret):
        super().__init__()
        self.rope = Llama(dim * secret)

    def forward(self, x):
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Llama() for _ in range(3))

    def forward(self, x):
        return x


class Unused(Llama):
    "A cast buffer that forward does not read."

    def __init__(self):
        super().__init__()
        self.inv_freq = self.inv_freq.bfloat16().float()

    def forward(self, positions):
        a = positions[:, None].float() * theta(64)
        return a.cos(), a.sin()


class Positions(nn.Module):
    "Takes positions under a name that says nothing."

    def __init__(self, dim):
        super().__init__()
        self.freqs = nn.Parameter(theta(dim), requires_grad=False)

    def forward(self, t):
        return torch.outer(t.type(self.freqs.dtype), self.freqs)


def cast_model():
    return Model().to(torch.bfloat16)


def plain(dim=64):
    return Llama(dim)


class Tables(nn.Module):
    "A table of cos and one of sin."

    def __init__(self, length=512):
        super().__init__()
        a = torch.outer(torch.arange(length).float(), theta(64))
        self.register_buffer("c", a.cos())
        self.register_buffer("s", a.sin())

    def forward(self, positions):
        return self.c[positions], self.s[positions]


class Registered(nn.Module):
    "A complex table as a buffer, whose imaginary part a cast loses."

    def __init__(self, length=512):
        super().__init__()
        a = torch.outer(torch.arange(length).float(), theta(64))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(a), a))


def cast_complex():
    return Registered().to(torch.bfloat16)


class Unknown(nn.Module):
    "Frequencies of no base, which .to() rounds."

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", theta(64) * torch.linspace(1, 0.25, 32))
