"""Sentences against the rows they speak of: a remedy that is named helps, a number is in the table."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from command_line import ran
from rerotated import measure

from ropeaudit import shift
from ropeaudit.main import main
from ropeaudit.reports import drift, settings, verdicts

TINY = {"heads": 1, "seq_len": 16, "head_dim": 16}
LONG = {"heads": 1, "seq_len": 32, "head_dim": 16}
WIDER = re.compile(r"compute (positions(?: and angles)?) in (float32|float64)\.")


def note_of(record) -> str:
    """Return what the reader must know of a row."""
    return "".join(verdicts.notes([record], lambda one: {}))


@pytest.mark.parametrize(
    ("offset", "dtype", "recipe"),
    [
        (1000, "bf16", "uniform"),
        (100_000, "bf16", "uniform"),
        (70_000, "fp16", "uniform"),
        (4096, "fp16", "hf-4.31-table"),
        (1000, "bf16", "hf-autocast-bf16"),
        (1000, "bf16", "rotary-embedding-torch"),
        (17 * 2**20, "fp32", "hf"),
        (17 * 2**20, "bf16", "vllm-cuda"),
    ],
)
def test_the_remedy_of_a_note_takes_nine_tenths_of_what_the_offset_adds(offset, dtype, recipe) -> None:
    (record,) = shift(offset, dtype, recipe, **LONG)
    stages, wide = WIDER.search(note_of(record)).groups()
    changes = {stage.rstrip("s"): wide for stage in stages.split(" and ")}
    (cured,) = shift(offset, dtype, recipe, changes=changes, **LONG)
    assert cured.distinct_positions == cured.seq_len
    assert not cured.nonfinite
    assert cured.drift_rms <= 2 * cured.floor_rms
    assert record.nonfinite or cured.drift_rms <= 0.1 * record.drift_rms


def test_positions_are_no_remedy_where_scores_are_lost_at_offset_0() -> None:
    (record,) = shift(1000, "fp8_e4m3", "uniform", **TINY)
    note = note_of(record)
    assert WIDER.search(note) is None
    assert "which of position, frequency, angle" in note
    assert "softmax" not in note


def test_wider_stages_are_no_remedy_where_all_are_float32(tmp_path) -> None:
    """The scores are 1e60: float32 holds none of them, float64 all."""
    np.savez(tmp_path / "x.npz", q=np.full((1, 16, 16), 1e30), k=np.full((1, 16, 16), 1e30))
    case = {"recipes": "hf", "qk": str(tmp_path / "x.npz")}
    (record,) = shift(0, "fp32", **case)
    assert "every score is nan or infinite; float32 does not hold these numbers: try --dtype fp64." in (
        note_of(record)
    )
    (cured,) = shift(0, "fp64", **case)
    assert not cured.nonfinite


def test_positions_are_no_remedy_for_code_that_clamps_them(tmp_path, capsys) -> None:
    """Exact positions past the end of its table merge too: which format they have does not matter."""
    (tmp_path / "k.py").write_text(
        "import numpy as np\n"
        "def f(x: np.ndarray, positions: np.ndarray) -> np.ndarray:\n"
        "    a = np.minimum(positions, 1000)[:, None] * 1e4 ** (-np.arange(8) / 8)\n"
        "    y = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * a)\n"
        "    return np.concatenate([y.real, y.imag], -1).astype(x.dtype)\n"
    )
    size = ["--heads", "1", "--seq-len", "16", "--head-dim", "16", "--offset", "5000", "--dtype", "bf16"]
    seen = ran(capsys, ["shift", "--impl", f"{tmp_path / 'k.py'}:f", *size])
    assert "keep positions" not in seen.out + seen.err
    assert "a table that ends at position 1000" in seen.out


@pytest.mark.slow  # a whole check
def test_what_is_wrong_at_several_offsets_is_one_note_of_the_worst(tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef turn(x, positions):\n    return np.array(x, np.float64)\n"
    )
    command = ["shift", "--heads", "1", "--head-dim", "8", "--seq-len", "4", "--layout", "half"]
    command += ["--dtype", "fp64,fp16", "--offset", "0,1,2", "--impl", f"{tmp_path / 'mine.py'}:turn"]
    report = json.loads(ran(capsys, [*command, "-f", "json"]).out)
    notes = [note for note in report["notes"] if "wrongly" in note]
    for note, dtype in zip(notes, ("float64", "float16"), strict=True):
        same = [row for row in report["records"] if row["dtype"] == dtype]
        worst = max(same, key=lambda row: row["rotation_excess"])
        assert f"turn in {dtype} at offset {worst['offset']} (and at 2 others, no worse) rotates pair" in note


@pytest.mark.parametrize(("dtype", "scale"), [("fp16", 1e-8), ("bf16", 1e-6), ("fp8_e5m2", 1e-4)])
def test_careful_code_attains_what_it_is_said_to_where_scores_are_subnormal(dtype, scale) -> None:
    (record,) = shift(0, dtype, "meta", heads=2, seq_len=48, scale=scale)
    assert 0.3 < record.excess < 2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_angles_at_the_clip_are_predicted_to_round_alike(dtype) -> None:
    for sample in (None, 1000):
        (record,) = shift(102_400, dtype, "meta", heads=2, seq_len=64, clip=3.0, sample=sample)
        assert record.drift_rms == pytest.approx(record.predicted_rms, rel=0.2)


def test_the_norm_of_keys_is_kept_by_what_the_note_says(capsys) -> None:
    (narrow,) = measure("hf", [64], changes={"table": "fp32"})
    (cured,) = measure("hf", [64], changes={"table": "fp32", "rotation": "fp32"})
    assert narrow["key_norm_growth"] > 0.005 > 5 * abs(cured["key_norm_growth"])
    command = ["shift", "--recipe", "hf", "--rerotate", "64", "--turn", "16", "--dtype", "fp8_e4m3"]
    assert main([*command, "--heads", "1", "--seq-len", "32", "--offset", "1024", "-v"]) == 0
    assert re.search(r"key norms change by \+\d{3} %", capsys.readouterr().out)


def test_the_error_stands_against_the_scaling_that_was_guessed(tmp_path, capsys) -> None:
    np.save(tmp_path / "inv_freq.npy", (1e4 ** -(np.arange(0, 128, 2) / 128) / 8).astype("f4"))
    main(["module", str(tmp_path / "inv_freq.npy"), "-f", "json"])
    (row,) = json.loads(capsys.readouterr().out)["records"]
    assert row["against"] == "base 10000, scaling linear(factor=8) (guessed)"
    assert 0 < row["largest_error"] < 1e-7


def test_every_stage_that_alone_loses_scores_is_said_to_overflow(capsys) -> None:
    command = ["explain", "--recipe", "uniform", "--dtype", "fp16", "--offset", "65500", "--heads", "1"]
    assert main([*command, "--seq-len", "64", "--head-dim", "16", "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["records"]
    stages = [row for row in rows if row["alone_rms"] is None or math.isnan(row["alone_rms"])]
    assert {row["stage"] for row in stages} >= {"position", "angle"}
    assert {row["cause"] for row in stages} == {"overflow"}


def test_a_drift_within_the_tolerance_is_not_what_a_headline_blames() -> None:
    """Where a pair alone is off, though a recipe explains it, the sentence says where."""
    [row] = shift([1000], ["fp16"], ["hf"], heads=1, seq_len=32, head_dim=16)
    place = {
        "rotation_side": "k",
        "rotation_batch": 1,
        "rotation_head": 0,
        "rotation_position": 1001,
        "rotation_pair": 1,
    }
    off = replace(row, rotation_excess=25.2, within_tolerance=False, resembles="tf32 angles", **place)
    assert off.drift_relative < off.tolerance
    answer = drift.answer([off])
    assert answer.status == "FAIL"
    assert answer.decides.startswith("rotates wrongly in fp16 at offset 1,000")
    assert "pair 1 of k at position 1001, head 0, batch element 1" in answer.causes[0].facts[0]
    assert "error 25.2× the rounding allowance" in answer.causes[0].facts[0]


def test_a_rotary_dim_of_all_dims_is_not_named() -> None:
    rows = [dict.fromkeys(settings.NAMES, 0) for _ in range(2)]
    rows[1] |= {"head_dim": 64, "rotary_dim": 64}
    own = settings.shared_and_own(rows, ())[1]
    assert own == ["head_dim 0", "head_dim 64"]
