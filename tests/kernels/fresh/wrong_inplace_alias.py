# settings: --head-dim 64 --up-to 2048
# name: rope_inplace_
# wrong: the second half is computed from the first one after that was overwritten. all dtypes. not-a-rotation
import torch


def rope_inplace_(q, k, cos_sin_cache, positions):
    """q: (tokens, hq, d); k: (tokens, hk, d); cos_sin_cache: (max, d)."""
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, -1)
    cos, sin = cos.to(q.dtype), sin.to(q.dtype)
    for x in (q, k):
        h = x.shape[-1] // 2
        x1, x2 = x[..., :h], x[..., h:]
        x1.copy_(x1 * cos - x2 * sin)
        x2.copy_(x2 * cos + x1 * sin)
