"""A project gates its kernel with pytest: put a file like this among its tests."""

import pytest
from kernel import apply_rope, careless

from ropeaudit.testing import assert_shift_invariant


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
# careless behaves like: bfloat16 positions, float32 rotation (rotary-embedding-torch) [narrow-positions]
