"""The pytest helper: correct kernels pass in every dtype, each planted fault fails and is named."""

import faulty_kernels
import ml_dtypes
import numpy as np
import pytest
import torch
from faulty_kernels import in_numpy, inverse, q_k_complex, right

from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.testing import assert_shift_invariant

DTYPES = ["fp32", "fp16", "bf16"]
SMALL = {"heads": 4, "seq_len": 48}


def interleaved_complex(q, k, positions):
    """bshd, as Meta's."""
    angles = torch.outer(positions.float(), inverse(q.shape[-1]))
    return q_k_complex(q, k, torch.polar(torch.ones_like(angles), angles))


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_kernels_pass(dtype) -> None:
    assert_shift_invariant(right, dtype=dtype, whole=dtype == "bf16", **SMALL)
    assert_shift_invariant(interleaved_complex, dtype=dtype, layout="interleaved", whole=False, **SMALL)
    assert_shift_invariant(in_numpy, dtype=dtype, whole=False, **SMALL)


def test_a_correct_float64_kernel_passes_whose_reference_is_no_better() -> None:
    def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, axis=-1)
        angles = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1
        )

    assert_shift_invariant(rotate, dtype="fp64", recipe="uniform", heads=2, seq_len=32, offsets=(0, 1000))


def test_numpy_kernels_get_numpy_arrays_of_their_dtype() -> None:
    seen = set()

    def noted(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        seen.add(x.dtype)
        return in_numpy(x, positions)

    assert_shift_invariant(noted, whole=False, **SMALL)
    assert np.dtype(ml_dtypes.bfloat16) in seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_scores_pass(dtype) -> None:
    def scores(q, k, positions):
        q, k = right(q, positions), right(k, positions)
        return (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5

    assert_shift_invariant(scores=scores, dtype=dtype, **SMALL)


WORST = ".*allowed for recipe meta.*worst at head .*position"


def positions_in_dtype(x, positions):
    return right(x, positions.to(x.dtype))


def short_table(x, positions):
    return right(x, positions.clamp(max=4095))


def skewed(q, k, positions):
    return right(q, positions), right(k, positions + 1)


def raises(x, positions):
    if positions.max() > 5000:
        raise IndexError("past the table")
    return right(x, positions)


@pytest.mark.parametrize(
    ("dtype", "kernel", "error_line"),
    [
        ("bf16", positions_in_dtype, rf"^.* is off by .*at offset 1000{WORST}.*\Z"),
        ("bf16", skewed, r"k alone: positions \+1 \[positions-off\]$"),
        ("bf16", raises, "raises raises in bfloat16 at offset 131072: IndexError: past the table"),
        ("fp16", positions_in_dtype, r"rotary-embedding-torch.* \[nonfinite\]$"),  # beyond 65504 they are inf
        ("fp16", short_table, r"at offset 131072.*a table that ends at position 4095 \[table-ends\]$"),
        ("bf16", faulty_kernels.one_head, "head 1 of 4"),
        ("fp32", faulty_kernels.Caching(), r"at offset 1000.*the offset is left out \[positions-from-0\]$"),
    ],
)
def test_a_wrong_rotation_fails_where_it_is_wrong(dtype, kernel, error_line) -> None:
    """What each fault is called: the matrix of faults and roads."""
    with pytest.raises(AssertionError, match=error_line):
        assert_shift_invariant(kernel, dtype=dtype, **SMALL)


def narrow_sum(q, k, positions):
    """Sums in float16, one product after the other."""
    q, k = right(q, positions), right(k, positions)
    total = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.float16)
    for j in range(q.shape[-1]):
        total = total + (q[..., j, None] * k[..., None, :, j]).half()
    return total * q.shape[-1] ** -0.5


LENGTHS = {  # scaling -> the positions for which its frequencies are those of a plain kernel
    "dynamic:factor=8,maximum=1024": 1024,
    "longrope:short=1;1;1;1,long=2;4;4;4,original=1024,factor=1": 1024,
}


@pytest.mark.parametrize("scaling", LENGTHS)
def test_frequencies_that_depend_on_the_length_are_those_for_the_last_position(scaling) -> None:
    case = {"dtype": "fp32", "head_dim": 8, "heads": 1, "seq_len": 24, "scaling": scaling, "whole": False}
    assert_shift_invariant(right, offsets=(0, LENGTHS[scaling] - 24), **case)
    with pytest.raises(AssertionError, match=r"\[missing-scaling\]$|\[other-scaling\|missing-scaling\]$"):
        assert_shift_invariant(right, offsets=(0, LENGTHS[scaling]), **case)


def test_a_scaled_kernel_passes_with_its_scaling_alone() -> None:
    def scaled(x, positions):
        return right(x, positions / 4)

    assert_shift_invariant(scaled, dtype="fp32", head_dim=16, scaling="linear:factor=4", whole=False)
    with pytest.raises(AssertionError, match=r"linear\(factor=4\) instead of no scaling \[other-scaling\]$"):
        assert_shift_invariant(scaled, dtype="fp32", head_dim=16, whole=False)
    with pytest.raises(UsageError, match="scaling linear needs factor"):
        assert_shift_invariant(scaled, scaling="linear")


def test_bad_arguments_are_no_failures() -> None:
    for bad in (
        {},
        {"function": right, "scores": narrow_sum},
        {"function": right, "offsets": ["a"]},
    ):
        with pytest.raises(UsageError):
            assert_shift_invariant(**bad)
    with pytest.raises(RopeAuditError):
        assert_shift_invariant(right, recipe="nope")
    with pytest.raises(RopeAuditError, match="could not be called"):
        assert_shift_invariant(lambda x, positions: x[..., :3])


def test_a_recipe_that_is_coarser_allows_more() -> None:
    def rounded(x, positions):
        angles = positions.float()[:, None] * inverse(x.shape[-1])
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    assert_shift_invariant(rounded, recipe="hf", whole=False, **SMALL)
    with pytest.raises(AssertionError, match=r"behaves like: rounded table, bfloat16 rotation .*hf"):
        assert_shift_invariant(rounded, recipe="meta", **SMALL)


def one_head_unrotated(q, k, positions):
    turned = right(q, positions)
    turned[:, 2] = q[:, 2]
    return turned @ right(k, positions).transpose(-1, -2) * q.shape[-1] ** -0.5


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (narrow_sum, r"score drift .*behaves like: drift as large as that of a float16 accumulator"),
        (one_head_unrotated, "head 2 of 4: nothing known explains it"),
        (
            lambda q, k, positions: 1.05 * narrow_sum(q.float(), k.float(), positions),
            r"nothing known explains it \[unexplained\]$",
        ),
        (
            lambda q, k, positions: float("nan") * narrow_sum(q.float(), k.float(), positions),
            r"behaves like: nan or inf \[nonfinite\]$",
        ),
    ],
)
def test_wrong_scores_fail_and_are_named_where_they_can_be(scores, message) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_shift_invariant(scores=scores, dtype="fp32", **SMALL)
