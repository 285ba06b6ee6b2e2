"""Parity of code: recipes, named implementations and own functions, in any mix and layout."""

import json

import pytest
from command_line import ran

from ropeaudit import parity
from ropeaudit.errors import UsageError
from ropeaudit.features.parity.analysis import report as parity_report
from ropeaudit.features.parity.analysis import row as parity_row

KERNELS = "paired_kernels.py"
SMALL = {"heads": 2, "seq_len": 64, "head_dim": 32}


def row(a, b, dtype="fp32", offset=1000, **case):
    [result] = parity(a, b, offset, dtype, **(SMALL | case))
    return parity_row(result), parity_report([result], None, {})


@pytest.mark.parametrize(
    ("first", "other"), [("half", "interleaved"), ("half", "permuting"), ("interleaved", "permuting")]
)
def test_layouts_do_not_matter_where_each_gets_its_own(first, other, spec) -> None:
    seen, report = row(spec(first), spec(other), seq_len=80, kv_heads=1)
    assert seen["parity_max"] == seen["bits_differing"] == 0
    assert seen["a_drift_rms"] < 1e-6
    assert [(one.status, one.decides) for one in report.answers] == [("OK", "the same bits in 1 case")]
    told = any("dims are permuted for it and back" in note for note in report.notes)
    assert told == (first == "half")


def test_a_layout_that_is_requested_is_given_to_both(spec) -> None:
    seen, report = row(spec("half"), spec("interleaved"), layout="half")
    assert seen["b_drift_rms"] > 0.1 > 1e-6 > seen["a_drift_rms"]
    assert any("it is audited as half, as asked" in note for note in report.notes)


def test_a_model_keeps_its_layout_and_code_its_own(spec) -> None:
    case = {"model": "llama-2-7b", "head_dim": 32, "heads": 1}
    seen, _ = row(spec("interleaved"), "hf", "fp32", 0, **case)
    assert seen["layout"] == "half"
    assert seen["a_drift_rms"] < 1e-6


@pytest.mark.parametrize(
    ("a", "b"), [("hf", "half"), ("half", "hf"), ("half", "half"), ("fp64-angles", "interleaved")]
)
def test_recipes_and_code_in_any_mix(a, b, spec) -> None:
    typed = [spec(name) if name in ("half", "interleaved") else name for name in (a, b)]
    seen, report = row(*typed)
    assert [seen["a"], seen["b"]] == typed
    assert max(seen["a_drift_rms"], seen["b_drift_rms"]) < 1e-4
    forms = [note for note in report.notes if "are formed in" in note]
    assert len(forms) == (a != b)


def test_k_is_rotated_as_k(spec) -> None:
    seen, _ = row(spec("half"), spec("other_k"))
    assert seen["b_drift_rms"] > 0.1 > 1e-6 > seen["a_drift_rms"]
    assert 0.3 < seen["bits_differing"] <= 0.5  # k alone, and not where it turns by nothing


def test_bits_are_counted_once_an_element_however_many_panels(monkeypatch, spec) -> None:
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


def test_a_dtype_that_is_refused_is_a_row_and_a_line(spec, capsys) -> None:
    command = ["parity", "hf", spec("picky"), "--dtype", "fp16,fp32", "--offset", "0", "--head-dim", "32"]
    seen = ran(capsys, [*command, "-f", "json"])
    report = json.loads(seen.out)
    refused, fine = report["records"]
    assert "picky refuses: TypeError: float16 is not taken" in refused["refused"]
    assert (refused["nearer"], fine["refused"]) == (None, "none")
    assert "float16 is not taken (fp16)" in report["headline"]
    assert "float16 at offset 0: " in " ".join(report["notes"])
    first = ran(capsys, [*command, "--dtype", "fp16", "-f", "csv"]).rows[0]
    assert first["parity_rms"] == "nan"


def test_code_that_raises_in_the_middle_is_refused_there(spec) -> None:
    seen, report = row(spec("holey"), "hf", offset=0)
    assert seen["refused"] == "a call fails: ValueError: a hole"
    assert report.headline.endswith("offset 0: a call fails: ValueError: a hole")


def test_what_cannot_be_changed_is_said(spec) -> None:
    for a, b, changes in (
        (spec("half") + "[table=bf16]", "hf", None),
        (spec("half"), spec("interleaved"), {"table": "bf16"}),
    ):
        with pytest.raises(UsageError, match=r"no stage can be changed|takes no tables"):
            list(parity(a, b, 0, "fp32", changes=changes, **SMALL))
