"""Rotations of one's own."""

import numpy as np
import torch


def turn(x, cos, sin, seq_axis=-2):
    """Half-split; cos and sin (s, p)."""
    shape = [1] * x.ndim
    shape[seq_axis], shape[-1] = cos.shape[0], cos.shape[1]
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def angles(positions, d, base=10000.0):
    return positions.float()[:, None] / base ** (torch.arange(0, d, 2).float() / d)


def bhsd(x, positions):
    t = angles(positions, x.shape[-1])
    return turn(x, t.cos(), t.sin())


def bshd(query, key, position_ids, base=10000.0):
    t = angles(position_ids[0], query.shape[-1], base)
    assert position_ids.shape == query.shape[:2]
    return tuple(turn(one, t.cos(), t.sin(), 1) for one in (query, key))


def sbhd(t, offset=0, seq_dim=0):
    f = angles(torch.arange(offset, offset + t.shape[seq_dim]), t.shape[-1])
    assert t.ndim == 4
    assert seq_dim == 0
    return turn(t, f.cos(), f.sin(), 0)


def hsd(x, p):
    assert x.ndim == 3
    return bhsd(x, p)


def sd(x, p):
    assert x.ndim == 2
    return bhsd(x, p)


def tables(q, k, cos, sin):
    return turn(q, cos, sin), turn(k, cos, sin)


def one_table(x, cos, sin):
    """Whole width, half-split."""
    rotated = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return (x * cos + rotated * sin).to(x.dtype)


def interleaved(x, positions):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    t = angles(positions, x.shape[-1])
    return torch.view_as_real(z * torch.polar(torch.ones_like(t), t)).flatten(-2).to(x.dtype)


def deepseek(x, positions):
    """Interleaved pairs in, half-split out."""
    y = x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).reshape(x.shape)
    return bhsd(y, positions)


def numpy_one(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    d = x.shape[-1]
    t = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    a, b = np.split(x.astype(np.float32), 2, -1)
    cos, sin = np.cos(t), np.sin(t)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Module(torch.nn.Module):
    def __init__(self, dim, base=500.0):
        super().__init__()
        self.base = base

    def forward(self, x, positions):
        t = angles(positions, x.shape[-1], self.base)
        return turn(x, t.cos(), t.sin())


def factory():
    return bhsd


instance = Module(64, 10000.0)


def raises(x, positions):
    raise ValueError("boom\nand more")


def raises_for_half(x, positions):
    if x.dtype != torch.float32:
        raise TypeError("float32 alone")
    return bhsd(x, positions)


def wrong_shape(x, positions):
    return x[..., :3]


def in_place(x, positions):
    x.copy_(bhsd(x.clone(), positions))


def wide(x, positions):
    return bhsd(x.float(), positions)


def gives_nan(x, positions):
    return x * float("nan")


def prints(x, positions):
    print("hello from the kernel")
    return bhsd(x, positions)


def leaves(x, positions):
    raise SystemExit(5)


def truncates(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return x.astype(np.int32)


def skewed(q, k, positions):
    return bhsd(q, positions), bhsd(k, positions) * 0.5


def one_head(x, positions):
    found = bhsd(x, positions)
    if x.shape[1] > 1:
        found[:, 1] = x[:, 1]
    return found


def greedy(q, k, v, cache, table, mystery):
    return q


def no_vectors():
    return 5


value = 17


def wraps(x, positions):
    return bhsd(x, positions % 100)


class Ends:
    """Its table has 116 rows."""

    def __init__(self):
        angles = torch.arange(116.0)[:, None] * 10000.0 ** (-torch.arange(0, 32, 2) / 32)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, q, k, positions):
        cos, sin = self.cos[positions], self.sin[positions]
        cos, sin = (x[:, None] if x.dim() == 3 else x for x in (cos, sin))

        def turned(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        return turned(q), turned(k)


def fused(all_of_it, positions):
    q, k, v = all_of_it.unbind(2)
    return torch.stack([q, k, v], 2)


def nothing(x, positions):
    return None


def stops(x, positions):
    """In place, and not from position 4096 on."""
    if int(positions[0]) >= 4096:
        return
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    (a, b), cos, sin = x.clone().chunk(2, -1), angles.cos(), angles.sin()
    x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))
