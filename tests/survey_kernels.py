"""Code for the survey: right, of bfloat16 angles, of an exposed product."""

import torch


def _frequencies(x):
    d = x.shape[-1]
    return 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)


def _rotated(x, angles):
    (a, b), cos, sin = x.float().chunk(2, -1), angles.float().cos(), angles.float().sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def right(x, positions):
    return _rotated(x, positions.float()[:, None] * _frequencies(x))


def low(x, positions):
    return _rotated(x, positions.bfloat16()[:, None] * _frequencies(x).bfloat16())


def by_product(x, positions):
    return _rotated(x, (_frequencies(x)[None, :, None] @ positions.float()[None, None]).transpose(1, 2)[0])
