# settings: --layout half --head-dim 64 --up-to 2048
# name: apply_rotary_pos_emb
# wrong: neighbours are paired where the setting asks for halves; Qwen-1's list [cos, sin]. all dtypes. wrong-layout
import torch


def _rotate(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)


def apply_rotary_pos_emb(t, freqs):
    """t: (b, s, h, d); freqs: [cos, sin], each (1, s, 1, d / 2)."""
    cos, sin = freqs
    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    t_float = t.float()
    return (t_float * cos + _rotate(t_float) * sin).type_as(t)
