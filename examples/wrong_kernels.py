"""Three kernels with faults that shipped elsewhere, to see what `ropeaudit check` says of them.

A diagnosis a+b is two faults together; a|b are two that explain the calls equally well.
"""

import torch

from ropeaudit.testing import WrongRope, assert_rope

ROWS = 2048  # of a table that was made for another model
FREQUENCIES = 1.0 / 10000.0 ** (torch.arange(0, 128, 2, dtype=torch.float32) / 128)


def rotate_half(x):
    """Return the second half of the dims, negated, before the first."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def shared_positions(x, positions):
    """Rotate each row of a batch (batch, heads, seq, dims) by the positions of its first row."""
    angles = positions.reshape(-1, x.shape[-2])[0].float()[:, None] * FREQUENCIES
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    return (x.float() * cos + rotate_half(x.float()) * sin).to(x.dtype)


def short_table(x, positions):
    """Look positions up in a table that ends at 2,047, and take its last row for all later ones."""
    angles = positions.clamp(max=ROWS - 1).float()[..., None, :, None] * FREQUENCIES
    cos, sin = torch.cat([angles, angles], dim=-1).cos(), torch.cat([angles, angles], dim=-1).sin()
    return (x.float() * cos + rotate_half(x.float()) * sin).to(x.dtype)


def mixed_layouts(x, positions):
    """Turn half-split pairs by angles that are laid out for interleaved ones."""
    angles = positions.float()[..., None, :, None] * FREQUENCIES
    cos, sin = angles.cos().repeat_interleave(2, dim=-1), angles.sin().repeat_interleave(2, dim=-1)
    return (x.float() * cos + rotate_half(x.float()) * sin).to(x.dtype)


if __name__ == "__main__":
    for kernel in (shared_positions, short_table, mixed_layouts):
        try:
            assert_rope(kernel, "bf16")
        except WrongRope as failure:
            print(f"{kernel.__name__}: {failure.diagnosis}")

# Output:
# shared_positions: positions-of-another-row+positions-counted|positions-of-another-row
# short_table: table-ends
# mixed_layouts: mixed-layout
