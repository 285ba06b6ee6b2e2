"""A right kernel and one of another base: what the tests of the plugin's sample project call."""

import numpy as np


def rotate(x, positions, base=10000.0):
    frequencies = base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions[..., None].astype(np.float64) * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def wrong(x, positions):
    return rotate(x, positions, base=500000.0)
