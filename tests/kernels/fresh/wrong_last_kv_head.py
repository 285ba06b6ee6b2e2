# settings: --head-dim 64 --up-to 2048
# name: rope_fused
# wrong: the last head of k stays as it was, an end of the loop that is one too low. all dtypes. no-rotation of a head of k
import torch


def rope_fused(qkv, cos, sin, n_heads, n_kv_heads):
    """qkv: (b, s, (n_heads + 2 n_kv_heads) d); cos and sin: (s, d)."""
    b, s, w = qkv.shape
    d = w // (n_heads + 2 * n_kv_heads)
    x = qkv.view(b, s, -1, d).clone()
    for h in range(n_heads + n_kv_heads - 1):
        v = x[:, :, h].clone()
        r = torch.cat((-v[..., d // 2 :], v[..., : d // 2]), -1)
        x[:, :, h] = (v * cos + r * sin).to(x.dtype)
    return x.view(b, s, w)
