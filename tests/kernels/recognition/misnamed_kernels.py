"""Kernels whose fault resembles a known one without being it, or hides in the batch or the heads."""

import math

import torch
from faulty_kernels import inverse, right, rotate

CALLS = [0]


def interpolated(x, positions):
    """No base: the first frequency is off too."""
    return rotate(x, positions.double()[:, None] / 1.001 * inverse(x.shape[-1]))


def larger(x, positions):
    """Scores are 21 % larger at every offset."""
    return 1.1 * right(x, positions)


def in_degrees(x, positions):
    """Position 1 is rotated nearly as 0, the rest as no position."""
    return rotate(x, positions.double()[:, None] * inverse(x.shape[-1]) * (math.pi / 180))


def every_third_call(x, positions):
    CALLS[0] += 1
    return right(x, positions * (2 if CALLS[0] % 3 == 0 else 1))


def late_by_the_length(x, positions):
    return right(x, positions + x.shape[-2])


def restart_at_4096(x, positions):
    return right(x, positions % 4096)


def head_by_head(x, positions):
    late = torch.arange(1, x.shape[-3] + 1)[:, None]
    return rotate(x, (positions + late).double()[..., None] * inverse(x.shape[-1]).double())


def first_of_the_batch(x, positions):
    result = right(x, positions)
    if result.dim() == 4 and result.shape[0] > 1:
        result[1] = result[0]
    return result


def row_of_the_first(x, position_ids):
    assert position_ids.shape[0] == x.shape[0]
    return right(x, position_ids[0])


def row_of_each(x, position_ids):
    assert position_ids.shape[0] == x.shape[0]
    return rotate(x, position_ids.float()[:, None, :, None] * inverse(x.shape[-1]))


def half_of_the_dims(x, positions):
    d = x.shape[-1] // 2
    return torch.cat([right(x[..., :d], positions), x[..., d:]], -1)
