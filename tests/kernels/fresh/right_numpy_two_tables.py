# settings: --head-dim 64
# name: rotate_rows
# Two small tables, position = 512 * hi + lo, whose phases are multiplied; NumPy, (tokens, heads, dim).
import numpy as np

DIM, STEP = 64, 512
W = 1.0 / 10000.0 ** (np.arange(0, DIM, 2) / DIM)
FINE = np.exp(1j * np.outer(np.arange(STEP), W))
COARSE = np.exp(1j * np.outer(np.arange(STEP) * STEP, W))


def rotate_rows(x, idx):
    hi, lo = np.divmod(np.asarray(idx), STEP)
    phase = (COARSE[hi] * FINE[lo])[:, None, :]
    h = x.shape[-1] // 2
    z = (x[..., :h].astype(np.float64) + 1j * x[..., h:].astype(np.float64)) * phase
    return np.concatenate((z.real, z.imag), axis=-1).astype(x.dtype)
