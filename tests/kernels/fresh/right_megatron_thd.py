# settings: --head-dim 64
# name: apply_rotary_pos_emb_thd
# Megatron's packed layout: (t, h, d), the ends of sequences, angles [s, 1, 1, d].
import torch


def _rotate_half(x):
    a, b = torch.chunk(x, 2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def _bshd(t, freqs):
    rot_dim = freqs.shape[-1]
    t, t_pass = t[..., :rot_dim], t[..., rot_dim:]
    out = t.float() * torch.cos(freqs) + _rotate_half(t.float()) * torch.sin(freqs)
    return torch.cat((out.to(t.dtype), t_pass), dim=-1)


def apply_rotary_pos_emb_thd(t, cu_seqlens, freqs):
    seqlens = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    parts = torch.split(t, seqlens)
    return torch.cat([_bshd(x.unsqueeze(1), freqs[: x.size(0)]) for x in parts]).squeeze(1)
