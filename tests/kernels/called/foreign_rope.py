"""Rotations whose arrays, arguments and results are not the usual ones."""

import numpy as np
import torch


class Array:
    """An array of another library, as jax has: no subclass of ndarray."""

    def __init__(self, content):
        self.content = content

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.content, dtype)


def foreign(x, positions):
    d = x.shape[-1]
    t = np.asarray(positions)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    a, b = np.split(np.asarray(x, np.float32), 2, -1)
    c, s = np.cos(t), np.sin(t)
    return Array(np.concatenate([a * c - b * s, b * c + a * s], -1).astype(x.dtype))


def plain(x, positions):
    if x.dtype.name == "bfloat16":
        raise TypeError("cannot determine the type of bfloat16")
    return foreign(x, positions).content


def offset(q, k, position_offset=0):
    p = torch.arange(q.shape[-2]) + position_offset
    d = q.shape[-1]
    t = p[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    c, s = torch.cat([t, t], -1).cos(), torch.cat([t, t], -1).sin()

    def rotated(x):
        a, b = x.float().chunk(2, -1)
        return (x.float() * c + torch.cat([-b, a], -1) * s).to(x.dtype)

    return rotated(q), rotated(k)


def unknown(q, k, scale_by=1):
    return q * scale_by, k * scale_by


class Tables(torch.nn.Module):
    def forward(self, x, position_ids):
        t = position_ids[..., None] * 0.5 ** torch.arange(x.shape[-1])
        return t.cos(), t.sin()


class Triple(Tables):
    def forward(self, x, position_ids):
        return (*super().forward(x, position_ids), x)
