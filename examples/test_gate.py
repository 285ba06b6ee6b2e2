"""A project gates its kernel with pytest: put a file like this among its tests."""

import pytest
import torch

from ropeaudit.testing import assert_shift_invariant


def apply_rope(x, positions):
    """The kernel: half-split pairs, table and rotation in float32, one rounding at the end."""
    d = x.shape[-1]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def careless(x, positions):
    """The same with positions in the dtype of x, where most of them are not numbers any more."""
    return apply_rope(x, positions.to(x.dtype))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_rope_is_as_exact_as_metas(dtype):
    assert_shift_invariant(apply_rope, dtype=dtype, recipe="meta", offsets=(0, 1000, 131072))


def test_the_gate_sees_a_fault():
    with pytest.raises(AssertionError, match="bfloat16 positions"):
        assert_shift_invariant(careless, dtype="bf16", recipe="meta")


if __name__ == "__main__":
    for kernel in (apply_rope, careless):
        try:
            assert_shift_invariant(kernel, dtype="bf16", recipe="meta")
        except AssertionError as failure:
            print(f"{kernel.__name__} behaves{str(failure).rpartition('; behaves')[2]}")
        else:
            print(f"{kernel.__name__} passes")

# Output:
# apply_rope passes
# careless behaves like: bfloat16 positions, float32 rotation (rotary-embedding-torch)
