"""Kernels of NumPy that treat one head of several otherwise, and right ones."""

import numpy as np


def rot(x, positions):
    angles = positions[:, None] * 1e4 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = np.split(x.astype(np.float64), 2, -1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def right(q, k, positions):
    return rot(q, positions), rot(k, positions)


def last_query(q, k, positions):
    """The last of several heads of q is not rotated."""
    y = rot(q, positions)
    if q.shape[1] > 1:
        y[:, -1] = q[:, -1]
    return y, rot(k, positions)


def grouped(q, k, positions):
    """The last head of k is not rotated where there are fewer than of q."""
    y = rot(k, positions)
    if k.shape[1] < q.shape[1]:
        y[:, -1] = k[:, -1]
    return rot(q, positions), y


def fourth(x, positions):
    y = rot(x, positions)
    if x.shape[1] > 3:
        y[:, 3] = rot(x[:, 3:4], positions + 1)[:, 0]
    return y


SEEN = []


def stale_keys(q, k, positions):
    """k is rotated by the positions of the call before, if these were as many."""
    before = SEEN[-1] if SEEN and len(SEEN[-1]) == len(positions) else positions
    SEEN.append(positions)
    return rot(q, positions), rot(k, before)


def alike(q, k, positions):
    """Right code that takes as many heads of k as of q alone."""
    q + k
    return right(q, k, positions)
