"""Right kernels drawn at random, in as many ways of writing as there are stages to write.

Nothing of ropeaudit is imported. Each stage of a kernel is drawn from several spellings, in float32 or in
float64; the rotation rounds once, or each operation in the dtype of the vectors.
Letters: b batch, h heads, s positions, d head_dim, r rotary_dim, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from net.random_faults import FORMATS, Call, Rope, chosen, draw_call, draw_rope

Tables: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]  # positions -> cos and sin of each pair
Rotate: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]  # x (b, h, s, r), cos and sin -> rotated
STORED = 2**12  # rows of a stored table


@dataclass(frozen=True)
class RightCase:
    """A right kernel drawn from a seed. words: how it is written."""

    seed: int
    rope: Rope
    call: Call
    words: str
    make: Callable[[], Callable[..., Any]]


def inverse(rope: Rope, spelling: str, inner: torch.dtype) -> Tensor:
    """Return the frequencies: of no scaling, as `spelling` has it; of a scaling, from float64."""
    r, at = rope.rotary_dim, torch.arange(0, rope.rotary_dim, 2, dtype=inner)
    if rope.scaling or spelling == "rounded":
        return torch.from_numpy(rope.frequencies()).to(inner)
    if spelling == "power":
        return 1.0 / rope.base ** (at / r)
    if spelling == "negative power":
        return rope.base ** (-at / r)
    if spelling == "exp":
        return torch.exp(-math.log(rope.base) * at / r)
    return torch.exp2(-math.log2(rope.base) * at / r)


FREQUENCIES = ("rounded", "power", "negative power", "exp", "exp2")


def tables(rope: Rope, frequencies: str, angles: str, inner: torch.dtype) -> Tables:
    """Return what makes cos and sin (..., p) of positions."""
    theta, scale = inverse(rope, frequencies, inner), rope.attention_factor

    def make(positions: Tensor) -> tuple[Tensor, Tensor]:
        at = positions.to(inner)
        if angles == "einsum":
            phase = torch.einsum("...,p->...p", at, theta)
        elif angles == "matmul":
            phase = at[..., None] @ theta[None]
        else:
            phase = at[..., None] * theta
        if angles == "polar":
            circle = torch.polar(torch.full_like(phase, scale), phase)
            return circle.real, circle.imag
        return phase.cos() * scale, phase.sin() * scale

    return make


ANGLES = ("product", "einsum", "matmul", "polar")


def doubled(table: Tensor, layout: str) -> Tensor:
    """Return a table of pairs for all dims, (..., p) -> (..., r)."""
    return table.repeat_interleave(2, -1) if layout == "interleaved" else torch.cat([table, table], -1)


def quarter_turn(x: Tensor, layout: str) -> Tensor:
    """Return each pair (a, b) as (-b, a)."""
    if layout == "interleaved":
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).reshape(x.shape)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def paired(x: Tensor, layout: str) -> Tensor:
    """Return x with its pairs along the last axis, (..., r) -> (..., p, 2)."""
    if layout == "interleaved":
        return x.reshape(*x.shape[:-1], -1, 2)
    return torch.stack(x.chunk(2, -1), -1)


def unpaired(pairs: Tensor, layout: str) -> Tensor:
    return pairs.flatten(-2) if layout == "interleaved" else torch.cat(pairs.unbind(-1), -1)


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    return x * doubled(cos, layout) + quarter_turn(x, layout) * doubled(sin, layout)


def fused(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    return torch.addcmul(x * doubled(cos, layout), quarter_turn(x, layout), doubled(sin, layout))


def by_pair(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    a, b = paired(x, layout).unbind(-1)
    return unpaired(torch.stack([a * cos - b * sin, a * sin + b * cos], -1), layout)


def in_place(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    result, half = x.clone(), x.shape[-1] // 2
    first = (..., slice(0, None, 2)) if layout == "interleaved" else (..., slice(0, half))
    second = (..., slice(1, None, 2)) if layout == "interleaved" else (..., slice(half, None))
    result[first] = x[first] * cos - x[second] * sin
    result[second] = x[second] * cos + x[first] * sin
    return result


def einsum(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    return unpaired(
        torch.einsum("...pij,...pj->...pi", matrix.expand(*x.shape[:-1], -1, 2, 2), paired(x, layout)), layout
    )


def complex_product(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    pairs = torch.view_as_complex(paired(x, layout).contiguous()) * torch.complex(cos, sin)
    return unpaired(torch.view_as_real(pairs), layout)


ROTATIONS = (rotate_half, fused, by_pair, in_place, einsum, complex_product)


def right_case(seed: int) -> RightCase:
    """Draw a setting, a call and a way of writing."""
    draw = np.random.default_rng([seed, 16])
    rope, call = draw_rope(draw), draw_call(draw)
    inner = chosen(draw, torch.float32, torch.float32, torch.float64)
    if call.dtype == "fp64":
        inner = torch.float64
    frequencies, angles, rotation = (
        chosen(draw, *FREQUENCIES),
        chosen(draw, *ANGLES),
        chosen(draw, *ROTATIONS),
    )
    stored = call.last < STORED and draw.random() < 0.4
    narrow = rotation is not complex_product and draw.random() < 0.35
    table_in_dtype = narrow or (not stored and draw.random() < 0.2)
    numpy = call.dtype in ("fp32", "fp64") and draw.random() < 0.2
    compute = tables(rope, frequencies, angles, inner)
    if numpy:
        rotate = _of_numpy(rope)
        words = "numpy"
    else:
        rotate = _of_torch(rope, rotation, FORMATS[call.dtype] if narrow else inner)
        words = rotation.__name__

    def make() -> Callable[..., Any]:
        rows = compute(torch.arange(STORED)) if stored else None

        def kernel(*given: Tensor) -> Any:
            *vectors, at = given
            cos, sin = (table[at] for table in rows) if rows else compute(at)
            if at.ndim == 2:
                cos, sin = cos[:, None], sin[:, None]
            if table_in_dtype:
                cos, sin = (table.to(FORMATS[call.dtype]).to(table.dtype) for table in (cos, sin))
            results = tuple(rotate(x, cos, sin) for x in vectors)
            return results if call.style == "qk" else results[0]

        return kernel

    parts = [frequencies, angles, words, str(inner)[6:]]
    parts += [word for word, on in (("stored", stored), ("each operation in the dtype", narrow)) if on]
    return RightCase(seed, rope, call, ", ".join(parts), make)


def _of_torch(rope: Rope, rotation: Callable[..., Tensor], compute: torch.dtype) -> Rotate:
    """Return a rotation that computes in a dtype and rounds what it returns to that of x."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        part, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
        turned = rotation(part.to(compute), cos.to(compute), sin.to(compute), rope.layout)
        return torch.cat([turned.to(x.dtype), rest], -1)

    return rotate


def _of_numpy(rope: Rope) -> Rotate:
    """Return a rotation of NumPy arrays as complex numbers."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        array, r = x.numpy().copy(), rope.rotary_dim
        first = slice(0, r, 2) if rope.layout == "interleaved" else slice(0, r // 2)
        second = slice(1, r, 2) if rope.layout == "interleaved" else slice(r // 2, r)
        turned = (array[..., first] + 1j * array[..., second]) * (cos.numpy() + 1j * sin.numpy())
        array[..., first], array[..., second] = turned.real, turned.imag
        return torch.from_numpy(array)

    return rotate


def right_cases(count: int, start: int = 0) -> Iterator[RightCase]:
    """Draw right kernels from consecutive seeds."""
    return (right_case(seed) for seed in range(start, start + count))
