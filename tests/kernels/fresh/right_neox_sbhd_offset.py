# settings: --up-to 4096
# name: apply_rotary_pos_emb
# GPT-NeoX: tensors (s, b, h, d), tables [s, 1, 1, d], the first position as a number.
import torch


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=x1.ndim - 1)


def apply_rotary_pos_emb(q, k, cos, sin, offset: int = 0):
    cos, sin = cos[offset : q.shape[0] + offset, ...], sin[offset : q.shape[0] + offset, ...]
    cos, sin = cos.view(q.shape[0], 1, 1, -1), sin.view(q.shape[0], 1, 1, -1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
