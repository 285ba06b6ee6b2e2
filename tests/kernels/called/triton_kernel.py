"""A rotation as a Triton kernel: tables of float64 rounded to float32, float32 arithmetic, one rounding."""

import torch
import triton
import triton.language as tl


@triton.jit
def _turn(x, cos, sin, out, length, half: tl.constexpr):
    row = tl.program_id(0)
    dims = tl.arange(0, half)
    c = tl.load(cos + row % length * half + dims)
    s = tl.load(sin + row % length * half + dims)
    a = tl.load(x + row * 2 * half + dims).to(tl.float32)
    b = tl.load(x + row * 2 * half + half + dims).to(tl.float32)
    tl.store(out + row * 2 * half + dims, (a * c - b * s).to(out.dtype.element_ty))
    tl.store(out + row * 2 * half + half + dims, (b * c + a * s).to(out.dtype.element_ty))


def rotate(x, positions):
    """Return x rotated, half-split, one program a row. Shapes: (b, h, s, d), (s,) -> like x."""
    d = x.shape[-1]
    powers = torch.arange(0, d, 2, device=x.device).double() / d
    angles = positions.double()[:, None] * 10000.0**-powers
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = x.numel() // d
    _turn[(rows,)](x.contiguous(), angles.cos().float(), angles.sin().float(), out, x.shape[-2], d // 2)
    return out
