"""Right code whose slow pairs turn by less than a rounding; code that is wrong behind a block of tokens."""

import torch


def rotated(x, angles):
    cos, sin = angles.cos(), angles.sin()
    a, b = x.double().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def angles_of(x, positions, base, factor=1.0):
    d = x.shape[-1]
    return positions[..., None].double() * base ** (-torch.arange(0, d, 2).double() / d) / factor


def of_a_million_by_8(x, positions):
    return rotated(x, angles_of(x, positions, 1e6, 8.0))


class InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, angles):
        ctx.save_for_backward(angles)
        return rotated(x, angles)

    @staticmethod
    def backward(ctx, gradient):
        (angles,) = ctx.saved_tensors
        turned = rotated(gradient, -angles)
        turned[..., 64:, :] = gradient[..., 64:, :]  # the second block is passed on
        return turned, None


def backward_in_blocks(x, positions):
    return InBlocks.apply(x, angles_of(x, positions, 1e4))
