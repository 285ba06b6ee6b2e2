"""Kernels that are right up to some position, or in some dtypes."""

import numpy as np


def right(x, positions):
    d = x.shape[-1]
    t = np.asarray(positions, dtype=np.float64)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    a, b = x[..., : d // 2].astype(np.float64), x[..., d // 2 :].astype(np.float64)
    y = np.concatenate([a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)], -1)
    return y.astype(x.dtype)


def short(x, positions):
    return right(x, np.asarray(positions).astype(np.int16))


def restarted(x, positions):
    return right(x, np.asarray(positions) - np.min(positions))


def ends(x, positions):
    if np.asarray(positions).max() >= 3000:
        raise IndexError("the table ends")
    return right(x, positions)


def no_float16(x, positions):
    if x.dtype == np.float16:
        raise TypeError("float16 is not taken")
    return right(x, positions)


def interleaved(x, positions):
    order = np.argsort(np.arange(x.shape[-1]).reshape(-1, 2).T.reshape(-1))
    return right(x[..., np.argsort(order)], positions)[..., order]
