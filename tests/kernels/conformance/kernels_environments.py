"""Eleven rotations f(x, positions), x (b, h, s, d): five that no environment breaks, six that some do."""

import torch
from torch import nn

BASE = 10000.0


def frequencies(x):
    d = x.shape[-1]
    return 1.0 / BASE ** (torch.arange(0, d, 2, dtype=torch.int64).to(torch.float32) / d)


def turned(x, angles, dtype=torch.float32):
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    a, b = x.to(dtype).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


# ---------------------------------------------------------------------------- what no environment breaks


def elementwise(x, positions):
    return turned(x, positions.float()[:, None] * frequencies(x))


def in_its_dtype(x, positions):
    """Round the table and the rotation to the dtype of x, as transformers does."""
    return turned(x, positions.float()[:, None] * frequencies(x), x.dtype)


def product_in_float64(x, positions):
    """Form angles by a product that neither autocast nor TF32 touches."""
    return turned(x, (positions.double()[:, None] @ frequencies(x).double()[None]).float())


def half_by_product(x, positions):
    """Swap halves by a matrix: autocast rounds x sin there, as it rounds all of attention."""
    angles = (positions.float()[:, None] * frequencies(x)).repeat(1, 2)
    half = x.shape[-1] // 2
    one, zero = torch.eye(half, dtype=torch.float32), torch.zeros(half, half, dtype=torch.float32)
    matrix = torch.cat([torch.cat([zero, one], 1), torch.cat([-one, zero], 1)])
    return (x.float() * angles.cos() + (x.float() * angles.sin()) @ matrix).to(x.dtype)


def polar(x, positions):
    angles = torch.outer(positions.float(), frequencies(x))
    table = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.complex(*x.float().chunk(2, -1)) * table
    return torch.cat([pairs.real, pairs.imag], -1).to(x.dtype)


# ---------------------------------------------------------------------------- what some break


def by_matmul(x, positions):
    """Form angles as transformers does, without turning autocast off."""
    angles = (frequencies(x)[None, :, None] @ positions.float()[None, None]).transpose(1, 2)[0]
    return turned(x, angles)


def by_einsum(x, positions):
    """Sum over two digits of a position: of one term alone torch makes no matrix product."""
    digits = torch.stack([positions // 64 * 64, positions % 64], -1).float()
    theta = frequencies(x).expand(2, -1)
    return turned(x, torch.einsum("sc,cp->sp", digits, theta))


def by_mm(x, positions):
    return turned(x, torch.mm(positions.float()[:, None], frequencies(x)[None]))


def by_linear(x, positions):
    return turned(x, nn.functional.linear(positions.float()[:, None], frequencies(x)[:, None]))


def positions_by_default(x, offset=0):
    """Count positions in whatever the default dtype is."""
    at = torch.arange(float(offset), float(offset + x.shape[-2]))
    return turned(x, at.float()[:, None] * frequencies(x))


class FrequenciesByDefault(nn.Module):
    """Divides integers when it is built, which gives the default dtype."""

    def __init__(self, dim, base=BASE):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2) / dim))

    def forward(self, x, positions):
        return turned(x, positions.float()[:, None] * self.inv_freq.float())


class FrequenciesAnew(nn.Module):
    """Computes its frequencies at each call, whatever dtype the module was moved to."""

    def __init__(self, dim, base=BASE):
        super().__init__()
        self.dim, self.base = dim, base
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x, positions):
        theta = self.base ** (torch.arange(0, -self.dim, -2, dtype=torch.float32) / self.dim)
        return turned(x, positions.float()[:, None] * theta)


# ---------------------------------------------------------------------------- tables that are made once

_TABLES = {}


def cached_product(x, positions):
    """Form a table at the first call, by a product, and read it in those that follow."""
    if "angles" not in _TABLES:
        times = torch.arange(8192, dtype=torch.float32)
        _TABLES["angles"] = (frequencies(x)[None, :, None] @ times[None, None]).transpose(1, 2)[0]
    return turned(x, _TABLES["angles"][positions].float())


def cached_default(x, positions):
    """Form a table at the first call in the default dtype."""
    if "default" not in _TABLES:
        d = x.shape[-1]
        _TABLES["default"] = torch.arange(8192)[:, None] / BASE ** (torch.arange(0, d, 2) / d)
    return turned(x, _TABLES["default"][positions].float())


def half_under_autocast(x, positions):
    """Return another 16-bit dtype than autocast's."""
    y = elementwise(x, positions)
    return y.to(torch.float16) if torch.is_autocast_enabled("cpu") else y
