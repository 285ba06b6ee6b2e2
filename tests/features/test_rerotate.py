"""Re-rotated keys: the measured row of the literature, what grows, the norm, the command."""

import csv
import io
import json
import math

import numpy as np
import pytest
from rerotated import measure

from ropeaudit import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UsageError
from ropeaudit.features.rerotate import analysis
from ropeaudit.features.rerotate.report import COLUMNS
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

# Measured with an independent script: head_dim 128, base 1e4, bf16 tables and keys, float32 rotation and
# scores: the recipe vllm-cuda. Steps of -16 -> RMS drift; +13 % key norm after 256.
MEASURED = {1: 3.8e-3, 16: 2.2e-2, 64: 8.0e-2, 256: 0.33}
SMALL = ["--heads", "1", "--seq-len", "64"]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_measured_row() -> None:
    results = measure("vllm-cuda", list(MEASURED), heads=4, seq_len=192)
    assert [one["steps"] for one in results] == list(MEASURED)
    for one in results:
        assert one["drift_rms"] == pytest.approx(MEASURED[one["steps"]], rel=0.15)
        assert one["reference_rms"] == pytest.approx(1, abs=0.05)
    assert results[-1]["key_norm_growth"] == pytest.approx(0.13, rel=0.15)


def test_a_float32_table_does_not_lengthen_keys() -> None:
    (wide,), (narrow,) = measure("meta", [128]), measure("vllm-cuda", [128])
    assert wide["drift_rms"] < 0.5 * narrow["drift_rms"]
    assert abs(wide["key_norm_growth"]) < 0.005 < 0.03 < narrow["key_norm_growth"]


def test_the_norm_grows_by_the_table_of_the_step() -> None:
    """Every step multiplies pair i by sqrt(cos² + sin²) of the stored cos and sin."""
    subject = Emulated(named("vllm-cuda").resolve(parse("bf16")), RopeSetting.of())
    cos, sin = (x.astype(np.float64) for x in subject.table(np.zeros(1, dtype=np.int64), -16))
    (result,) = measure("vllm-cuda", [64], changes={"output": "fp32"})
    k = qk.make("gaussian", 2, 2, 128, RopeSetting.of(128), 0).k
    length = np.hypot(cos, sin)[0] ** 64
    grown = np.linalg.norm(k * np.concatenate([length, length]), axis=2) / np.linalg.norm(k, axis=2)
    assert result["key_norm_growth"] == pytest.approx(grown.mean() - 1, rel=0.02)


def test_no_step_is_the_fresh_rotation() -> None:
    (result,) = measure("hf", [0])
    assert result["from_fresh_max"] == 0
    assert result["drift_rms"] == result["fresh_drift_rms"] > 0
    assert abs(result["key_norm_growth"]) < 1e-3


@pytest.mark.parametrize("by", [-16, 16, -1, 1000])
def test_float64_barely_drifts(by) -> None:
    results = measure("fp64-angles", [1, 20], by, "fp64")
    assert all(one["drift_max"] < 1e-9 for one in results)
    assert [one["position"] for one in results] == ([-19 * by, 0] if by < 0 else [by, 20 * by])


def test_keys_are_turned_one_step_after_the_other_from_stored_values() -> None:
    """Written down anew: three steps of +5 with the recipe hf, one head, all scores at once."""
    some, setting = qk.make("gaussian", 1, 1, 40, RopeSetting.of(128), 0), RopeSetting.of()
    subject = Emulated(named("hf-sdpa").resolve(parse("bf16")), setting)
    positions = np.arange(40, dtype=np.int64)
    q = subject.rotate(round_to(some.q[0], subject.input), subject.table(positions, 15))
    k = subject.rotate(round_to(some.k[0], subject.input), subject.table(positions, 0))
    for _ in range(3):
        k = subject.rotate(k, subject.table(np.full(40, 5), 0))
    fresh = subject.rotate(round_to(some.k[0], subject.input), subject.table(positions, 15))
    difference = np.tril(q.astype(np.float64) @ (k.astype(np.float64) - fresh).T) / math.sqrt(128)
    (result,) = measure("hf-sdpa", [3], 5, heads=1, seq_len=40)
    assert result["from_fresh_rms"] == pytest.approx(
        math.sqrt((difference**2).sum() / result["scores"]), rel=1e-4
    )
    assert result["from_fresh_max"] == pytest.approx(np.abs(difference).max(), rel=1e-3)


def test_an_attention_factor_comes_in_once() -> None:
    result = measure("meta", [0, 50], dtype="fp32", scaling="yarn:factor=4,original=32768")
    assert abs(result[1]["key_norm_growth"]) < 1e-5
    assert result[1]["drift_relative"] < 1e-3
    assert result[1]["reference_rms"] > 1.2  # the factor is there: 1.1386²


def test_groups_layouts_and_axes() -> None:
    for case in (
        {"heads": 4, "kv_heads": 2, "layout": "interleaved", "rotary_dim": 64},
        {"mrope": "16,24,24", "axis": "t"},
    ):
        (result,) = measure("fp64-angles", [10], dtype="fp64", **case)
        assert result["drift_max"] < 1e-9


def test_panels_do_not_change_the_result(monkeypatch) -> None:
    (whole,) = measure("hf", [4])
    monkeypatch.setattr(analysis.plan, "PANEL", 48)
    (cut,) = measure("hf", [4])
    assert cut["drift_rms"] == pytest.approx(whole["drift_rms"], rel=1e-2)
    assert cut["key_norm_growth"] == whole["key_norm_growth"]


def test_clipped_angles_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out clip"):
        measure("hf", [1], clip=100.0)


def test_steps_are_counted_upwards_and_each_once() -> None:
    assert [one["steps"] for one in measure("hf", [3, 1, 3], seq_len=16)] == [1, 3]


def test_zero_keys_have_no_norm_to_grow(tmp_path) -> None:
    path = tmp_path / "qk.npz"
    np.savez(path, q=np.ones((1, 4, 8)), k=np.zeros((1, 4, 8)))
    (result,) = measure("hf", [2], qk=str(path), heads=None, seq_len=None)
    assert math.isnan(result["key_norm_growth"])
    assert result["drift_max"] == 0


def test_the_command(capsys) -> None:
    command = ["rerotate", "--recipe", "vllm-cuda,meta", "--steps", "1,128", "--by", "-16", "--dtype", "bf16"]
    assert main([*command, "--heads", "2", "--seq-len", "96", "-f", "json"]) == 0
    seen = capsys.readouterr()
    report = json.loads(seen.out)
    assert [(one["subject"], one["steps"]) for one in report["records"]] == [
        ("vllm-cuda", 1),
        ("vllm-cuda", 128),
        ("meta", 1),
        ("meta", 128),
    ]
    assert list(report["records"][0]) == list(COLUMNS)
    assert report["headline"].startswith("128 steps of -16 with vllm-cuda in bfloat16 drift by 0.1")
    assert "times a fresh rotation; key norms change by +" in report["headline"]
    assert "multiplies a pair by sqrt(cos² + sin²) as stored" in seen.err
    assert "or a wider table and rotation" in seen.err
    assert "meta bfloat16" not in seen.err


def test_a_lost_run_is_a_finding(capsys) -> None:
    command = ["rerotate", "--recipe", "uniform", "--steps", "1", "--by", "-70000", "--dtype", "fp16", *SMALL]
    assert main(command) == 0
    seen = capsys.readouterr()
    assert "2080 of 2080 scores that are nan or infinite" in seen.out
    assert "rotate keys afresh" in seen.err


def test_files_and_columns(tmp_path, capsys) -> None:
    table, data = tmp_path / "a.txt", tmp_path / "b.csv"
    command = ["rerotate", "--recipe", "hf", *SMALL, "--steps", "1-4*2", "-q"]
    assert main([*command, "-o", f"{table}", "-o", f"{data}"]) == 0
    assert table.read_text(encoding="utf-8") == capsys.readouterr().out
    assert [one["steps"] for one in rows(data.read_text(encoding="utf-8"))] == ["1", "2", "4"]
    assert main([*command, "--columns", "steps,by", "-f", "csv"]) == 0
    assert capsys.readouterr().out.replace("\r", "") == "steps,by\n1,-16\n2,-16\n4,-16\n"


def test_an_interrupted_run_keeps_what_is_done(monkeypatch, capsys) -> None:
    real, calls = analysis._growth, []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(analysis, "_growth", broken)
    assert main(["rerotate", *SMALL, "--steps", "1,2,3,4", "-f", "csv"]) == 130
    seen = capsys.readouterr()
    assert len(rows(seen.out)) == 2
    assert "interrupted: 2 rows" in seen.err


@pytest.mark.parametrize(
    ("options", "error_line"),
    [
        (["--steps", "-1"], "--steps -1 is not a number from 0"),
        (["--steps", "1e9"], "--steps 1000000000"),
        (["--by", "x"], "--by 'x' is not a whole number"),
        (["--by", "2^53"], "past 2^53"),
        (["--clip", "10"], "leave out --clip"),
        (["--recipe", "none-such"], "unknown recipe"),
        (["--dtype", "fp17"], "unknown number format"),
        (["--set", "angle"], "is not STAGE=FORMAT"),
        (["--columns", "drift"], "unknown column"),
        (["-f", "xml"], "unknown report format"),
    ],
)
def test_bad_input_gets_one_line(options, error_line, tmp_path, capsys) -> None:
    assert main(["rerotate", *options, "-o", f"{tmp_path / 'x.csv'}"]) == 2
    seen = capsys.readouterr()
    assert error_line in seen.err
    assert seen.err.count("\n") == 1
    assert seen.out == ""
    assert list(tmp_path.iterdir()) == []
