# settings: --layout interleaved --head-dim 64 --up-to 4096
# name: Rotary
# wrong: in decode, positions are one too far (the length with the new token is taken). all dtypes. positions-off
import torch


class Rotary:
    def __init__(self, dim, max_seq_len=8192, theta=10000.0):
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
        t = torch.arange(max_seq_len)
        self.freqs_cis = torch.polar(torch.ones(max_seq_len, dim // 2), torch.outer(t, freqs))

    def __call__(self, xq, xk, start_pos: int):
        bsz, seqlen, _, _ = xq.shape
        if seqlen == 1:
            total = start_pos + seqlen
            fc = self.freqs_cis[total : total + 1]
        else:
            fc = self.freqs_cis[start_pos : start_pos + seqlen]
        fc = fc.view(1, seqlen, 1, -1)
        xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
        xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
        return torch.view_as_real(xq_ * fc).flatten(3).type_as(xq), torch.view_as_real(xk_ * fc).flatten(3).type_as(xk)
