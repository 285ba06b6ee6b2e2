# settings: --head-dim 128 --base 1000000 --scaling yarn:factor=4,original=32768 --up-to 65536
# name: yarn_rope
# YaRN in one function; the ramp is a torch.lerp and the factor on q and k is that of the paper.
import math

import torch

FACTOR, ORIGINAL, BASE, BETA_FAST, BETA_SLOW = 4.0, 32768, 1_000_000.0, 32, 1


def _dim_of(rotations, dim):
    return dim * math.log(ORIGINAL / (rotations * 2 * math.pi)) / (2 * math.log(BASE))


def yarn_rope(hidden, positions):
    dim = hidden.size(-1)
    extra = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    low, high = max(math.floor(_dim_of(BETA_FAST, dim)), 0), min(math.ceil(_dim_of(BETA_SLOW, dim)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    inv = torch.lerp(extra, extra / FACTOR, ramp)
    m = 0.1 * math.log(FACTOR) + 1.0
    ang = positions.double()[..., None] * inv
    c, s = (ang.cos() * m).float(), (ang.sin() * m).float()
    x, y = hidden.float().tensor_split(2, dim=-1)
    return torch.cat((x * c - y * s, y * c + x * s), dim=-1).to(hidden.dtype)
