"""Every drift, at the public door, against `oracle`: exact arithmetic written apart from the package."""

import math
import random
import tomllib
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from typing import Any

import numpy as np
import oracle
import pytest
from cases import first_fast

import ropeaudit

CLOSE = 1e-4  # relative; all but float64 agree to 1e-7, float64 to 1e-6
COLUMNS = (
    "drift_max",
    "drift_rms",
    "drift_mean_abs",
    "change_max",
    "change_rms",
    "reference_rms",
)
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")
NARROW = ("float16", "bfloat16")
RECIPES = tomllib.loads(resources.files("ropeaudit.data").joinpath("recipes.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Audit:
    """One recipe, dtype, setting and pair of q and k; the offsets share a call."""

    recipe: str
    dtype: str
    offsets: tuple[int, ...] = (0, 1000)
    changes: dict[str, str] = field(default_factory=dict)
    heads: int = 1
    kv_heads: int = 1
    seq_len: int = 6
    head_dim: int = 8
    rotary_dim: int | None = None
    base: float = 10000.0
    layout: str = "half"
    mask: str = "causal"
    scale: float | None = None
    size: float = 1.0
    seed: int = 0

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """q and k in float64, so that the input stage has something to round."""
        draw = random.Random(self.seed)
        q, k = (
            [
                [[draw.gauss(0.0, self.size) for _ in range(self.head_dim)] for _ in range(self.seq_len)]
                for _ in range(heads)
            ]
            for heads in (self.heads, self.kv_heads)
        )
        return np.array(q), np.array(k)

    def rope(self) -> oracle.Rope:
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        scale = 1.0 / math.sqrt(self.head_dim) if self.scale is None else self.scale
        return oracle.Rope(self.head_dim, rotary_dim, self.base, self.layout, scale)

    def model(self) -> oracle.Model:
        return oracle.Model(RECIPES[self.recipe] | self.changes, self.dtype, self.rope())

    def expect(self, offset: int, q: np.ndarray, k: np.ndarray) -> oracle.Expected:
        return oracle.audit(self.model(), q.tolist(), k.tolist(), offset, self.mask == "causal")

    def measure(self, tmp_path: Any, q: np.ndarray, k: np.ndarray) -> list[Any]:
        path = tmp_path / "qk.npz"
        np.savez(path, q=q, k=k)
        setting = {"rotary_dim": self.rotary_dim, "base": self.base, "layout": self.layout}
        result = ropeaudit.shift(
            self.offsets,
            self.dtype,
            self.recipe,
            changes=self.changes,
            threads=1,
            qk=str(path),
            mask=self.mask,
            scale=self.scale,
            **setting,
        )
        return list(result)


def differences(expected: oracle.Expected, record: Any) -> list[str]:
    requested, wrong = expected.columns, []
    for name in ("distinct_positions", "scores"):
        if getattr(record, name) != requested[name]:
            wrong.append(f"{name}: expected {requested[name]}, seen {getattr(record, name)}")
    if record.nonfinite != expected.nonfinite:
        wrong.append(f"nonfinite: expected {expected.nonfinite}, seen {record.nonfinite}")
    for name in COLUMNS:
        if getattr(record, name) != pytest.approx(requested[name], rel=CLOSE, abs=0.0, nan_ok=True):
            wrong.append(f"{name}: expected {requested[name]!r}, seen {getattr(record, name)!r}")
    slack = CLOSE * requested["drift_mean_abs"]
    if record.drift_bias != pytest.approx(requested["drift_bias"], rel=0.0, abs=slack, nan_ok=True):
        wrong.append(f"drift_bias: expected {requested['drift_bias']!r}, seen {record.drift_bias!r}")
    if not expected.nonfinite and requested["drift_max"]:
        worst = expected.drift[record.worst_head, record.worst_query, record.worst_key]
        if abs(worst) != pytest.approx(requested["drift_max"], rel=CLOSE):
            wrong.append(f"worst_*: a drift of {worst!r}, not the largest")
    return wrong


def wrong(audit: Audit, tmp_path: Any) -> dict[int, list[str]]:
    """Return offset -> columns that are not as expected."""
    q, k = audit.draw()
    found = {}
    for offset, record in zip(audit.offsets, audit.measure(tmp_path, q, k), strict=True):
        assert record.offset == offset
        if result := differences(audit.expect(offset, q, k), record):
            found[offset] = result
    return found


UNIFORM = (
    Audit("uniform", "float64", (0, 1000, 2049, 131072, -77, 2**20, 2**40, 2**53 - 6), heads=2, kv_heads=2),
    Audit("uniform", "float32", (0, 1000, 2049, 131072, -77, 2**24 - 3, -(2**40)), heads=2, kv_heads=2),
    Audit("uniform", "tf32", (0, 1000, 2049, 131072, -77)),
    Audit("uniform", "float16", (0, 1000, 2049, -77), heads=2),
    Audit("uniform", "bfloat16", (0, 1000, 2049, 131072, -77), heads=2),
    Audit("uniform", "float8_e4m3", (0, 7, 100, -77), base=100.0),
    Audit("uniform", "float8_e5m2", (0, 7, 1000, 2049, -77)),
    *(Audit("uniform", d, (0, 1000, -77), layout="interleaved", mask="full", seed=1) for d in DTYPES),
    *(Audit("uniform", d, (0, 30), head_dim=12, rotary_dim=4, seed=2) for d in DTYPES),
    *(Audit("uniform", d, (0, 30), {"rotation_rounding": "once"}, base=100.0, seed=3) for d in DTYPES),
    *(Audit("uniform", d, (0, 30), {"accumulate": "fp64"}, base=100.0, seed=4) for d in DTYPES),
    Audit("uniform", "float64", (131, 44268, 348198), seed=6),  # libm's float64 sin and cos are not correct
    Audit("uniform", "float32", (0, 131072), heads=4, kv_heads=2, seq_len=5, layout="interleaved"),
    Audit("uniform", "bfloat16", (0, 1000), heads=2, kv_heads=1, seq_len=8, head_dim=16, rotary_dim=8),
    Audit("uniform", "float64", (0, 131072), heads=2, kv_heads=1, head_dim=16, rotary_dim=10),
)


FLOAT64_POSITIONS = (0, 1000, -77, 131072, 2**20)
NAMED = (
    *(Audit("hf", d, (0, 1000, 131072), heads=2, kv_heads=1) for d in ("float32", *NARROW)),
    *(Audit("hf-sdpa", d, (0, 2049), layout="interleaved") for d in ("float64", *NARROW)),
    *(Audit("hf-model-cast", d, (0, 1000)) for d in ("float64", *NARROW)),
    *(Audit("hf-tf32-matmul", d, (0, 1000, 131072)) for d in ("float32", "bfloat16")),
    *(Audit("hf-4.31-table", d, (0, 1000, -77)) for d in ("float32", *NARROW)),
    *(Audit("hf-autocast-bf16", d, (0, 1000)) for d in ("float32", *NARROW)),
    *(Audit("meta", d, (0, 1000, 131072), layout="interleaved") for d in ("float32", "bfloat16")),
    *(Audit("vllm-cuda", d, (0, 2049), head_dim=12, rotary_dim=8) for d in NARROW),
    *(Audit("flash-attn-pre-2023-07", d, (0, 1000)) for d in NARROW),
    *(Audit("te-fused", d, (0, 1000)) for d in ("bfloat16", "float8_e4m3", "float8_e5m2")),
    *(Audit("gpt-neox-te", d, (0, 1000)) for d in NARROW),
    *(Audit("rotary-embedding-torch", d, (0, 1000), layout="interleaved") for d in NARROW),
    *(Audit("x-transformers-cast", d, (0, 1000)) for d in NARROW),
    *(Audit("llamacpp-cpu", d, (0, 1000, 131072)) for d in ("float32", "float16")),
    *(Audit("llamacpp-cpu", d, (0, 131072), head_dim=12, seed=5) for d in ("float32", "float16")),
    *(Audit("llamacpp-cuda", d, (0, 1000, 131072)) for d in ("float32", "float16")),
    *(Audit("llamacpp-cuda", d, (0, 131072), head_dim=12, seed=5) for d in ("float32", "float16")),
    *(Audit("mlx-fallback", d, (0, 131072), head_dim=12) for d in ("float32", "float16")),
    *(Audit("maxtext", d, (0, 131072), head_dim=12) for d in ("float32", "bfloat16")),
    *(Audit("gemma-jax", d, (0, 131072), head_dim=12) for d in ("float32", "bfloat16")),
    *(Audit("keras-hub", d, (0, 131072), head_dim=12) for d in ("float32", "bfloat16")),
    *(Audit("xformers-f64", d, FLOAT64_POSITIONS, heads=2) for d in ("float64", "float32", "bfloat16")),
    *(Audit("trtllm", d, (0, 131072), head_dim=12) for d in ("float64", "float32", "float16")),
    *(Audit("fp64-angles", d, FLOAT64_POSITIONS) for d in ("float64", "float32", *NARROW)),
    *(Audit("diffusers-flux", d, (0, 131072)) for d in ("float64", "bfloat16")),
    *(Audit("fp16-table-in-bf16", d, (0, 1000)) for d in ("float32", "bfloat16")),
)


FORMS = ("inverse_power", "power", "divide", "step_power", "recurrence", "exp", "exp2")


AUDITS: dict[str, tuple[Audit, ...]] = {
    "uniform": UNIFORM,
    "named_recipe": NAMED,
    "frequency_form": (
        *(Audit("uniform", "float64", (0, 131072), {"frequency_form": form}, head_dim=12) for form in FORMS),
        *(Audit("hf-sdpa", "float32", (0, 131072), {"frequency_form": form}, head_dim=20) for form in FORMS),
        *(Audit("hf-sdpa", "float32", (0, 131072), {"frequency_form": form}, base=5e5) for form in FORMS),
        *(
            Audit("hf-4.31-table", "float16", (0, 100), {"frequency_form": form}, head_dim=12)
            for form in FORMS
        ),
        *(Audit("uniform", "float8_e5m2", (0, 7), {"frequency_form": form}, head_dim=12) for form in FORMS),
    ),
    "accumulator": (
        *(Audit("hf", d, (0, 1000), {"accumulate": "fp16"}, heads=2) for d in ("float32", *NARROW)),
        *(Audit("hf", d, (0, 1000), {"accumulate": "bf16"}, kv_heads=2, heads=2) for d in NARROW),
        *(Audit("hf-sdpa", d, (0, 1000), {"accumulate": "fp16"}, mask="full") for d in NARROW),
        *(Audit("hf-sdpa", d, (0, 1000), {"accumulate": "bf16"}, mask="full") for d in NARROW),
        *(Audit("hf", d, (0, 1000), {"accumulate": "fp64"}, head_dim=16) for d in ("float32", *NARROW)),
        *(Audit("hf-sdpa", d, (0, 1000), {"accumulate": "fp64"}) for d in ("float32", *NARROW)),
        Audit("hf-sdpa", "float16", (0, 1000), {"accumulate": "tf32"}),
        Audit("hf-sdpa", "float16", (0, 1000), {"accumulate": "e5m2", "score": "fp32"}),
        Audit("uniform", "float64", (0, 1000), {"accumulate": "fp32"}),
        Audit("uniform", "float64", (0, 1000), {"accumulate": "bf16", "score": "fp64"}),
    ),
    "scale_and_store": (
        Audit("hf", "bfloat16", (0, 1000), {"scale_after_store": "false"}, scale=0.3),
        Audit("hf", "float16", (0, 1000), {"scale_after_store": "true"}, scale=0.3),
        Audit("hf-sdpa", "bfloat16", (0, 1000), {"scale_after_store": "true", "score": "e4m3"}, scale=0.3),
        Audit("hf", "float16", (0, 1000), scale=1.0),
        Audit("hf-sdpa", "float32", (0, 1000), {"score": "fp64"}, scale=0.3),
        Audit("hf", "float64", (0, 1000), {"score": "bf16"}, scale=0.3),
        Audit("hf", "float32", (0, 1000), {"accumulate": "fp64", "score": "fp32"}, scale=0.3),
    ),
    "stages_in_formats_of_their_own": (
        Audit("uniform", "bfloat16", (0, 1000), {"rotation_rounding": "once", "rotation": "fp32"}),
        Audit("hf", "float16", (0, 1000), {"rotation_rounding": "once", "table": "fp32"}),
        Audit("hf", "float32", (0, 1000), {"rotation_rounding": "once", "rotation": "fp64"}),
        Audit("hf", "bfloat16", (0, 1000), {"rotation": "fp16", "table": "fp32"}),
        Audit("hf", "float32", (0, 1000), {"rotation": "fp16", "output": "fp64"}),
        Audit("hf", "float16", (0, 1000), {"output": "e4m3"}, head_dim=12, rotary_dim=4),
        Audit("hf", "float16", (0, 1000), {"input": "e5m2"}),
        Audit("hf", "float64", (0, 1000), {"frequency": "fp64/fp32", "angle": "fp64/tf32"}),
        Audit("hf", "float32", (0, 1000), {"frequency": "bf16/fp32", "angle": "tf32/fp64"}),
        Audit("hf", "float32", (0, 7), {"frequency": "fp16/bf16", "angle": "bf16/fp16"}),
        Audit("hf", "bfloat16", (0, 1000), {"trig": "e4m3", "table": "none"}),
        Audit("hf", "float32", (0, 300), {"position": "e5m2", "angle": "fp16/e4m3"}),
    ),
    "range": (
        Audit("uniform", "float16", (65514,), mask="full"),  # the last positions become infinite
        Audit("uniform", "float16", (131072,)),
        Audit("uniform", "float8_e4m3", (0, 7), base=10000.0),  # 1000 is not in the format: a nan frequency
        Audit("uniform", "float8_e4m3", (460, 1000), base=100.0),
        Audit("uniform", "float16", (0, 1000), head_dim=16, base=500000.0),  # the power overflows: angle 0
        Audit("hf", "float16", (0, 1000), size=150.0, heads=2),  # some scores overflow
        Audit("hf-sdpa", "float16", (0, 1000), {"accumulate": "fp16"}, size=150.0),
        Audit("hf", "float8_e4m3", (0, 1000), size=20.0),
        Audit("hf", "float8_e5m2", (0, 1000), size=150.0, mask="full"),
        Audit("hf", "float16", (0, 1000), size=3e-4),  # subnormal scores
        Audit("meta", "float16", (0, 1000), size=1e-6),  # subnormal q and k
        Audit("hf", "float8_e4m3", (0, 1000), size=0.02),
        Audit("hf", "float32", (0,), seq_len=1),
        Audit("hf", "float32", (2**30,), rotary_dim=0),
    ),
    "the_exponent_of_a_step_is_rounded": (
        *(Audit(name, "float32", (0, 131072), head_dim=24) for name in ("llamacpp-cpu", "llamacpp-cuda")),
        *(
            Audit(name, "float32", (0, 131072), base=5e5, head_dim=12)
            for name in ("llamacpp-cpu", "llamacpp-cuda")
        ),
    ),
}


@pytest.mark.parametrize("kind", first_fast(AUDITS))
def test_drift_is_that_of_exact_arithmetic(kind: str, tmp_path: Any) -> None:
    found = [(audit, wrong(audit, tmp_path)) for audit in AUDITS[kind]]
    assert [(audit, columns) for audit, columns in found if columns] == []


def check_pair(audit: Audit, q: list[float], k: list[float], tmp_path: Any) -> None:
    """One query and one key at the audit's offset."""
    arrays = np.array([[q]]), np.array([[k]])
    (record,) = audit.measure(tmp_path, *arrays)
    assert not differences(audit.expect(audit.offsets[0], *arrays), record)


def test_a_product_of_a_narrow_and_a_wide_number_is_rounded_once(tmp_path: Any) -> None:
    """1.6171875 * float32(cos 100) is close to a tie of bfloat16; rounded to float32 it is the tie."""
    audit = Audit("fp64-angles", "bfloat16", (100,), {"score": "fp32"})
    check_pair(audit, [1.6171875] + [0.0] * 7, [1.0] * 8, tmp_path)


def test_a_rotation_that_is_rounded_once_is_exact_until_then(tmp_path: Any) -> None:
    """a cos is a tie of bfloat16, which b sin, 2^-62 of it, breaks: float64 does not hold their sum."""
    changes = {"rotation_rounding": "once", "table": "fp64", "trig": "fp64", "score": "fp32", "input": "fp32"}
    audit = Audit("fp64-angles", "bfloat16", (1,), changes, base=1e24, head_dim=4)
    check_pair(audit, [0.0, 1 + 3 * 2.0**-8, 0.0, 2.0**-22], [1.0] * 4, tmp_path)


def test_a_narrow_accumulator_is_exact_until_its_rounding(tmp_path: Any) -> None:
    """The second product is just below half an ulp of the sum: the sum is no tie of bfloat16."""
    audit = Audit("uniform", "float32", (0,), {"accumulate": "bf16"}, head_dim=4)
    q = [1 + 2.0**-7, 1 + 2.0**-23, 0.0, 0.0]
    check_pair(audit, q, [1.0, 2.0**-8 * (1 - 2.0**-23), 1.0, 1.0], tmp_path)


@pytest.mark.parametrize("power", [30, 31, 32, 33])
def test_a_product_that_float64_does_not_hold_breaks_a_tie_of_a_narrow_accumulator(
    power: int, tmp_path: Any
) -> None:
    audit = Audit("uniform", "float64", (0,), {"accumulate": "bf16"}, head_dim=4)
    q = 1 + 2.0**-power
    k = (1 + 2.0**-8) / q
    assert q * k == 1 + 2.0**-8  # a tie, were it not for the rest
    assert Fraction(q) * Fraction(k) != 1 + Fraction(1, 256)
    check_pair(audit, [q, 0.0, 0.0, 0.0], [k, 1.0, 1.0, 1.0], tmp_path)
