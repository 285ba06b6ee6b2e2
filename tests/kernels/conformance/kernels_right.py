"""Right kernels of torch, each in a signature and a style of its own; base 10,000.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import functools
import warnings

import numpy as np
import torch


def frequencies(d):
    return 1.0 / (10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d))


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


# positions (s,)


def half_upcast(x, positions):
    """x (b, h, s, d): float32 throughout, rounded once."""
    angles = torch.outer(positions.float(), frequencies(x.shape[-1]))
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def polar(x, positions):
    """x (h, s, d), half-split pairs as complex numbers."""
    angles = torch.outer(positions.float(), frequencies(x.shape[-1]))
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1).type_as(x)


def rotate_in_place(x, positions):
    """x (b, h, s, d) is overwritten and returned, as kernels of servers do."""
    angles = torch.outer(positions.float(), frequencies(x.shape[-1]))
    cos, sin = angles.cos(), angles.sin()
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    turned = first * cos - second * sin, second * cos + first * sin
    x[..., :half], x[..., half:] = turned[0], turned[1]
    return x


@functools.lru_cache(maxsize=4)
def _rounded_once(d):
    """cos and sin (131072, p): of float64 angles, rounded once to float32."""
    angles = np.outer(np.arange(131072), 10000.0 ** -(np.arange(0, d, 2) / d))
    return torch.from_numpy(np.cos(angles).astype(np.float32)), torch.from_numpy(
        np.sin(angles).astype(np.float32)
    )


def float32_table(x, positions):
    """x (b, h, s, d), positions (s,) or (b, s): a table that ends at 131,071, then an IndexError."""
    cos, sin = (table[positions] for table in _rounded_once(x.shape[-1]))
    if positions.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def eager(x, positions):
    """x (b, h, s, d), interleaved pairs."""
    angles = torch.outer(positions.float(), frequencies(x.shape[-1]))
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def __getattr__(name):
    """Compile `compiled` when it is asked for: a compiler takes seconds to start."""
    if name != "compiled":
        raise AttributeError(name)
    with warnings.catch_warnings():  # torch's own, of what it imports
        warnings.simplefilter("ignore")
        return torch.compile(eager, dynamic=True)


def rows_of_positions(q, k, position_ids):
    """q (b, h, s, d), k (b, g, s, d), position_ids (b, s)."""
    angles = position_ids[:, None, :, None].float() * frequencies(q.shape[-1])
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos(), angles.sin()
    q, k = ((x.float() * cos + rotate_half(x.float()) * sin).to(x.dtype) for x in (q, k))
    return q, k


def _vllm_native(positions, query, key, head_size, cos_sin):
    """query (tokens, h * d), key (tokens, g * d), cos_sin (rows, d): as a server holds them."""
    cos, sin = cos_sin.index_select(0, positions.flatten()).chunk(2, dim=-1)
    results = []
    for x in (query, key):
        heads = x.view(len(positions), -1, head_size)
        first, second = heads.float().chunk(2, dim=-1)
        c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
        heads = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
        results.append(heads.reshape(x.shape).to(x.dtype))
    return results


@functools.lru_cache(maxsize=4)
def _cos_sin(d):
    angles = torch.outer(torch.arange(131072, dtype=torch.float32), frequencies(d))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def flat_tokens(q, k, positions):
    """q (s, h, d), k (s, g, d): a wrapper around a kernel of flat tokens."""
    d = q.shape[-1]
    flat = _vllm_native(positions, q.flatten(1), k.flatten(1), d, _cos_sin(d))
    return flat[0].view(q.shape), flat[1].view(k.shape)


# cos and sin, or cos + i sin


def hf_llama(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    """q (b, h, s, d), k (b, g, s, d), cos and sin (b, s, d): in the dtype of q."""
    cos, sin = cos.to(q.dtype).unsqueeze(unsqueeze_dim), sin.to(q.dtype).unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def meta_complex(xq, xk, freqs_cis):
    """xq (b, s, h, d), xk (b, s, g, d), interleaved, freqs_cis (s, p)."""
    q, k = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (xq, xk))
    freqs_cis = freqs_cis.view(1, xq.shape[1], 1, -1)
    q, k = (torch.view_as_real(x * freqs_cis).flatten(3) for x in (q, k))
    return q.type_as(xq), k.type_as(xk)


def freqs_of_one(x, freqs_cis):
    """x (s, h, d), interleaved, freqs_cis (s, p)."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2).to(x.dtype)


def megatron(t, cos, sin):
    """t (s, b, h, d), cos and sin (s, 1, 1, d), half-split."""
    assert cos.shape[1:3] == (1, 1)
    return (t * cos + rotate_half(t) * sin).to(t.dtype)


class _Rotation(torch.autograd.Function):
    """A rotation by cos and sin (s, p); its gradient is the rotation back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _Rotation.by(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        return _Rotation.by(gradient, cos, -sin), None, None

    @staticmethod
    def by(x, cos, sin):
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def own_backward(q, k, cos, sin):
    """q (b, h, s, d), k (b, g, s, d), cos and sin (s, p) or (s, d), half-split."""
    cos, sin = (table[..., : q.shape[-1] // 2] for table in (cos, sin))
    return _Rotation.apply(q, cos, sin), _Rotation.apply(k, cos, sin)


# a first position


def from_offset(x, offset=0):
    """x (b, s, h, d), interleaved: tokens stand at offset, offset + 1, ..."""
    d = x.shape[-1]
    angles = torch.arange(offset, offset + x.shape[1]).double()[:, None] * frequencies(d).double()
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = torch.empty(x.shape, dtype=torch.float32)
    rotated[..., 0::2] = even * cos - odd * sin
    rotated[..., 1::2] = even * sin + odd * cos
    return rotated.to(x.dtype)


def any_sequence_dim(t, seq_dim=-2, offset=0):
    """Rotate t along any axis, interleaved: queries or keys of an encoder."""
    d, s = t.shape[-1], t.shape[seq_dim]
    angles = (torch.arange(s).float() + offset)[:, None] * frequencies(d)
    angles = angles.repeat_interleave(2, dim=-1)
    shape = [1] * t.ndim
    shape[seq_dim], shape[-1] = s, d
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    even, odd = t.unflatten(-1, (-1, 2)).unbind(-1)
    return (t * cos + torch.stack((-odd, even), dim=-1).flatten(-2) * sin).to(t.dtype)
