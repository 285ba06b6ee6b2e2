"""A right kernel, and one that takes position 300 for another."""

import numpy as np


def angles(positions, d):
    return positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)


def rotated(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = np.split(x.astype(np.float64), 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def right(x, positions):
    return rotated(x, angles(positions, x.shape[-1]))


def wrong(x, positions):
    return rotated(x, angles(np.where(positions == 300, 299, positions), x.shape[-1]))
