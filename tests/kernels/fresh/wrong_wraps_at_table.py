# settings: --layout interleaved --head-dim 32 --up-to 12000
# name: apply
# wrong: a ring of 8192 rows, positions beyond it start over. all dtypes. positions-wrap
import numpy as np

_RING = 8192
_ANG = np.arange(_RING)[:, None] / 10000.0 ** (np.arange(0, 32, 2) / 32)
_C, _S = np.cos(_ANG).astype(np.float32), np.sin(_ANG).astype(np.float32)


def apply(arr, start_index=0):
    """arr: (b, s, h, d)."""
    rows = np.arange(start_index, start_index + arr.shape[1]) % _RING
    c, s = _C[rows][None, :, None], _S[rows][None, :, None]
    e, o = arr[..., ::2].astype(np.float32), arr[..., 1::2].astype(np.float32)
    return np.stack([e * c - o * s, o * c + e * s], axis=-1).reshape(arr.shape).astype(arr.dtype)
