"""Every drift, at the public door, against `oracle`: exact arithmetic written apart from the package."""

import math
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from typing import Any

import numpy as np
import oracle
import pytest
from cases import first_fast, table

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


def audits(row: dict[str, Any]) -> Iterator[Audit]:
    """Yield the audits of a row: one a dtype, and one a form of frequencies."""
    more = {name: value for name, value in row.items() if name not in ("dtypes", "forms", "offsets")}
    for dtype in row["dtypes"]:
        for form in FORMS if row.get("forms") else [None]:
            changes = {"frequency_form": form} if form else row.get("changes", {})
            yield Audit(**more | {"dtype": dtype, "offsets": tuple(row["offsets"]), "changes": changes})


FORMS = ("inverse_power", "power", "divide", "step_power", "recurrence", "exp", "exp2")
AUDITS = {
    kind: [audit for row in rows for audit in audits(row)]
    for kind, rows in table(__file__, "audits.toml").items()
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
