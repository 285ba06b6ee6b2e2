# settings: --layout interleaved --head-dim 64 --up-to 4096
# name: apply_rotary_pos_emb
# CodeGen and GPT-J: sin and cos come as one tuple, x is (b, s, h, d), the first position is offset.
import torch


def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    return torch.stack((-x2, x1), axis=-1).flatten(-2)


def apply_rotary_pos_emb(x, sincos, offset=0):
    sin, cos = (t[None, offset : x.shape[1] + offset, None, :].repeat_interleave(2, 3) for t in sincos)
    return (x * cos) + (rotate_every_two(x) * sin)
