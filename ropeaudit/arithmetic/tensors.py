"""The arithmetic of this package on torch tensors, on any device that has float64: the same bits as NumPy's.

Each operation is one of torch's in eager mode, which writes its result rounded: none is contracted with the
next, so that `doubledouble` holds here too. torch rounds float32 to 16 bits once, in a cast, but float64
twice, by way of float32: other numbers are rounded on their bits, held as signed integers (it has no unsigned
shifts).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse

DTYPES = {FP32.precision: torch.float32, FP64.precision: torch.float64}
_CASTS = {parse("fp16"): torch.float16, parse("bf16"): torch.bfloat16}  # of float32
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_INFO: dict[torch.dtype, Any] = {torch.float32: np.finfo(np.float32), torch.float64: np.finfo(np.float64)}


class _Tensors:
    """Implement `arrays.Operations` on tensors."""

    def wide(self, x: Any) -> Any:
        return x.to(torch.float64)

    def single(self, x: Any) -> bool:
        return bool(x.dtype == torch.float32)

    def copied(self, x: Any) -> Any:
        return x.contiguous().clone()

    def stacked(self, *parts: Any) -> Any:
        return torch.stack(parts)

    def unset(self, x: Any, wide: bool) -> Any:
        return torch.empty(tuple(x.shape), dtype=torch.float64 if wide else torch.float32, device=x.device)

    def at_once(self, x: Any, rows: int) -> int:
        return rows if x.device.type == "cpu" else max(rows, len(x))

    def leading(self, x: Any, bits: int) -> Any:
        largest = torch.amax(torch.abs(x), dim=1, keepdim=True)
        exponent = torch.frexp(torch.where(torch.isfinite(largest), largest, 0.0)).exponent.to(torch.int64)
        scale = torch.clamp(exponent + 52 - bits, -1022, 1024) + 1023
        sigma = ((scale << 52) | (1 << 51)).view(
            torch.float64
        )  # 1.5 * 2^(exponent + 52 - bits): ldexp is float32's
        return (x + sigma) - sigma

    def norm(self, x: Any) -> float:
        return math.sqrt(float((x * x).sum(dim=1).max())) if x.shape[0] else 0.0

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        return product(a, b, out)


OPERATIONS = _Tensors()


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, summed in the order of the device's kernels; of a CPU's, NumPy's.

    torch's own for CPUs sum in an order of theirs, on some processors: rounded sums would differ by engine.
    """
    if a.device.type != "cpu":
        return torch.matmul(a, b, out=out)
    if out is None:
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
    np.matmul(a.numpy(), b.numpy(), out=out.numpy())
    return out


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """Return x rounded once to `fmt`, in the dtype that carries it, as `rounding.round_own` does."""
    if fmt.precision >= FP32.precision:
        return x.to(DTYPES[fmt.precision])
    return _narrowed(x, fmt).to(torch.float32)


def round_in_place(x: Tensor, fmt: Format) -> None:
    """Round x to `fmt` where it lies, as `rounding.round_in_place` does."""
    if fmt.precision >= FP32.precision:
        x.copy_(x.to(DTYPES[fmt.precision]))
    elif x.dtype == torch.float32 and fmt in _CASTS:
        x.copy_(x.to(_CASTS[fmt]))
    else:
        x.copy_(_narrowed(x, fmt))


def _narrowed(x: Tensor, fmt: Format) -> Tensor:
    """Round by a cast, or on the bits, see `rounding`. A nan of a GPU may have all bits set: put back."""
    if x.dtype == torch.float32 and fmt in _CASTS:
        return x.to(_CASTS[fmt]).to(torch.float32)
    info = _INFO[x.dtype]
    drop = info.nmant + 1 - fmt.precision
    pattern = x.contiguous().view(_INTEGERS[x.dtype])
    bits = (pattern >> drop).bitwise_and_(1).add_((1 << (drop - 1)) - 1).add_(pattern)
    result = bits.bitwise_and_(~((1 << drop) - 1)).view(x.dtype)
    if fmt.emin > info.minexp:
        magic = 1.5 * 2.0**info.nmant * fmt.smallest_subnormal
        grid = torch.copysign((x + magic) - magic, x)
        result = torch.where(torch.abs(x) < fmt.smallest_normal, grid, result)
    if fmt.emax < info.maxexp - 1 or fmt.overflow != "inf":
        become = {"inf": math.inf, "nan": math.nan, "saturate": fmt.largest}[fmt.overflow]
        beyond = torch.copysign(torch.full_like(result, become), result)
        result = torch.where(torch.abs(result) > fmt.largest, beyond, result)
    return torch.where(torch.isnan(x), math.nan, result)


def to_odd(high: Tensor, low: Tensor) -> Tensor:
    """Return high + low rounded to odd, as `doubledouble.to_odd` does."""
    bits = high.contiguous().view(torch.int64)
    inexact = (low != 0) & torch.isfinite(low) & torch.isfinite(high) & ((bits & 1) == 0)
    step = torch.where(torch.signbit(low) == torch.signbit(high), 1, -1)
    return torch.where(inexact, bits + step, bits).view(torch.float64)
