"""Parity: two subjects against each other and against the exact scores, the notes, the command."""

import json

import numpy as np
import pytest
from command_line import ran

from ropeaudit import parity, parse, shift
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.parity import analysis
from ropeaudit.features.parity.analysis import row as parity_row
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

SMALL = ["--heads", "2", "--seq-len", "96"]


def compare(first, second, dtype="bf16", offsets=(0,), **case):
    given = {"heads": 2, "seq_len": 96} | case
    return [parity_row(one) for one in parity(first, second, offsets, dtype, **given)]


def test_the_order_of_the_two_changes_signs_alone() -> None:
    (one,), (other,) = compare("hf", "vllm-cuda"), compare("vllm-cuda", "hf")
    assert (one["parity_max"], one["parity_rms"]) == (other["parity_max"], other["parity_rms"])
    assert one["parity_bias"] == -other["parity_bias"]
    assert one["nearer"] == other["nearer"] == "vllm-cuda"
    assert (one["a_nearer"], one["a_drift_max"]) == (other["b_nearer"], other["b_drift_max"])
    assert one["worst_query"] == other["worst_query"]


def brute(name: str, some: qk.Inputs, setting: RopeSetting, offset: int) -> np.ndarray:
    """All scores at once, with float64 sums of rotated vectors; scores are stored as vllm-cuda does."""
    subject = Emulated(named(name).resolve(parse("bf16")), setting)
    table = subject.table(np.arange(some.q.shape[1]), offset)
    q, k = (
        np.stack([subject.rotate(round_to(head, subject.input), table) for head in x]).astype(np.float64)
        for x in (some.q, some.k)
    )
    return np.einsum("hmd,hnd->hmn", q, k) * setting.scale


def test_parity_is_the_difference_of_all_scores_at_once() -> None:
    some, setting = qk.make("gaussian", 2, 2, 600, RopeSetting.of(128), 0), RopeSetting.of()
    difference = brute("vllm-cuda", some, setting, 1000) - brute("trtllm", some, setting, 1000)
    difference *= np.tril(np.ones((600, 600)))
    (result,) = compare("vllm-cuda", "trtllm", offsets=(1000,), seq_len=600)
    assert difference.any()
    assert result["scores"] == 2 * 600 * 601 // 2
    assert result["parity_rms"] == pytest.approx(np.sqrt((difference**2).sum() / result["scores"]), rel=1e-3)
    place = np.unravel_index(np.abs(difference).argmax(), difference.shape)
    assert (result["worst_head"], result["worst_query"], result["worst_key"]) == place
    assert result["parity_max"] == pytest.approx(np.abs(difference).max(), rel=1e-3)


def test_inputs_rounded_differently_get_a_reference_each(tmp_path, capsys) -> None:
    generator = np.random.default_rng(1)
    path = tmp_path / "qk.npz"
    np.savez(path, q=generator.standard_normal((2, 20, 64)), k=generator.standard_normal((2, 20, 64)))
    command = ["parity", "hf[input=fp32]", "hf", "--qk", f"{path}", "--offset", "0", "-f", "csv"]
    seen = ran(capsys, command)
    assert "hf[input=fp32] rounds q and k to float32, hf to bfloat16" in seen.err
    assert "own reference" in seen.err
    (result,) = seen.rows
    own = next(iter(shift(0, "bf16", "hf", qk=str(path))))
    assert float(result["b_drift_rms"]) == pytest.approx(own.drift_rms, rel=1e-3)
    assert main([*command, "--set", "input=bf16"]) == 0
    assert "own reference" in capsys.readouterr().err  # the side's own change has the last word
    assert main(["parity", "hf[table=fp32]", "hf", "--qk", f"{path}", "--offset", "0", "-f", "csv"]) == 0
    assert capsys.readouterr().err == ""


def test_changes_of_one_side_and_of_both() -> None:
    assert analysis.subject("hf[angle=fp64,table=fp32]", {}).name == "hf[angle=fp64 table=fp32]"
    assert analysis.subject("hf[angle=fp64]", {"score": "fp32"}).name == "hf[score=fp32 angle=fp64]"
    assert analysis.subject("hf[score=fp64]", {"score": "fp32"}).stages["score"] == "fp64"
    for bad in ("hf[]", "[angle=fp64]", "hf[angle]"):
        with pytest.raises(UsageError):
            analysis.subject(bad, {})
    with pytest.raises(UnknownName):
        analysis.subject("hf[angel=fp64]", {})


def test_two_files_of_one_name_are_told_apart(tmp_path, capsys) -> None:
    for folder, text in (("a", 'table = "fp32"'), ("b", 'table = "bf16"')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.toml").write_text(f'extends = "hf"\n{text}\n')
    first, second = (f"{tmp_path / folder / 'own.toml'}" for folder in "ab")
    results = ran(capsys, ["parity", first, second, *SMALL, "-f", "csv"]).rows
    assert {(one["a"], one["b"]) for one in results} == {(first, second)}
    assert {one["nearer"] for one in results} <= {first, second, "equal"}


def test_lost_scores_are_a_finding(capsys) -> None:
    command = ["parity", "uniform", "hf", "--dtype", "fp16", "--offset", "0,128k", *SMALL]
    seen = ran(capsys, [*command, "-f", "json"])
    report = json.loads(seen.out)
    assert "9,312 of 9,312 scores of uniform are nan or infinite (offset 131,072)" in report["headline"]
    assert [one["nearer"] for one in report["records"]] == ["hf", "hf"]
    assert report["records"][1]["a_nonfinite"] == 9312
    assert ran(capsys, ["parity", "uniform", "uniform", *command[3:], "-f", "csv"]).rows[1]["nearer"] == ""


def test_clipped_angles_are_judged_at_their_positions() -> None:
    (result,) = compare("hf", "hf-sdpa", "fp64", (500,), clip=100.0)
    assert 0 < result["a_drift_rms"] < 1e-4
