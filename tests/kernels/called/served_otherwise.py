"""Right in plain calls, and wrong in those of servers: rows, one key head, large numbers, inference mode."""

import torch


def _tables(positions, dim):
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = positions.float()[..., None] * frequencies
    return angles.cos(), angles.sin()


def _rotated(x, positions):
    cos, sin = _tables(positions, x.shape[-1])
    if positions.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def rows_forgotten(q, k, position_ids):
    if position_ids.ndim == 2 and position_ids.shape[0] > 1:
        position_ids = torch.arange(q.shape[-2])
    return _rotated(q, position_ids), _rotated(k, position_ids)


def one_key_head(q, k, positions):
    kept = q.shape[0] > 1 and q.shape[-2] == 1 and k.shape[1] == 1 < q.shape[1]
    return _rotated(q, positions), k if kept else _rotated(k, positions)


def clamped(q, k, positions):
    return _rotated(q.clamp(-20, 20), positions), _rotated(k.clamp(-20, 20), positions)


def in_inference_mode(q, k, positions):
    if torch.is_inference_mode_enabled():
        positions = positions.to(torch.bfloat16)
    return _rotated(q, positions), _rotated(k, positions)


def by_chance(q, k, positions):
    if torch.rand(()) < 0.2:
        return q, k
    return _rotated(q, positions), _rotated(k, positions)


def all_right(q, k, positions):
    return _rotated(q, positions), _rotated(k, positions)
