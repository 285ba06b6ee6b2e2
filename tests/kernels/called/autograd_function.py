"""A torch.autograd.Function named as it is, and one whose backward rotates on instead of back."""

import torch


def _rotated(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx, upstream):
        cos, sin = ctx.saved_tensors
        return _rotated(upstream, cos, -sin), None, None


class RotatesOn(Rope):
    @staticmethod
    def backward(ctx, upstream):
        return _rotated(upstream, *ctx.saved_tensors), None, None


class ContextApart(torch.autograd.Function):
    @staticmethod
    def forward(x, cos, sin):
        return _rotated(x, cos, sin)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, upstream):
        cos, sin = ctx.saved_tensors
        return _rotated(upstream, cos, -sin), None, None


class ContextInherited(ContextApart):
    pass
