"""Gradients: the rotation is right, what flows back is not; what is right stands beside each.

x (b, h, s, d), base 10,000, computed in float32. Letters: s positions, d head_dim, p pairs.
"""

import torch
from rotations import angles, half, interleaved, turned


def g3(x, positions):
    """The fused operator has no backward: what it returns does not hang on x."""
    return half(x.detach(), angles(positions, x.shape[-1]))


def g3_right(x, positions):
    return half(x, angles(positions, x.shape[-1]))


def _back(gradient, angle):
    """Halves of a gradient, rotated back, first all of the first numbers and then all of the second."""
    pairs = turned(gradient[..., ::2], gradient[..., 1::2], -angle)
    return torch.cat(pairs, dim=-1).to(gradient.dtype)


class _InPlace(torch.autograd.Function):
    """Its backward spreads halves over pairs where they lie: numbers are written before they were read."""

    @staticmethod
    def forward(ctx, x, angle):
        ctx.angle = angle
        return interleaved(x, angle)

    @staticmethod
    def backward(ctx, gradient):
        halves = _back(gradient, ctx.angle)
        pairs = halves.shape[-1] // 2
        for pair in torch.randperm(pairs).tolist():  # whichever warp comes first
            halves[..., 2 * pair] = halves[..., pair]
            halves[..., 2 * pair + 1] = halves[..., pairs + pair]
        return halves, None


class _Apart(_InPlace):
    @staticmethod
    def backward(ctx, gradient):
        halves = _back(gradient, ctx.angle)
        return torch.stack(halves.chunk(2, dim=-1), dim=-1).flatten(-2), None


def g4(x, positions):
    return _InPlace.apply(x, angles(positions, x.shape[-1]))


def g4_right(x, positions):
    return _Apart.apply(x, angles(positions, x.shape[-1]))
