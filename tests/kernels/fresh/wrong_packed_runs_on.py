# settings: --layout interleaved --head-dim 64
# name: varlen_rope
# wrong: positions run on from one packed sequence into the next. all dtypes. positions of packed sequences
import torch


def varlen_rope(q, k, freqs_cis, cu_seqlens, max_seqlen):
    """q: (total, hq, d); k: (total, hk, d); freqs_cis: (max, d / 2) complex, for tokens of each sequence."""
    total = q.shape[0]
    table = freqs_cis[:max_seqlen]
    reps = -(-total // max_seqlen)
    phase = table.repeat(reps, 1)[:total, None]

    def mul(x):
        z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * phase).flatten(-2).to(x.dtype)

    return mul(q), mul(k)
