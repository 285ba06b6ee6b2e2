"""Small kernels of torch, half-split, head_dim 128, base 10,000: right ones, and one fault each."""

import numpy
import torch

INVERSE = 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)


def tables(positions, dtype=torch.float32, inverse=INVERSE):
    angles = positions.to(dtype)[..., None] * inverse.to(dtype)
    return angles.cos(), angles.sin()


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def both(q, k, cos, sin):
    return tuple(rotated(x.to(cos.dtype), cos, sin).to(x.dtype) for x in (q, k))


# right ones


def float32_tables(q, k, positions):
    return both(q, k, *tables(positions))


def hf_style(q, k, positions):
    cos, sin = (table.to(q.dtype) for table in tables(positions))
    return rotated(q, cos, sin), rotated(k, cos, sin)


def float64_tables(q, k, positions):
    return both(q, k, *tables(positions, torch.float64))


def complex_pairs(x, positions):
    """Interleaved."""
    angles = positions.float()[..., None] * INVERSE.float()
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
    return turned.flatten(-2).to(x.dtype)


def wide_output(q, k, positions):
    """float32 for any x: the gradient of a bfloat16 x is summed in bfloat16."""
    cos, sin = tables(positions)
    return rotated(q, cos, sin), rotated(k, cos, sin)


def in_place(x, positions):
    """x is overwritten, which autograd refuses to do to a leaf."""
    x.copy_(rotated(x.float(), *tables(positions)))


def permuted(q, k, positions):
    """Interleaved pairs in, half-split ones out."""
    q, k = (x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in (q, k))
    return both(q, k, *tables(positions))


# gradients that are wrong


class Forward(torch.autograd.Function):
    """backward is that of a right kernel; others replace it."""

    @staticmethod
    def forward(ctx, x, positions):
        ctx.positions = positions
        return rotated(x.float(), *tables(positions)).to(x.dtype)

    @staticmethod
    def backward(ctx, upstream):
        cos, sin = tables(ctx.positions)
        return rotated(upstream.float(), cos, -sin).to(upstream.dtype), None


class NotInverted(Forward):
    @staticmethod
    def backward(ctx, upstream):
        return rotated(upstream.float(), *tables(ctx.positions)).to(upstream.dtype), None


class Late(Forward):
    @staticmethod
    def backward(ctx, upstream):
        cos, sin = tables(ctx.positions + 1)
        return rotated(upstream.float(), cos, -sin).to(upstream.dtype), None


class InBfloat16(Forward):
    @staticmethod
    def backward(ctx, upstream):
        cos, sin = (table.bfloat16() for table in tables(ctx.positions))
        return rotated(upstream.bfloat16(), cos, -sin).to(upstream.dtype), None


class Passed(Forward):
    @staticmethod
    def backward(ctx, upstream):
        return upstream, None


class Zero(Forward):
    @staticmethod
    def backward(ctx, upstream):
        return torch.zeros_like(upstream), None


class FarZero(Forward):
    @staticmethod
    def backward(ctx, upstream):
        back, _ = Forward.backward(ctx, upstream)
        return back * (ctx.positions[0] < 100000), None


class Raising(Forward):
    @staticmethod
    def backward(ctx, upstream):
        raise NotImplementedError("no backward pass yet")


def own_backward(q, k, positions):
    return Forward.apply(q, positions), Forward.apply(k, positions)


def not_inverted(q, k, positions):
    return NotInverted.apply(q, positions), NotInverted.apply(k, positions)


def k_not_inverted(q, k, positions):
    return Forward.apply(q, positions), NotInverted.apply(k, positions)


def late(q, k, positions):
    return Late.apply(q, positions), Late.apply(k, positions)


def in_bfloat16(q, k, positions):
    return InBfloat16.apply(q, positions), InBfloat16.apply(k, positions)


def passed_on(q, k, positions):
    return Passed.apply(q, positions), Passed.apply(k, positions)


def zero(q, k, positions):
    return Zero.apply(q, positions), Zero.apply(k, positions)


def zero_at_the_end(q, k, positions):
    return FarZero.apply(q, positions), FarZero.apply(k, positions)


def raising(q, k, positions):
    return Raising.apply(q, positions), Raising.apply(k, positions)


def detached(x, positions):
    return rotated(x.detach().float(), *tables(positions)).to(x.dtype)


@torch.no_grad()
def inference(q, k, positions):
    return rotated(q.float(), *tables(positions)).to(q.dtype), rotated(k.float(), *tables(positions)).to(
        k.dtype
    )


@torch.no_grad()
def inference_in_place(x, positions):
    return x.copy_(rotated(x.float(), *tables(positions)))


@torch.inference_mode()
def inference_mode(x, positions):
    return rotated(x.float(), *tables(positions)).to(x.dtype)


@torch.no_grad()
def tables_without_grad(positions):
    return tables(positions)


def detached_beside_no_grad(x, positions):
    return rotated(x.detach().float(), *tables_without_grad(positions)).to(x.dtype)


def k_detached(q, k, positions):
    q, k = float32_tables(q, k, positions)
    return q, k.detach()


def k_from_q(q, k, positions):
    """What is returned for k has no part of k."""
    q, _ = float32_tables(q, k, positions)
    return q, 1 * q


def crossed_backward(q, k, positions):
    """Right forward; q gets the gradient of k and the other way round."""
    q, k = float32_tables(q, k, positions)
    return q.detach() + (k - k.detach()), k.detach() + (q - q.detach())


# what drifts


def cast_frequencies(q, k, positions):
    angles = positions.float()[..., None] * INVERSE.bfloat16().float()
    return both(q, k, angles.cos(), angles.sin())


def bfloat16_positions(q, k, positions):
    return both(q, k, *tables(positions.bfloat16().float()))


def another_base(q, k, positions):
    return both(q, k, *tables(positions, inverse=10100.0 ** (-torch.arange(0, 128, 2).double() / 128)))


def restarts(q, k, positions):
    """At the 3,000th token of a call: short calls are right."""
    return both(q, k, *tables(positions[0] + (positions - positions[0]) % 3000))


def bfloat16_output(q, k, positions):
    return tuple(x.bfloat16() for x in float32_tables(q, k, positions))


def truncated(q, k, positions):
    """Right but for the last rounding to bfloat16, which cuts off."""
    cos, sin = tables(positions, torch.float64)
    wide = [rotated(x.double(), cos, sin).float() for x in (q, k)]
    return tuple(((x.view(torch.int32) >> 16) << 16).view(torch.float32).to(q.dtype) for x in wide)


def infinite_at_the_end(q, k, positions):
    """Right but for one number that is infinite at the last position, of the last call alone."""
    rotated = list(both(q, k, *tables(positions)))
    if positions[-1] == 131071:
        rotated[0][..., -1, 0] = torch.inf
    return tuple(rotated)


def indexed(q, k, positions):
    """Right from 0 up: a table is read from its end where a position is negative."""
    cos, sin = tables(torch.arange(4096), torch.float64)
    return both(q, k, cos[positions], sin[positions])


# what errors no rounding leaves


def noise(q, k, positions):
    """Right, and beside it noise, less of it than each pair may be off."""
    generator = torch.Generator().manual_seed(int(positions.sum()))
    wide = both(q.float(), k.float(), *tables(positions))
    shares = (0.012 * torch.rand(x.shape, generator=generator) - 0.006 for x in wide)
    return tuple((x + x * share).to(q.dtype) for x, share in zip(wide, shares, strict=True))


def one_pair_coarse(q, k, positions):
    """The sixth pair of k is turned by the nearest of 400 angles."""
    cos, sin = tables(positions, torch.float64)
    angle = torch.atan2(sin, cos)
    angle[..., 5] = (angle[..., 5] * 64).round() / 64
    wide = rotated(q.double(), cos, sin), rotated(k.double(), angle.cos(), angle.sin())
    return tuple(x.to(q.dtype) for x in wide)


def centred(q, k, positions):
    """xPos whose power is 1 in the middle of each call."""
    place = (positions.double() - positions.shape[-1] // 2)[..., None]
    power = ((torch.arange(0, 128, 2).double() + 51.2) / 179.2) ** (place / 512)
    power = torch.cat([power, power], -1)
    wide_q, wide_k = both(q.double(), k.double(), *tables(positions, torch.float64))
    return (wide_q * power).to(q.dtype), (wide_k / power).to(k.dtype)


def through_numpy(q, k, positions):
    """Right, by arrays that autograd does not see."""
    cos, sin = (x.numpy() for x in tables(positions, torch.float64))
    results = []
    for x in (q, k):
        a, b = numpy.split(x.detach().double().numpy(), 2, axis=-1)
        turned = numpy.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        results.append(torch.from_numpy(turned).to(x.dtype))
    return tuple(results)
