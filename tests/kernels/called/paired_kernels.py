"""Kernels of both layouts, for comparing two of them."""

import numpy as np


def angles(x, positions, base=10000.0):
    d = x.shape[-1]
    inverse = base ** (-np.arange(0, d, 2) / d)
    return np.asarray(positions, dtype=np.float64)[:, None] * inverse


def half(x, positions):
    t, n = angles(x, positions), x.shape[-1] // 2
    a, b = x[..., :n].astype(np.float64), x[..., n:].astype(np.float64)
    y = np.concatenate([a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)], -1)
    return y.astype(x.dtype)


def interleaved(x, positions):
    t, y = angles(x, positions), np.empty_like(x)
    a, b = x[..., ::2].astype(np.float64), x[..., 1::2].astype(np.float64)
    y[..., ::2], y[..., 1::2] = a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)
    return y


def permuting(x, positions):
    y = interleaved(x, positions)
    return np.concatenate([y[..., ::2], y[..., 1::2]], -1)


def backward(x, positions):
    return half(x, -np.asarray(positions))


def other_k(q, k, positions):
    return half(q, positions), half(k, np.asarray(positions) + 1)


def picky(x, positions):
    if x.dtype == np.float16:
        raise TypeError("float16 is not taken")
    return half(x, positions)


def holey(x, positions):
    if 40 in np.asarray(positions)[1:-1] and len(positions) > 32:
        raise ValueError("a hole")
    return half(x, positions)
