# settings: --head-dim 64 --up-to 4096
# name: rope
# wrong: an lru_cache by length alone keeps the table of the dtype that came first. fp32 and fp16 (bf16 came first);
# in bf16 a table of another dtype is only finer: cannot matter there. narrow-table or state
import functools

import torch

_TABLES = {}


def _table(n, d, like):
    if (n, d) not in _TABLES:
        inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        a = torch.arange(n, dtype=torch.float32)[:, None] * inv
        _TABLES[n, d] = a.cos().to(like.dtype), a.sin().to(like.dtype)
    return _TABLES[n, d]


def rope(x, start=0):
    n = 1 << (start + x.shape[-2] - 1).bit_length()
    cos, sin = (t[start : start + x.shape[-2]] for t in _table(n, x.shape[-1], x))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
