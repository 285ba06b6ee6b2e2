# settings: --layout interleaved --head-dim 64 --up-to 4096
# name: rope_mla
# DeepSeek's inference code: q_pe (b, s, h, d), one k_pe (b, s, d) without heads for all of them, complex table.
import torch


def apply_rotary_emb(x, freqs_cis):
    dtype = x.dtype
    x = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, x.size(1), 1, x.size(-1))
    return torch.view_as_real(x * freqs_cis).flatten(3).to(dtype)


def rope_mla(q_pe, k_pe, freqs_cis):
    q_pe = apply_rotary_emb(q_pe, freqs_cis)
    k_pe = apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis).squeeze(2)
    return q_pe, k_pe
