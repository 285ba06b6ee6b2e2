"""Rotations at positions of several axes, and code that needs an argument of no known name."""

import torch


def inv(d, base=10000.0):
    return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def turn(x, a):
    c, s = a.cos().float(), a.sin().float()
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1).to(x.dtype)


AXES = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)


def sections(x, positions, axes):
    """Rotate by positions (3, s) or (3, b, s), each pair by one of the axes."""
    a = positions[axes].movedim(0, -1).double() * inv(x.shape[-1])
    return turn(x, a[:, None] if a.ndim == 3 else a)


def mrope(q, k, positions):
    return sections(q, positions, AXES), sections(k, positions, AXES)


def mrope_of_other_axes(q, k, positions):
    return sections(q, positions, (AXES + 1) % 3), sections(k, positions, (AXES + 1) % 3)


def mrope_of_narrow_positions(q, k, positions):
    return mrope(q, k, positions.to(q.dtype))


def image(q, k, pos_ids):
    """Rotate by rows and columns (s, 2), half of the pairs by each."""
    a = torch.cat([pos_ids[:, :1].double() * inv(40), pos_ids[:, 1:].double() * inv(40)], -1)
    return turn(q, a), turn(k, a)


def image_of_swapped_axes(q, k, pos_ids):
    return image(q, k, pos_ids.flip(-1))


class Knob(torch.nn.Module):
    def __init__(self, dim, how_fast, base=10000.0):
        super().__init__()
        self.theta = how_fast * inv(dim, base)

    def forward(self, q, k, positions):
        a = (positions if positions.ndim == 2 else positions[None])[:, None, :, None].double() * self.theta
        return turn(q, a), turn(k, a)


class OfConfig(torch.nn.Module):
    """An attention layer whose config has names of its own."""

    def __init__(self, cfg):
        super().__init__()
        self.theta = inv(cfg.n_embd // cfg.n_head, cfg.rope_base)
        self.proj = torch.nn.Linear(cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.length = cfg.block_size

    def rotate(self, q, k, start_pos):
        at = start_pos + torch.arange(q.shape[-2])
        assert at[-1] < self.length
        a = at[:, None].double() * self.theta
        return turn(q, a), turn(k, a)


class Odd(dict):
    """A class without a signature, beside what is checked."""

    def rows(self, positions):
        return positions


def one_axis(q, k, positions, base=10000.0):
    a = (positions if positions.ndim == 2 else positions[None])[:, None, :, None].double()
    return turn(q, a * inv(q.shape[-1], base)), turn(k, a * inv(k.shape[-1], base))


def whole_grid(x, h, w):
    """Rotate all tokens of a grid, half of the pairs by their row, half by their column."""
    places = torch.stack([torch.arange(h).repeat_interleave(w), torch.arange(w).repeat(h)], -1)
    return image(x, x, places)[0]


def whole_grid_of_columns(x, h, w):  # row by row, as if they were columns
    return whole_grid(x, w, h)


def whole_grid_of_sizes(q, k, grid_size):
    return whole_grid(q, *grid_size), whole_grid(k, *grid_size)


def whole_grid_by_table(x, grid_sizes, freqs):
    """Sizes (b, 2), and cos + i sin of all positions from 0."""
    rotated = []
    for row, (h, w) in zip(x, grid_sizes.tolist(), strict=True):
        rows, columns = torch.arange(h).repeat_interleave(w), torch.arange(w).repeat(h)
        rotated.append(turn(row, torch.cat([freqs[rows, :20], freqs[columns, 20:]], -1).angle()))
    return torch.stack(rotated)


def in_blocks(x, positions):
    """Rotate by positions (b, s, 2), each half of the dims by one axis, in halves of its own."""
    a = positions[:, None, :, :, None].double() * inv(x.shape[-1] // 2)
    return torch.cat([turn(part, a[..., axis, :]) for axis, part in enumerate(x.chunk(2, -1))], -1)


def in_blocks_of_swapped_axes(x, positions):
    return in_blocks(x, positions.flip(-1))
