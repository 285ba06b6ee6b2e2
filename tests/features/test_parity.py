"""Parity: recipes and code against each other and against the exact scores, what is said, the command."""

import numpy as np
import pytest
from command_line import ran

from ropeaudit import parity, parse, shift
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.parity.analysis import report as parity_report
from ropeaudit.features.parity.analysis import row as parity_row
from ropeaudit.inputs import qk
from ropeaudit.recipes import named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

KERNELS = "paired_kernels.py"
SMALL = ["--heads", "2", "--seq-len", "96"]


def compare(first, second, dtype="bf16", offsets=0, **case):
    given = {"heads": 2, "seq_len": 96} | case
    return [parity_row(one) for one in parity(first, second, offsets, dtype, **given)]


def of_code(a, b, dtype="fp32", offset=1000, **case):
    given = {"heads": 2, "seq_len": 64, "head_dim": 32} | case
    [result] = parity(a, b, offset, dtype, **given)
    return parity_row(result), parity_report([result], None, {})


def test_the_order_of_the_two_changes_signs_alone() -> None:
    (one,), (other,) = compare("hf", "vllm-cuda"), compare("vllm-cuda", "hf")
    for name in ("parity_max", "parity_rms", "worst_query"):
        assert one[name] == other[name]
    for name in ("nearer", "drift_max"):
        assert one[f"a_{name}"] == other[f"b_{name}"]
    assert one["parity_bias"] == -other["parity_bias"]
    assert one["nearer"] == other["nearer"] == "vllm-cuda"


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
    a, b = (brute(name, some, setting, 1000) for name in ("vllm-cuda", "trtllm"))
    apart = np.abs(a - b) * np.tril(np.ones((600, 600)))
    assert apart.any()
    (result,) = compare("vllm-cuda", "trtllm", offsets=1000, seq_len=600)
    assert result["scores"] == 2 * 600 * 601 // 2
    rms = np.sqrt((apart**2).sum() / result["scores"])
    assert result["parity_rms"] == pytest.approx(rms, rel=1e-3)
    assert result["parity_max"] == pytest.approx(apart.max(), rel=1e-3)
    place = [result[f"worst_{name}"] for name in ("head", "query", "key")]
    assert np.ravel_multi_index(place, apart.shape) == apart.argmax()


def test_offsets_are_the_ends_of_what_a_model_serves() -> None:
    one_head = {"heads": 1, "seq_len": 16}
    assert [one["offset"] for one in compare("hf", "meta", offsets=None, **one_head)] == [0, 131072]
    served = compare("hf", "meta", offsets=None, model="llama-2-7b", **one_head)
    assert [one["offset"] for one in served] == [0, 4096 - 16]


def test_inputs_rounded_differently_get_a_reference_each(tmp_path, capsys) -> None:
    path = f"{tmp_path / 'qk.npz'}"
    q, k = np.random.default_rng(1).standard_normal((2, 2, 20, 64))
    np.savez(path, q=q, k=k)
    rest = ["hf", "--qk", path, "--offset", "0", "-f", "csv"]
    seen = ran(capsys, ["parity", "hf[input=fp32]", *rest])
    assert "hf[input=fp32] rounds q and k to float32, hf to bfloat16" in seen.err
    assert "own reference" in seen.err
    [own] = shift(0, "bf16", "hf", qk=path)
    drift = float(seen.rows[0]["b_drift_rms"])
    assert drift == pytest.approx(own.drift_rms, rel=1e-3)
    both = ran(capsys, ["parity", "hf[input=fp32]", *rest, "--set", "input=bf16"])
    assert "own reference" in both.err
    assert ran(capsys, ["parity", "hf[table=fp32]", *rest]).err == ""


def test_changes_of_one_side_and_of_both() -> None:
    for typed, changes, expected in (
        ("hf[angle=fp64,table=fp32]", {}, "hf[angle=fp64 table=fp32]"),
        ("hf[angle=fp64]", {"score": "fp32"}, "hf[score=fp32 angle=fp64]"),
        ("hf[score=fp64]", {"score": "fp32"}, "hf[score=fp64]"),  # the side's own has the last word
    ):
        [one] = compare(typed, "meta", changes=changes, seq_len=8)
        assert one["a"] == expected
    for bad in ("hf[]", "[angle=fp64]", "hf[angle]", "hf[angel=fp64]"):
        with pytest.raises((UsageError, UnknownName)):
            compare(bad, "hf")


def test_two_files_of_one_name_are_told_apart(tmp_path, capsys) -> None:
    for folder, text in (("a", 'table = "fp32"'), ("b", 'table = "bf16"')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.toml").write_text(f'extends = "hf"\n{text}\n')
    first, second = (f"{tmp_path / folder / 'own.toml'}" for folder in "ab")
    results = ran(capsys, ["parity", first, second, *SMALL, "-f", "csv"]).rows
    assert {(one["a"], one["b"]) for one in results} == {(first, second)}
    assert {one["nearer"] for one in results} <= {first, second, "equal"}


def test_lost_scores_are_a_finding(capsys) -> None:
    rest = ["--dtype", "fp16", "--offset", "0,128k", *SMALL]
    report = ran(capsys, ["parity", "uniform", "hf", *rest, "-f", "json"]).json
    said = "9,312 of 9,312 scores of uniform are nan or infinite"
    assert f"{said} (offset 131,072)" in report["headline"]
    assert [one["nearer"] for one in report["records"]] == ["hf", "hf"]
    assert report["records"][1]["a_nonfinite"] == 9312
    rows = ran(capsys, ["parity", "uniform", "uniform", *rest, "-f", "csv"]).rows
    assert rows[1]["nearer"] == ""


def test_clipped_angles_are_judged_at_their_positions() -> None:
    (result,) = compare("hf", "hf-sdpa", "fp64", 500, clip=100.0)
    assert 0 < result["a_drift_rms"] < 1e-4


def test_code_and_recipes_in_any_mix_and_layout(spec) -> None:
    """Each gets its own layout: code pairs halves, neighbours, or takes one and returns the other."""
    pairs = ["half interleaved", "half permuting", "interleaved permuting", "half half"]
    for first, other in map(str.split, pairs):
        seen, report = of_code(spec(first), spec(other), seq_len=80, kv_heads=1)
        assert seen["parity_max"] == seen["bits_differing"] == 0, (first, other)
        assert seen["a_drift_rms"] < 1e-6
        [answer] = report.answers
        assert (answer.status, answer.decides) == ("OK", "the same bits in 1 case")
        told = any("dims are permuted for it and back" in note for note in report.notes)
        assert told == (first == "half" != other), (first, other)
    for a, b in (("hf", spec("half")), (spec("half"), "hf"), ("fp64-angles", spec("interleaved"))):
        seen, report = of_code(a, b)
        assert (seen["a"], seen["b"]) == (a, b)
        assert max(seen["a_drift_rms"], seen["b_drift_rms"]) < 1e-4
        assert len([note for note in report.notes if "are formed in" in note]) == 1


def test_a_layout_that_is_requested_is_given_to_both_and_a_model_keeps_its_own(spec) -> None:
    seen, report = of_code(spec("half"), spec("interleaved"), layout="half")
    assert seen["b_drift_rms"] > 0.1 > 1e-6 > seen["a_drift_rms"]
    assert any("it is audited as half, as asked" in note for note in report.notes)
    case = {"model": "llama-2-7b", "head_dim": 32, "heads": 2}
    seen, _ = of_code(spec("interleaved"), "hf[output=int8:channel]", **case)
    assert (seen["layout"], seen["a_drift_rms"] < 1e-6) == ("half", True)
    [stored] = shift(1000, "fp32", "hf", changes={"output": "int8:channel"}, seq_len=64, **case)
    assert seen["b_drift_rms"] == pytest.approx(stored.drift_rms, rel=1e-6)  # its keys are not permuted


def test_opposite_directions_are_said(spec) -> None:
    for first, other in (("half", "backward"), ("backward", "half"), ("backward", "backward")):
        seen, report = of_code(spec(first), spec(other))
        [answer] = report.answers
        assert seen["parity_max"] == 0
        if first == other:
            assert (answer.status, answer.causes) == ("OK", [])
            continue
        assert (answer.status, answer.decides) == ("WARN", "mirrored, the same bits in 1 case")
        [cause] = answer.causes
        assert cause.title.endswith(":half rotates q and k by theta, paired_kernels.py:backward by -theta")
        assert "a checkpoint of one, or a cache of its keys, does not fit the other" in cause.facts[1]


def test_k_is_rotated_as_k(spec) -> None:
    seen, _ = of_code(spec("half"), spec("other_k"))
    assert seen["b_drift_rms"] > 0.1 > 1e-6 > seen["a_drift_rms"]
    assert 0.3 < seen["bits_differing"] <= 0.5  # k alone, and not where it turns by nothing


def test_bits_are_counted_once_an_element_however_many_panels(monkeypatch) -> None:
    from ropeaudit.engine import plan

    case = {"heads": 4, "kv_heads": 2, "seq_len": 100, "head_dim": 32, "mask": "full"}
    [whole] = parity("hf", "meta", 3, "bf16", **case)
    assert whole.statistics.elements == (4 + 2) * 100 * 32
    monkeypatch.setattr(plan, "PANEL", 32)
    [cut] = parity("hf", "meta", 3, "bf16", **case)
    assert cut.statistics.elements == whole.statistics.elements
    assert cut.statistics.differing == whole.statistics.differing > 0
    assert cut.statistics.difference.rms == pytest.approx(whole.statistics.difference.rms, rel=1e-2)
    assert cut.statistics.winner() == whole.statistics.winner()


def test_what_refuses_or_raises_is_a_row_and_a_line(spec, capsys) -> None:
    command = ["parity", "hf", spec("picky"), "--dtype", "fp16,fp32", "--offset", "0", "--head-dim", "32"]
    report = ran(capsys, [*command, "-f", "json"]).json
    refused, fine = report["records"]
    assert "picky refuses: TypeError: float16 is not taken" in refused["refused"]
    assert (refused["nearer"], refused["parity_rms"], fine["refused"]) == (None, None, "none")
    assert "float16 is not taken (fp16)" in report["headline"]
    assert "float16 at offset 0: " in " ".join(report["notes"])
    seen, report = of_code(spec("holey"), "hf", offset=0)
    assert seen["refused"] == "a call fails: ValueError: a hole"
    assert report.headline.endswith("offset 0: a call fails: ValueError: a hole")


def test_what_cannot_be_changed_is_said(spec) -> None:
    for a, b, changes in (
        (spec("half") + "[table=bf16]", "hf", None),
        (spec("half"), spec("interleaved"), {"table": "bf16"}),
    ):
        with pytest.raises(UsageError, match=r"no stage can be changed|takes no tables"):
            of_code(a, b, changes=changes)
