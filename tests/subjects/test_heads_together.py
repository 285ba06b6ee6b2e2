"""Code that treats one head of several otherwise is measured as it is called: with all heads at once."""

from __future__ import annotations

from pathlib import Path

import kernels_heads
import numpy as np
import pytest

from ropeaudit import limit, parity, shift
from ropeaudit.main import main
from ropeaudit.subjects.calling import code

FILE = kernels_heads.__file__
SIZES = {"heads": 4, "seq_len": 64, "head_dim": 32}


def drift(tmp_path: Path, name: str, heads: int, kv_heads: int, offset: int) -> tuple[float, Path]:
    """Return the relative RMS drift of a kernel, computed here, and the file of q and k that it is of."""
    rng = np.random.default_rng(3)
    q, k = (rng.standard_normal((n, 64, 32)).astype(np.float32) for n in (heads, kv_heads))
    np.savez(tmp_path / "qk.npz", q=q, k=k)
    at = np.arange(64)
    wrong = [x[0].astype(float) for x in getattr(kernels_heads, name)(q[None], k[None], at + offset)]
    exact = [kernels_heads.rot(x.astype(float), at) for x in (q, k)]
    seen = np.tril(np.ones((64, 64), bool))
    group = heads // kv_heads
    of_wrong, of_exact = (
        np.concatenate([(q[h] @ k[h // group].T)[seen] for h in range(heads)]) for q, k in (wrong, exact)
    )
    return float(np.sqrt(np.mean((of_wrong - of_exact) ** 2) / np.mean(of_exact**2))), tmp_path / "qk.npz"


@pytest.mark.parametrize(("name", "kv_heads"), [("last_query", 4), ("grouped", 2)])
def test_drift_is_that_of_all_heads_together(tmp_path, name, kv_heads) -> None:
    wanted, qk = drift(tmp_path, name, 4, kv_heads, 500)
    assert wanted > 0.3
    (row,) = shift(500, "fp32", implementations=f"{FILE}:{name}", qk=str(qk))
    assert row.drift_relative == pytest.approx(wanted, rel=1e-5)  # float32 against 0.3
    assert row.verdict == "wrong_rotation"
    (row,) = shift(500, "fp32", implementations=f"{FILE}:right", qk=str(qk))
    assert row.drift_relative < 1e-6


def test_parity_sees_a_head_that_one_of_two_treats_otherwise() -> None:
    (one,) = parity(f"{FILE}:right", f"{FILE}:last_query", 500, "fp32", **SIZES)
    assert one.statistics.difference.rms > 0.1
    (one,) = parity(f"{FILE}:right", f"{FILE}:grouped", 500, "fp32", kv_heads=2, **SIZES)
    assert one.statistics.difference.rms > 0.1
    (one,) = parity(f"{FILE}:right", f"{FILE}:right", 500, "fp32", **SIZES)
    assert one.statistics.difference.max == 0


def test_a_limit_has_the_value_of_all_heads() -> None:
    (one,) = limit("drift_relative=0.01", "fp32", implementations=f"{FILE}:last_query", up_to=100, **SIZES)
    assert one.fails_at_zero
    assert one.at_zero.drift_relative > 0.1


def test_code_that_moves_one_head_of_four_resembles_no_recipe(capsys) -> None:
    sizes = ["--heads", "8", "--seq-len", "32", "--offset", "10", "--dtype", "fp32", "-v"]
    assert main(["explain", f"{FILE}:fourth", *sizes]) == 0
    seen = capsys.readouterr()
    assert "does what no known recipe does; its stages get no shares" in seen.out
    assert "%            " not in seen.out


def test_what_is_too_large_for_one_call_is_called_head_by_head(monkeypatch) -> None:
    monkeypatch.setattr(code, "_LARGEST", 0)
    (row,) = shift(500, "fp32", implementations=f"{FILE}:last_query", **SIZES)
    assert row.verdict == "wrong_rotation"
    assert row.drift_relative < 1e-6
