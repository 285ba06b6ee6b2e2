"""Two kernels to try a gate on: one that is careful, and one that keeps positions in the dtype of x."""

import torch


def apply_rope(x, positions):
    """Rotate x (batch, heads, positions, head_dim): half-split pairs, float32, one rounding at the end."""
    d = x.shape[-1]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def careless(x, positions):
    """Rotate as above, with positions in the dtype of x: in bfloat16 many of them become the same number."""
    return apply_rope(x, positions.to(x.dtype))


if __name__ == "__main__":
    positions = torch.arange(1000, 1008)
    x = torch.ones(1, 1, 8, 4, dtype=torch.bfloat16)
    for kernel in (apply_rope, careless):
        print(f"{kernel.__name__}: {len(kernel(x, positions)[0, 0].unique(dim=0))} of 8 positions differ")

# Output:
# apply_rope: 8 of 8 positions differ
# careless: 3 of 8 positions differ
