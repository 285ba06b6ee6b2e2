"""What users were promised, in figures; every number says where it comes from."""

from typing import Any

import numpy as np
import pytest

from ropeaudit import Record, shift

SNIPPET = {
    "qk": "arange",
    "head_dim": 4,
    "seq_len": 5,
    "heads": 1,
    "mask": "full",
    "scale": 1.0,
    "changes": {"frequency_form": "divide"},
}

# Largest |drift| over 8 x 256² scores formed in float64, measured by calling the real packages:
# family -> recipes, dtype -> {offset: largest drift}. A maximum depends on the seed: 25 %.
FAMILIES = {
    "A one rounding at the end": (
        ["meta", "torchtune", "hf-complex", "litgpt", "torchtitan", "gemma-jax"],
        {
            "fp32": {0: (1.2e-5, 1.5e-5), 2**20: (6.4e-2, 6.4e-2)},
            "fp16": {0: (1.7e-3, 1.7e-3), 1000: (1.8e-3, 1.8e-3), 131072: (7e-3, 1e-2)},
            "bf16": {0: (1.2e-2, 1.2e-2), 1000: (1.2e-2, 1.2e-2), 131072: (1.4e-2, 1.4e-2)},
        },
    ),
    "B rounded table": (
        ["vllm-cuda", "flash-attn"],
        {
            "fp32": {0: (1.2e-5, 1.5e-5), 2**20: (6.4e-2, 6.4e-2)},
            "fp16": {0: (2.1e-3, 2.1e-3), 1000: (2.0e-3, 2.0e-3), 131072: (8e-3, 9e-3)},
            "bf16": {0: (1.6e-2, 1.6e-2), 1000: (1.7e-2, 1.7e-2), 131072: (1.8e-2, 1.8e-2)},
        },
    ),
    "C rotation in the dtype": (
        ["hf", "megatron", "keras-hub", "mlx-fallback", "gpt-neox", "vllm-native"],
        {
            "fp32": {0: (1.2e-5, 1.5e-5), 2**20: (6.4e-2, 6.4e-2)},
            "fp16": {0: (2.6e-3, 2.6e-3), 1000: (2.8e-3, 2.8e-3), 131072: (8e-3, 8e-3)},
            "bf16": {0: (2.0e-2, 2.0e-2), 1000: (2.2e-2, 2.2e-2), 131072: (2.2e-2, 2.2e-2)},
        },
    ),
    "E rounded inv_freq": (
        ["hf-model-cast"],
        {
            "fp16": {0: (5.7e-2, 5.7e-2), 1000: (5.7e-2, 5.7e-2), 131072: (5.7e-2, 5.7e-2)},
            "bf16": {0: (0.32, 0.32), 1000: (0.32, 0.32), 131072: (0.32, 0.32)},
        },
    ),
    "F recurrence in float32": (
        ["llamacpp-cpu"],
        {
            "fp32": {0: (5e-5, 5e-5), 2**20: (0.15, 0.15)},
            "fp16": {0: (1.6e-3, 1.6e-3), 1000: (1.8e-3, 1.8e-3), 131072: (2.2e-2, 2.2e-2)},
        },
    ),
    "G float64 angles": (
        ["diffusers-flux"],
        {
            "fp32": {0: (3.1e-7, 3.1e-7), 2**20: (3.1e-7, 3.1e-7)},
            "fp16": {0: (1.6e-3, 1.6e-3), 1000: (1.7e-3, 1.7e-3), 131072: (1.6e-3, 1.6e-3)},
            "bf16": {0: (1.2e-2, 1.2e-2), 1000: (1.2e-2, 1.2e-2), 131072: (1.3e-2, 1.3e-2)},
        },
    ),
}


def one(offset: int, dtype: str, recipe: str = "uniform", **kwargs: Any) -> Record:
    (record,) = shift(offset, dtype, recipe, **kwargs)
    return record


def test_defaults_in_bfloat16_keep_36_positions() -> None:
    hf, uniform = shift(1000, "bf16")
    assert (hf.implementation, hf.distinct_positions) == ("hf", 256)
    assert (uniform.implementation, uniform.distinct_positions) == ("uniform", 36)


def test_float16_overflows_at_131072() -> None:
    record = one(131072, "fp16")
    assert record.nonfinite == record.scores == 8 * 256 * 257 // 2
    assert record.verdict == "overflow"
    assert np.isnan(record.drift_rms)
    assert np.isnan(record.change_max)


def test_stack_overflow_77310576() -> None:
    """Question 77310576: float64 scores by distance 14, 12.16070923, 8.33341272; float16 self-drift."""
    base = one(0, "fp64", **SNIPPET)
    distances = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    exact = (1**2 + 3**2) * np.cos(distances * 0.01) + (0**2 + 2**2) * np.cos(distances)
    assert [round(x, 8) for x in exact[0, :3]] == [14.0, 12.16070923, 8.33341272]
    assert base.reference_rms == pytest.approx(np.sqrt((exact**2).mean()), rel=1e-6)
    assert base.drift_max < 1e-14
    drifts = {offset: one(offset, "fp16", **SNIPPET).change_max for offset in (1000, 2000, 2049)}
    assert drifts == {1000: 0.0234375, 2000: 0.015625, 2049: 5.6796875}


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    recipes, expected = FAMILIES[family]
    for dtype, figures in expected.items():
        changes = {"accumulate": "fp64", "score": "fp64"}
        for record in shift(figures, dtype, recipes, mask="full", changes=changes):
            low, high = figures[record.offset]
            assert 0.75 * low <= record.drift_max <= 1.25 * high, (
                record.implementation,
                dtype,
                record.offset,
            )


def test_a_cast_inv_freq_is_shift_invariant_and_wrong() -> None:
    """inv_freq cast to bf16: a healthy self-drift, several times the drift, in proportion to the distance."""
    for seq_len, times in ((256, 5.4), (336, 7.0), (512, 10.6)):
        healthy, cast = shift(131072, "bf16", ["hf", "hf-model-cast"], seq_len=seq_len)
        assert cast.change_rms == pytest.approx(healthy.change_rms, rel=0.05)
        assert cast.drift_rms / healthy.drift_rms == pytest.approx(times, rel=0.05)


def test_float64_angles_remove_the_offset() -> None:
    near, farther = shift((0, 2**20), "fp32", "fp64-angles")
    assert farther.drift_rms == pytest.approx(near.drift_rms, rel=0.05)


def test_offsets_of_either_sign_drift_alike() -> None:
    up, down = shift((100_000, -100_000), "fp32", "hf")
    assert down.drift_rms == pytest.approx(up.drift_rms, rel=0.2)
