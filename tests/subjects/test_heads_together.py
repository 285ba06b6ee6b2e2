"""Code that treats one head of several otherwise is measured as it is called: with all heads at once."""

from __future__ import annotations

import json
from pathlib import Path

import kernels_heads
import numpy as np
import pytest

from ropeaudit import RopeSetting, limit, parity, parse, shift
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.state import state
from ropeaudit.main import main
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import called

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


def test_state_is_looked_for_in_k_too() -> None:
    for name, status in (("stale_keys", "fail"), ("right", "pass")):
        own = factories.implementation(f"{FILE}:{name}")
        [finding] = state(CodeUnderTest(own, RopeSetting.of(64), parse("fp32"), 8192))
        assert finding.status == status
        assert finding.differing == 0 or ": k, " in finding.where


def test_code_that_moves_one_head_of_four_resembles_no_recipe(capsys) -> None:
    sizes = ["--heads", "8", "--seq-len", "32", "--offset", "10", "--dtype", "fp32", "-v"]
    assert main(["explain", f"{FILE}:fourth", *sizes]) == 0
    seen = capsys.readouterr()
    assert "does what no known recipe does; its stages get no shares" in seen.out
    assert "%            " not in seen.out


def test_what_is_too_large_for_one_call_is_called_head_by_head(monkeypatch) -> None:
    monkeypatch.setattr(called, "_LARGEST", 0)
    (row,) = shift(500, "fp32", implementations=f"{FILE}:last_query", **SIZES)
    assert row.verdict == "wrong_rotation"
    assert row.drift_relative < 1e-6


@pytest.mark.slow  # a whole check
def test_check_gives_k_fewer_heads_than_q(capsys) -> None:
    """Code that takes as many heads of k alone passes, and it is said."""
    few = ["--dtype", "fp32", "--up-to", "128", "--under", "none", "-q", "-f", "json"]
    rows: dict[str, dict[str, dict]] = {}
    assert main(["check", *(f"{FILE}:{name}" for name in ("grouped", "right", "alike")), *few]) == 1
    for row in json.loads(capsys.readouterr().out)["records"]:
        rows.setdefault(row["target"].rpartition(":")[2], {})[row["check"]] = row
    failed = {(name, row["check"]) for name in rows for row in rows[name].values() if row["status"] == "fail"}
    assert failed == {("grouped", "short calls"), ("grouped", "served calls")}
    short = {name: of_name["short calls"] for name, of_name in rows.items()}
    assert "head 1 of 2 alone: no rotation" in short["grouped"]["resembles"]
    assert "2 heads of k to 4 of q" in short["right"]["detail"]
    assert "with fewer heads of k than of q it raises ValueError" in short["alike"]["detail"]
