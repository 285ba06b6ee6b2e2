"""Two more ways to form angles: positions on three axes, as in Qwen2-VL, and a matrix product."""

import torch


def by_axes(x, positions):
    """Turn pairs 0 to 15 by time, 16 to 39 by row, 40 to 63 by column. Positions: (axes, tokens)."""
    d = x.shape[-1]
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    axis = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)
    return rotated(x, positions.float()[axis].T * inv_freq)


def by_matmul(x, positions):
    """Form angles as a product of matrices, which autocast runs in bfloat16 and TF32 rounds."""
    d = x.shape[-1]
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    return rotated(x, (inv_freq[None, :, None] @ positions.float()[None, None]).transpose(1, 2)[0])


def rotated(x, angles):
    """Rotate half-split pairs in float32."""
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


if __name__ == "__main__":
    x, positions = torch.ones(1, 1, 8, 128), torch.arange(1000, 1008)
    with torch.autocast("cpu", torch.bfloat16):
        print(f"{len(by_matmul(x, positions)[0, 0].unique(dim=0))} of 8 positions differ under autocast")
    print(f"{len(by_axes(x, positions.expand(3, 8))[0, 0].unique(dim=0))} of 8 positions differ by axes")

# Output:
# 3 of 8 positions differ under autocast
# 8 of 8 positions differ by axes
