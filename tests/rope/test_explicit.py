"""`--scaling explicit` from end to end: frequencies given by hand against mpmath and plain NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from ropeaudit.audits.cases import Case
from ropeaudit.main import main
from ropeaudit.rope import scaling

THETAS = (1.0, 0.3, 0.07, 0.0021)
SPEC = "explicit:frequencies=1;0.3;0.07;0.0021"
SIZES: dict[str, Any] = {"heads": 1, "seq_len": 6, "head_dim": 8}


def row(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    sizes = [word for name, value in SIZES.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert main(["shift", *sizes, "--mask", "full", "--recipe", "uniform", "-q", "-f", "json", *flags]) == 0
    (result,) = json.loads(capsys.readouterr().out)["records"]
    return result


def exact(factor: float = 1.0) -> np.ndarray:
    """The scores from the formula, with 40 digits: no code of the package but q and k."""
    inputs, _ = Case(**SIZES, scaling=SPEC).load()
    q, k = (x[0].astype(np.float64) for x in (inputs.q, inputs.k))
    q, k = (x.astype(np.float32).astype(np.float64) for x in (q, k))  # as the input stage keeps them
    scores = np.empty((6, 6))
    with mpmath.workdps(40):
        for m in range(6):
            for n in range(6):
                pairs = [
                    mpmath.mpc(q[m, i], q[m, i + 4])
                    * mpmath.mpc(k[n, i], -k[n, i + 4])
                    * mpmath.expj((m - n) * mpmath.mpf(theta))
                    for i, theta in enumerate(THETAS)
                ]
                scores[m, n] = float(mpmath.fsum(pair.real for pair in pairs) * factor**2 / mpmath.sqrt(8))
    return scores


def emulated(offset: int, dtype: Callable[..., Any] = np.float32) -> np.ndarray:
    """The scores as plain NumPy computes them in a dtype: angles, cos and sin, rotation, product."""
    inputs, _ = Case(**SIZES, scaling=SPEC).load()
    angles = (np.arange(6, dtype=dtype) + dtype(offset))[:, None] * np.array(THETAS, dtype=dtype)
    cos, sin = (f(angles.astype(np.float64)).astype(dtype) for f in (np.cos, np.sin))
    rotated = []
    for x in (inputs.q[0].astype(dtype), inputs.k[0].astype(dtype)):
        a, b = x[:, :4], x[:, 4:]
        rotated.append(np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1))
    return (rotated[0] @ rotated[1].T).astype(np.float64) / np.sqrt(8)


def test_the_row_says_the_frequencies_and_the_attention_factor(capsys) -> None:
    spec = f"{SPEC},attention_factor=1.5"
    result = row(capsys, "--scaling", spec, "--dtype", "fp32", "--offset", "0")
    assert result["reference_rms"] == pytest.approx(np.sqrt((exact(1.5) ** 2).mean()), rel=1e-6)
    assert scaling.parse(result["scaling"]) == scaling.parse(spec)


@pytest.mark.parametrize("offset", [5000, -70000])
def test_the_drift_is_that_of_plain_numpy_with_those_frequencies(offset: int, capsys) -> None:
    result = row(capsys, "--scaling", SPEC, "--dtype", "fp32", "--offset", str(offset))
    drift = emulated(offset) - exact()
    assert result["drift_rms"] == pytest.approx(np.sqrt((drift**2).mean()), rel=0.01)
    assert result["drift_max"] == pytest.approx(np.abs(drift).max(), rel=0.01)


def test_frequencies_in_the_dtype_are_rounded_to_it(capsys) -> None:
    """bfloat16 has no 0.3: rounded frequencies are wrong at offset 0 already."""
    flags = ["--scaling", SPEC, "--dtype", "fp32", "--offset", "0", "--set", "frequency=bf16"]
    assert row(capsys, *flags)["drift_rms"] > 100 * row(capsys, *flags[:-2])["drift_rms"]
