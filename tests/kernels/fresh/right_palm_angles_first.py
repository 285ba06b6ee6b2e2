# settings: --head-dim 64 --up-to 4096
# name: apply_rotary_pos_emb
# PaLM's (lucidrains): pos are angles, (s, d), and come first.
import torch
from einops import rearrange


def rotate_half(x):
    x = rearrange(x, "... (j d) -> ... j d", j=2)
    x1, x2 = x.unbind(dim=-2)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(pos, t):
    return (t * pos.cos().to(t.dtype)) + (rotate_half(t) * pos.sin().to(t.dtype))
