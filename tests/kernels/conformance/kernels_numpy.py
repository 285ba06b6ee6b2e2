"""Kernels of NumPy, right ones and faulty ones; base 10,000.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import numpy as np


def numpy_half(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """x (h, s, d): float64 up to the end."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    first, second = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def numpy_complex(q, k, positions):
    """q (b, s, h, d), k (b, s, g, d), interleaved pairs as complex numbers."""
    p = q.shape[-1] // 2
    turns = np.exp(1j * np.multiply.outer(positions, 10000.0 ** (-np.arange(p) / p)))[:, None]
    results = []
    for x in (q, k):
        pairs = np.ascontiguousarray(x, dtype=np.float64).view(np.complex128) * turns
        results.append(pairs.view(np.float64).astype(x.dtype))
    return results


def numpy_tables(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x (s, d), one head; cos and sin (s, p), interleaved."""
    wide, result = x.astype(np.float32), np.empty_like(x)
    result[:, 0::2] = wide[:, 0::2] * cos - wide[:, 1::2] * sin
    result[:, 1::2] = wide[:, 0::2] * sin + wide[:, 1::2] * cos
    return result


class NumpyCache:
    """A float32 table that grows; called with the number of tokens that came before."""

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        half = head_dim // 2
        self.inverse = (1.0 / base ** (np.arange(half, dtype=np.float32) / np.float32(half))).astype(
            np.float32
        )
        self.cos = self.sin = np.zeros((0, half), np.float32)

    def __call__(self, x: np.ndarray, start_pos: int) -> np.ndarray:
        """x (b, s, h, d), half-split."""
        stop = start_pos + x.shape[1]
        if stop > len(self.cos):
            angles = np.arange(2 * stop, dtype=np.float32)[:, None] * self.inverse
            self.cos, self.sin = np.cos(angles), np.sin(angles)
        cos, sin = self.cos[start_pos:stop, None], self.sin[start_pos:stop, None]
        first, second = np.split(x.astype(np.float32), 2, axis=-1)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1).astype(x.dtype)


# faulty


def one_position(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Position 93,811 is rotated as 93,810: one row of 131,072."""
    return numpy_half(x, np.where(positions == 93811, 93810, positions))


def clamps(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
    """A table of 65,536 rows whose last one stands for all behind it."""
    return numpy_complex(q, k, np.minimum(positions, 65535))


def another_base(x: np.ndarray, offset: int = 0) -> np.ndarray:
    """x (h, s, d) with base 10,100."""
    half = x.shape[-1] // 2
    angles = (offset + np.arange(x.shape[-2]))[:, None] * 10100.0 ** (-np.arange(half) / half)
    first, second = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def numpy_narrow(q, k, positions):
    return tuple(numpy_half(x, positions).astype(np.float16) for x in (q, k))
