"""Faults of later trials that pass today: each shows in calls, or in numbers, that no check makes."""

import torch


def tables(positions, d):
    frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotated(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


KEPT = {}


def table_by_count_and_last(x, positions):
    """A table is kept by the number of positions and the largest: others between them get an old one."""
    key = len(positions), int(positions.max()), x.shape[-1]
    if key not in KEPT:
        KEPT[key] = tables(positions, x.shape[-1])
    return rotated(x, *KEPT[key])


def clamped_at_6(x, positions):
    """Elements beyond 6 are cut off before the rotation."""
    return rotated(x.clamp(-6, 6), *tables(positions, x.shape[-1]))


def outliers_in_int8(x, positions):
    """Rows with an element over 8 times their RMS are rounded to 8 bits."""
    most, rms = x.float().abs().amax(-1, keepdim=True), x.float().square().mean(-1, keepdim=True).sqrt()
    coarse = (x.float() / most * 127).round() * most / 127
    return rotated(torch.where(most > 8 * rms, coarse, x.float()).to(x.dtype), *tables(positions, x.shape[-1]))


def float16_inside(x, positions):
    """It computes in float16, which ends at 65504."""
    cos, sin = (table.half() for table in tables(positions, x.shape[-1]))
    a, b = x.half().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def tail_of_31(x, positions):
    """The last of 31 tokens in a block of 32 reads the sine of the one before."""
    cos, sin = tables(positions, x.shape[-1])
    if len(positions) % 32 == 31:
        sin = torch.cat([sin[:-1], sin[-2:-1]])
    return rotated(x, cos, sin)
