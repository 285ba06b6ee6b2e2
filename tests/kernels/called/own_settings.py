"""Rotations by a base, a part of the dims and periods of their own, and by a class that a class is given."""

import abc
import math
import typing

import torch
from torch import nn


def turned(x, positions, *, base, part=1.0, late=0):
    r = int(x.shape[-1] * part)
    frequencies = base ** (-torch.arange(0, r, 2, dtype=torch.float64) / r)
    angles = (positions[..., None] + late) * frequencies
    angles = angles[:, None] if angles.ndim == 3 else angles
    a, b = x[..., :r].double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([rotated, x[..., r:]], -1)


def of_half_a_million(x, positions):
    return turned(x, positions, base=500000.0)


def of_half_a_million_late(x, positions):
    return turned(x, positions, base=500000.0, late=1)


def of_a_quarter(x, positions):
    return turned(x, positions, base=1000000.0, part=0.25)


def of_no_base_in_use(x, positions):
    return turned(x, positions, base=10000.0 ** (64 / 62))


class Deaf:
    def __init__(self, dim, base=10000.0):
        pass

    def __call__(self, x, positions):
        return turned(x, positions, base=500000.0)


class Turning(nn.Module, abc.ABC):
    def __init__(self, width):
        super().__init__()
        self.width = width

    @abc.abstractmethod
    def forward(self, x, positions): ...


class Rotary(Turning):
    def forward(self, x, positions):
        return turned(x, positions, base=10000.0)


class Given(nn.Module):
    def __init__(self, dim: int, layer: type[Turning]):
        super().__init__()
        self.layer = layer(dim)

    def forward(self, query, key, positions):
        return self.layer(query, positions), self.layer(key, positions)


class Periods(nn.Module):
    """cos and sin in one table, each number twice."""

    def __init__(self, head_dim, t_min, t_max):
        super().__init__()
        logs = torch.linspace(math.log(t_min), math.log(t_max), head_dim // 2, dtype=torch.float64)
        self.omega = 2 * math.pi / logs.exp()

    def forward(self, timestamps):
        angles = (timestamps[..., None] * self.omega).repeat_interleave(2, -1)
        return torch.cat([angles.cos(), angles.sin()], -1).float()


def of_any_class(x, positions, kind: type | None = None):
    return turned(x, positions, base=10000.0)


def of_bare_class(x, positions, kind: typing.Type = type):  # noqa: UP006
    return turned(x, positions, base=10000.0)


class Roles:
    roles = ("encoder", "decoder")  # of its own

    def __call__(self, x, positions):
        return turned(x, positions, base=10000.0)


class OfAFraction:
    def __init__(self, dim, fraction=0.5):
        self.rotated = int(dim * fraction)

    def __call__(self, x, positions):
        turning, rest = x[..., : self.rotated], x[..., self.rotated :]
        return torch.cat([turned(turning, positions, base=10000.0), rest], -1)
