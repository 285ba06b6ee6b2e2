"""The script that one would write: whole matrices, a float64 reference per dtype, max, mean, RMS.

Everything is computed in the dtype under audit, as `uniform` does. Usage: obvious_torch.py HEADS SEQ
"""

from __future__ import annotations

import math
import sys

import torch

HEADS, SEQ, DIM = int(sys.argv[1]), int(sys.argv[2]), 128
OFFSETS = (0, 1000, 32768, 131072)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def rotate(x: torch.Tensor, offset: int) -> torch.Tensor:
    dtype = x.dtype
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, DIM, 2).to(dtype) / DIM))
    positions = (torch.arange(SEQ) + offset).to(dtype)
    angles = torch.outer(positions, inv_freq)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    half = torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), -1)
    return x * cos + half * sin


def scores(q: torch.Tensor, k: torch.Tensor, offset: int) -> torch.Tensor:
    return rotate(q, offset) @ rotate(k, offset).transpose(-1, -2) / math.sqrt(DIM)


def main() -> None:
    torch.set_grad_enabled(False)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(HEADS, SEQ, DIM, generator=generator, dtype=torch.float64)
    k = torch.randn(HEADS, SEQ, DIM, generator=generator, dtype=torch.float64)
    for dtype in DTYPES:
        q_in, k_in = q.to(dtype), k.to(dtype)
        reference = scores(q_in.double(), k_in.double(), 0)
        for offset in OFFSETS:
            drift = (scores(q_in, k_in, offset).double() - reference).abs()
            worst, mean = drift.max().item(), drift.mean().item()
            print(dtype, offset, worst, mean, drift.square().mean().sqrt().item())


main()
