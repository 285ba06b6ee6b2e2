# settings: --head-dim 64 --up-to 2048
# name: fast_rope
# wrong: the backward pass rotates forwards (unsloth's Fast_RoPE without the minus). all dtypes. gradient
import torch


class Fast_RoPE_Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _rot(Q, cos, sin)

    @staticmethod
    def backward(ctx, dY):
        cos, sin = ctx.saved_tensors
        return _rot(dY, cos, sin), None, None


def _rot(Q, cos, sin):
    half = Q.shape[-1] // 2
    A, B = Q[..., :half], Q[..., half:]
    return torch.cat((A * cos - B * sin, B * cos + A * sin), -1).to(Q.dtype)


def fast_rope(Q, K, cos, sin):
    """Q, K: (b, h, s, d); cos and sin: (s, d / 2)."""
    return Fast_RoPE_Embedding.apply(Q, cos, sin), Fast_RoPE_Embedding.apply(K, cos, sin)
