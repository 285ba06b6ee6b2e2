"""A rotation by an autograd function that calls what an object compiles when it is first called."""

import torch


class Later:
    def __init__(self, function):
        self.function, self.made = function, None

    def __call__(self, *given):
        self.made = self.made or torch.compile(self.function)
        return self.made(*given)


@Later
def turn(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        return turn(gradient, cos, -sin), None, None


def rotate(x, cos, sin):
    return Rotation.apply(x, cos, sin)
