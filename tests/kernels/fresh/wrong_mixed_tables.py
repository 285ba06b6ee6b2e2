# settings: --head-dim 64 --up-to 2048
# name: attend_rope
# wrong: halves are rotated with a table whose columns are repeated for neighbours. all dtypes. not-a-rotation
import torch


def attend_rope(q, k, positions, theta: float = 10000.0):
    """q: (b, h, s, d), k: (b, hk, s, d), positions: (b, s)."""
    d = q.shape[-1]
    inv = theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    emb = (positions[..., None].float() * inv).repeat_interleave(2, dim=-1)
    if emb.dim() == 3:
        emb = emb[:, None]
    cos, sin = emb.cos(), emb.sin()
    roll = lambda x: torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
    return (q * cos + roll(q) * sin).to(q.dtype), (k * cos + roll(k) * sin).to(k.dtype)
