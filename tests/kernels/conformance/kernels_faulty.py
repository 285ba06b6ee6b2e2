"""Kernels of torch with one fault each; half-split, x (b, h, s, d), base 10,000, unless they say otherwise.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import torch
from torch import nn


def inverse(d, base=10000.0):
    return 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float32) / d)


def by_tables(x, cos, sin):
    """x rotated by cos and sin (..., s, p) in float32, rounded once."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotated(x, positions):
    angles = positions[..., None].float() * inverse(x.shape[-1])
    return by_tables(x, angles.cos(), angles.sin())


# which position


def restarts(q, k, positions):
    """q (b, s, h, d), interleaved: tokens are counted anew every 3,000, as of documents that are packed."""
    positions = positions[0] + (positions - positions[0]) % 3000
    angles = positions.float()[:, None, None] * inverse(q.shape[-1])
    results = []
    for x in (q, k):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        pairs = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
        results.append(torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype))
    return results


def decode_one_late(x, positions):
    """A token that comes alone counts itself: it is rotated one position too high."""
    return rotated(x, positions + 1 if positions.shape[-1] == 1 else positions)


def pieces_by_page(x, offset=0):
    """A piece of more than a page of 256 begins at a whole page: right where pieces do."""
    start = offset // 256 * 256 if x.shape[-2] > 256 else offset
    return rotated(x, torch.arange(start, start + x.shape[-2]))


def first_row(q, k, position_ids):
    """position_ids (b, s): the second batch row is rotated by those of the first."""
    positions = position_ids[:1, None]
    return rotated(q, positions), rotated(k, positions)


def late_alone(q, k, positions):
    """A batch of one takes a short cut that is one position late."""
    positions = positions - 1 if q.shape[0] == 1 else positions
    return rotated(q, positions), rotated(k, positions)


class StaleTable(nn.Module):
    """cos and sin are computed anew only where the number of tokens differs from that of the last call."""

    def __init__(self):
        super().__init__()
        self.length = -1

    def forward(self, x, positions):
        """positions (s,)."""
        if x.shape[-2] != self.length:
            self.length = x.shape[-2]
            angles = positions.float()[:, None] * inverse(x.shape[-1])
            self.cos, self.sin = angles.cos(), angles.sin()
        return by_tables(x, self.cos, self.sin)


class TableOfFirstDtype(nn.Module):
    """The table has the dtype of the first x, and so it stays: float32 after bfloat16 is coarse."""

    def __init__(self, dim):
        super().__init__()
        self.inverse, self.cos = inverse(dim), torch.zeros(0, dim // 2)

    def forward(self, x, positions):
        """positions (s,)."""
        if len(self.cos) <= int(positions.max()):
            angles = torch.arange(2 * int(positions.max()) + 1).float()[:, None] * self.inverse
            dtype = x.dtype if len(self.cos) == 0 else self.cos.dtype
            self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return by_tables(x, self.cos[positions], self.sin[positions])


# q and k, heads, dims


def crossed(q, k, positions):
    """What is returned for k is q."""
    return rotated(q, positions), rotated(q[:, : k.shape[1]], positions)


def last_head_of_k(q, k, positions):
    """The last head of k is one position late."""
    late = rotated(k[:, -1:], positions - 1)
    return rotated(q, positions), torch.cat((rotated(k[:, :-1], positions), late), dim=1)


def two_dims_short(x, positions):
    """x (b, s, h, d), interleaved: the last two dims are left as they are; frequencies are those of all."""
    angles = positions.float()[:, None, None] * inverse(x.shape[-1])[:-1]
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., :-2].float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((pairs.to(x.dtype), x[..., -2:]), dim=-1)


def exponent_short(x, positions):
    """Frequencies of head_dim - 2: the exponent is 2i/(d - 2)."""
    d = x.shape[-1]
    angles = positions.float()[:, None] / 10000.0 ** (torch.arange(0, d, 2).float() / (d - 2))
    return by_tables(x, angles.cos(), angles.sin())


# formats


def cast_frequencies(x, positions):
    """inv_freq went through bfloat16 with the weights of its module."""
    angles = positions.float()[:, None] * inverse(x.shape[-1]).bfloat16().float()
    return by_tables(x, angles.cos(), angles.sin())


def bfloat16_positions(q, k, positions):
    return rotated(q, positions.bfloat16()), rotated(k, positions.bfloat16())


def returns_float32(x, positions):
    """float32, whatever x is."""
    return rotated(x.float(), positions)


def returns_bfloat16(q, k, cos, sin):
    """bfloat16, whatever q and k are; cos and sin (s, p) or (s, d)."""
    cos, sin = (table[..., : q.shape[-1] // 2] for table in (cos, sin))
    return by_tables(q, cos, sin).bfloat16(), by_tables(k, cos, sin).bfloat16()


# how it is called


def compiled_differs(x, positions):
    """Compiled, it rotates the other way."""
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    sin = -angles.sin() if torch.compiler.is_compiling() else angles.sin()
    return by_tables(x, angles.cos(), sin)


def ignores_strides(x, positions):
    """x is read as if it were contiguous, as by a kernel that takes a pointer."""
    b, h, s, d = x.shape
    return rotated(torch.as_strided(x, (b, h, s, d), (h * s * d, s * d, d, 1)), positions)


def changes_input(x, positions):
    """What is returned is right; x has become x cos."""
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    cos, sin = angles.cos(), angles.sin()
    result = by_tables(x, cos, sin)
    with torch.no_grad():
        x.mul_(torch.cat((cos, cos), dim=-1).to(x.dtype))
    return result


def in_place_aliased(x, positions):
    """The first half is overwritten before the second is computed: float() is no copy of float32."""
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    cos, sin = angles.cos(), angles.sin()
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    x[..., :half] = first * cos - second * sin
    x[..., half:] = second * cos + first * sin
    return x


# gradients


class _ForwardTwice(torch.autograd.Function):
    """The gradient is rotated on instead of back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return by_tables(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient):
        return by_tables(gradient, *ctx.saved_tensors), None, None


def gradient_not_inverted(q, k, positions):
    angles = positions.float()[:, None] * inverse(q.shape[-1])
    return tuple(_ForwardTwice.apply(x, angles.cos(), angles.sin()) for x in (q, k))


class _NarrowBackward(torch.autograd.Function):
    """The rotation back is computed in bfloat16, whatever the gradient is."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos.bfloat16(), sin.bfloat16())
        return by_tables(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        first, second = gradient.bfloat16().chunk(2, dim=-1)
        back = torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)
        return back.to(gradient.dtype), None, None


def gradient_in_bfloat16(x, cos, sin):
    """cos and sin (s, p)."""
    cos, sin = (table[..., : x.shape[-1] // 2] for table in (cos, sin))
    return _NarrowBackward.apply(x, cos, sin)


def no_gradient(x, positions):
    return rotated(x.detach(), positions)
