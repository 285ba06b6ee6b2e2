"""Kernels that rotate wrong dims, wrong pairs or wrongly; what is right stands beside each.

Half-split, x (b, h, s, d), base 10,000, computed in float32, unless they say otherwise.
Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import torch

PART = 16  # rotated dims of 32, where a head is rotated in part


def inverse(dim, base=10000.0):
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def angles(positions, dim):
    """(..., s) -> (..., s, p)."""
    return positions[..., None].float() * inverse(dim)


def turned(first, second, angle):
    """The numbers of each pair after its rotation, in float32."""
    first, second, cos, sin = first.float(), second.float(), angle.cos(), angle.sin()
    return first * cos - second * sin, second * cos + first * sin


def half(x, angle, dim=None):
    """x (..., s, d) with its first dims rotated, all where dim is None; angle (..., s, p)."""
    rotated, rest = x[..., :dim], x[..., x.shape[-1] if dim is None else dim :]
    return torch.cat((*turned(*rotated.chunk(2, dim=-1), angle), rest), dim=-1).to(x.dtype)


def interleaved(x, angle):
    pairs = turned(x[..., ::2], x[..., 1::2], angle)
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


# which dims


def _cached(positions, dim, width):
    """cos and sin (s, width / 2) as a kernel reads them that takes rows of [cos | sin] to be that wide."""
    angle = angles(torch.arange(int(positions.max()) + 2), dim)
    rows = torch.cat((angle.cos(), angle.sin()), dim=-1)
    starts = positions[:, None] * dim + torch.arange(width)
    return rows.flatten()[starts].chunk(2, dim=-1)


def _by_cache(q, k, positions, width):
    """q (t, h, d), k (t, g, d), flat tokens."""
    cos, sin = (table[:, None] for table in _cached(positions, PART, width))
    results = []
    for x in (q, k):
        first, second = x[..., :width].float().chunk(2, dim=-1)
        rotated = first * cos - second * sin, second * cos + first * sin
        results.append(torch.cat((*rotated, x[..., width:]), dim=-1).to(x.dtype))
    return results


def k1(q, k, positions):
    """rotary_dim is not handed on: rows of 16 are read as if they were of head_dim."""
    return _by_cache(q, k, positions, q.shape[-1])


def k1_right(q, k, positions):
    return _by_cache(q, k, positions, PART)


def k2(q, k, positions):
    """Of each four heads that share a warp, all but the first get a partner from lanes that are off."""
    angle = angles(positions, PART)[:, None]
    results = []
    for x in (q, k):
        right = half(x, angle, PART)
        if x.shape[0] * x.shape[1] >= 10240:
            first, second = x[..., : PART // 2], x[..., PART // 2 : PART]
            alone = turned(first, first, angle)[0], turned(second, second, angle)[1]
            wrong = torch.cat((*alone, x[..., PART:]), dim=-1).to(x.dtype)
            packed = torch.arange(x.shape[1]) % 4 > 0
            right = torch.where(packed[:, None], wrong, right)
        results.append(right)
    return results


def k2_right(q, k, positions):
    return [half(x, angles(positions, PART)[:, None], PART) for x in (q, k)]


def _of_width(q, k, positions, dim):
    """q (t, h, d), k (t, g, d): dims i and i + dim / 2 of each head, wherever that lies."""
    results = []
    for x in (q, k):
        out, angle = x.flatten(1).clone(), angles(positions, dim)
        for head in range(x.shape[1]):
            begin = head * x.shape[2]
            both = [torch.arange(begin + side, begin + side + dim // 2) for side in (0, dim // 2)]
            first, second = (at.clamp(max=out.shape[1] - 1) for at in both)
            pairs = turned(out[:, first], out[:, second], angle)
            out = out.index_copy(1, first, pairs[0].to(x.dtype)).index_copy(1, second, pairs[1].to(x.dtype))
        results.append(out.view(x.shape))
    return results


def k3(q, k, positions):
    """rotary_dim is 48 and a head has 32: the rotation goes on into the next head."""
    return _of_width(q, k, positions, 48)


def k3_right(q, k, positions):
    """What is more than the head is refused, or cut."""
    return _of_width(q, k, positions, min(48, q.shape[-1]))


def k12(x, positions):
    """dims is 31: dims // 2 pairs of 15, with the exponents of 31."""
    dims = 31
    angle = positions[:, None].float() / 10000.0 ** (torch.arange(0, dims - 1, 2) / dims)
    return half(x, angle, dims // 2 * 2)


def k12_right(x, positions):
    """An odd number of dims, none and more than there are, are refused; so all of them are asked for."""
    dims = 32
    if dims % 2 or not 0 < dims <= x.shape[-1]:
        raise ValueError(f"dims {dims} of {x.shape[-1]}")
    return half(x, angles(positions, dims), dims)


def _padded(x, positions, begin):
    """x rotated by rows of [cos | sin] that lie one behind the other; sin begins behind so many numbers."""
    d = x.shape[-1]
    angle = angles(torch.arange(int(positions.max()) + 2), d)
    flat = torch.cat((angle.cos(), angle.sin()), dim=-1).flatten()
    at = positions[:, None] * d + torch.arange(d // 2)
    cos, sin = flat[at], flat[at + begin]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def k13(x, positions):
    """sin is read behind half of the next power of two, not behind half of the dims."""
    return _padded(x, positions, (1 << (x.shape[-1] - 1).bit_length()) // 2)


def k13_right(x, positions):
    return _padded(x, positions, x.shape[-1] // 2)


def k23(x, positions):
    """The shift of a cache of keys turns the whole head, of which 16 dims are rotated."""
    return half(x, angles(positions, x.shape[-1]))


def k23_right(x, positions):
    return half(x, angles(positions, PART), PART)


def k32(x, positions):
    """The 4 pairs that turn stand beside each other: dims i and i + 4, not i and i + 16."""
    return half(x, angles(positions, x.shape[-1])[:, :4], 8)


def k32_right(x, positions):
    angle = angles(positions, x.shape[-1])
    angle[:, 4:] = 0.0
    return half(x, angle)


def _pairs(x, positions, dim):
    """A rotation of so many dims: rounded up to pairs, with the exponents of dim."""
    pairs = (dim + 1) // 2
    angle = positions[:, None].float() / 10000.0 ** (torch.arange(pairs) * 2 / dim)
    return half(x, angle, 2 * pairs)


def k33(x, positions):
    """33 dims: 17 pairs are rotated, which are 34."""
    return _pairs(x, positions, 33)


def k33_right(x, positions):
    return _pairs(x, positions, 33 // 2 * 2)


def k34(x, positions):
    """Lanes of three numbers, of which the path writes two: it was written for lanes of two."""
    right = half(x, angles(positions, x.shape[-1]))
    return torch.where(torch.arange(x.shape[-1]) % 3 == 2, x, right)


def k34_right(x, positions):
    return half(x, angles(positions, x.shape[-1]))


# which pairs


class _Rotary(torch.nn.Module):
    neox = None

    def forward(self, q, k, positions):
        """positions (s,)."""
        return [self.rotate(x, angles(positions, x.shape[-1])) for x in (q, k)]


class K14(_Rotary):
    """Whatever is_neox_style says, halves are rotated."""

    def __init__(self, is_neox_style=False):
        super().__init__()
        self.rotate = half


class K14Right(_Rotary):
    def __init__(self, is_neox_style=False):
        super().__init__()
        self.rotate = half if is_neox_style else interleaved


def in_halves(q, k, positions):
    return [half(x, angles(positions, x.shape[-1])) for x in (q, k)]


def in_neighbours(q, k, positions):
    return [interleaved(x, angles(positions, x.shape[-1])) for x in (q, k)]


# the rotation itself


def _with_factor(x, cos, sin, minus):
    cos, sin = (table[..., : x.shape[-1] // 2].float() for table in (cos, sin))
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos + minus * second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def k37(x, cos, sin):
    """-1 is written in bfloat16 and read in the format of cos and sin, float32: two of them make a number."""
    minus = torch.full((2,), -1.0, dtype=torch.bfloat16).view(torch.float32)
    return _with_factor(x, cos, sin, minus)


def k37_right(x, cos, sin):
    return _with_factor(x, cos, sin, -1.0)
