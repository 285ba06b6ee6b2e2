# settings: --layout interleaved --up-to 4096
# name: rotary_embedding_
# A kernel in place, as vLLM's and SGLang's operators: nothing is returned, tokens in rows, and a cache of 131072.
import torch

_D = 128
_f = 1.0 / 10000.0 ** (torch.arange(0, _D, 2, dtype=torch.float64) / _D)
_a = torch.arange(131072, dtype=torch.float64)[:, None] * _f
COS_SIN = torch.cat([_a.cos(), _a.sin()], 1).float()


def rotary_embedding_(positions, query, key) -> None:
    cos, sin = COS_SIN[positions].chunk(2, dim=-1)
    for x in (query, key):
        v = x.view(x.shape[0], -1, _D)
        even, odd = v[..., 0::2].float().clone(), v[..., 1::2].float().clone()
        v[..., 0::2] = (even * cos[:, None] - odd * sin[:, None]).to(x.dtype)
        v[..., 1::2] = (odd * cos[:, None] + even * sin[:, None]).to(x.dtype)
