# settings: --layout interleaved --head-dim 32 --up-to 40000
# name: rotate
# wrong: positions are packed in int16, which wraps at 32768. all dtypes. positions-wrap
import numpy as np


def rotate(queries, keys, token_positions):
    """queries and keys: (heads, tokens, dim)."""
    pos = np.asarray(token_positions).astype(np.int16).astype(np.float64)
    dim = queries.shape[-1]
    phase = np.exp(1j * pos[:, None] * (1e4 ** (-np.arange(0, dim, 2) / dim))[None])

    def turn(a):
        w = a.astype(np.float64)
        z = (w[..., 0::2] + 1j * w[..., 1::2]) * phase
        out = np.empty_like(w)
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
        return out.astype(a.dtype)

    return {"q": turn(queries), "k": turn(keys)}
