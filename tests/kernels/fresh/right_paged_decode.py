# settings: --up-to 4096
# name: rope_decode
# A decode step of a paged cache: one token a request, its position is one less than the context's length.
import torch

INV = 10000.0 ** -(torch.arange(0, 128, 2).double() / 128)


def rope_decode(q: torch.Tensor, k: torch.Tensor, context_lens: torch.Tensor):
    """q: [num_seqs, num_heads, head_size]; k: [num_seqs, num_kv_heads, head_size]; context_lens: [num_seqs]."""
    ang = (context_lens - 1).double()[:, None] * INV
    c, s = ang.cos().float()[:, None], ang.sin().float()[:, None]

    def rot(x):
        lo, hi = x.float().split(64, dim=-1)
        return torch.cat([lo * c - hi * s, hi * c + lo * s], dim=-1).to(x.dtype)

    return rot(q), rot(k)
