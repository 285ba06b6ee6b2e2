# settings: --layout interleaved --head-dim 32 --up-to 2048
# name: rope
# The paper's 2 by 2 matrices as an einsum in NumPy; the tokens are the last axis but one, whatever comes before.
import numpy as np


def rope(m, vec):
    """Rotate vec (..., tokens, dim) by the positions m (tokens)."""
    dim = vec.shape[-1]
    theta = np.power(10000.0, -2.0 * np.arange(dim // 2) / dim)
    ang = np.multiply.outer(np.asarray(m, dtype=np.float64), theta)
    mats = np.array([[np.cos(ang), -np.sin(ang)], [np.sin(ang), np.cos(ang)]])
    pairs = vec.reshape(vec.shape[:-1] + (dim // 2, 2)).astype(np.float64)
    return np.einsum("ijsp,...spj->...spi", mats, pairs).reshape(vec.shape).astype(vec.dtype)
