"""--under on the command line and in Python: rows, sentences, files, refusals; and the pytest helper."""

import csv
import io
from pathlib import Path

import kernels_environments
import pytest
from cases import table
from command_line import ran

from ropeaudit import shift
from ropeaudit.errors import UsageError
from ropeaudit.main import main
from ropeaudit.testing import assert_shift_invariant

KERNELS = Path(kernels_environments.__file__)
SMALL = ["--heads", "1", "--seq-len", "64", "--head-dim", "32"]
MATMUL = f"{KERNELS}:by_matmul"


def test_report_against_and_resume_tell_environments_apart(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["shift", "--impl", MATMUL, "--dtype", "fp32", "--offset", "1000", *SMALL, "-q", "-f", "csv"]
    assert main([*command, "-o", "clean.csv"]) == 0
    both = [*command, "--under", "autocast:bf16", "-o", "both.csv"]
    ran(capsys, both)
    rows = ran(capsys, ["report", "both.csv", "--against", "clean.csv", "-f", "csv", "-q"]).rows
    assert [(one["environment"], one["status"]) for one in rows] == [("autocast:bf16", "new")]
    whole = Path("both.csv").read_bytes()
    Path("clean.csv").replace("both.csv")
    assert main([*both, "--resume"]) == 0
    assert Path("both.csv").read_bytes() == whole
    rows = list(csv.DictReader(io.StringIO(whole.decode())))
    assert [one["environment"] for one in rows] == ["none", "autocast:bf16"]
    assert float(rows[0]["drift_relative"]) < 1e-4 < float(rows[1]["drift_relative"])


def test_what_cannot_be_had_is_refused_with_its_reason() -> None:
    for name, under, reason in table(__file__, "under.toml")["refused"]:
        code = name.format(matmul=MATMUL)
        rows = list(shift(0, "fp16", implementations=code, under=under, heads=1, seq_len=64, head_dim=32))
        assert [row.refused for row in rows] == [None, "unsupported"]
        assert rows[1].why.startswith(reason)


@pytest.mark.slow
def test_check_runs_them_and_names_what_to_change(capsys) -> None:
    command = ["check", MATMUL, "--up-to", "300", "--head-dim", "32", "-f", "json"]
    report = ran(capsys, command).json  # right code is not wrong for environments that nobody requested
    rows = {one["check"]: one for one in report["records"]}
    assert rows["under autocast:bf16"]["status"] == rows["under tf32:emulated"]["status"] == "info"
    assert rows["under default-dtype:bf16"]["status"] == "pass"
    assert report["headline"].startswith(f"WARN {MATMUL}: ")
    report = ran(capsys, [*command, "--under", "autocast:bf16,tf32"], 1).json
    rows = {one["check"]: one for one in report["records"]}
    assert rows["under autocast:bf16"]["status"] == rows["under tf32:emulated"]["status"] == "fail"
    assert "autocast off" in rows["under autocast:bf16"]["remedy"]
    assert rows["rotation"]["status"] == "pass"
    assert main([*command, "--under", "none"]) == 0


def test_the_helper_tests_each_environment_and_names_the_one_that_fails() -> None:
    few = {"dtype": "fp32", "offsets": [0], "head_dim": 32, "heads": 1, "whole": False}
    assert_shift_invariant(kernels_environments.elementwise, under=["autocast:bf16", "tf32"], **few)
    assert_shift_invariant(kernels_environments.by_mm, **few)
    with pytest.raises(AssertionError, match=r"under autocast:bf16: a rotated pair is off by"):
        assert_shift_invariant(kernels_environments.by_mm, under="autocast:bf16", **few)
    with pytest.raises(UsageError, match="under goes with a function that rotates"):
        assert_shift_invariant(scores=lambda q, k, at: q @ k, under="tf32")
    assert not __import__("torch").is_autocast_enabled("cpu")
