"""Up to where: the range of a setting is what it serves, in every command, and both its numbers are said."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import table
from command_line import ran
from net.kernel_rows import KERNELS
from real_configs import config

from ropeaudit import Case, check, explain, limit, parse, vectors
from ropeaudit.features.explain import tracing
from ropeaudit.main import main
from ropeaudit.rope import scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.scaling import DEFAULT, KINDS, Served
from ropeaudit.rope.scaling import parse as scaling

TABLE = table(__file__, "served.toml")
YARN = TABLE["yarn"]
SAID = "4,096 positions (factor 4 × original 1,024; max_position_embeddings 1,024)"

KERNEL = (KERNELS / "called" / "yarn_kernel.py").read_text()
NUMBERS = "torch.ones(8), 1.0, 10**9"  # its frequencies, the factor of cos and sin, and its last position


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with m.json and two kernels of it, one right and one that clamps at half the range."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(json.dumps(YARN))
    setting = from_config(YARN, "m", "here").layers["full_attention"]
    theta = frequencies(setting, "inverse_power", parse("fp32")).tolist()
    for name, last in (("right", 10**9), ("clamps", 2047)):
        factor = scaled.attention_factor(setting.scaling)
        numbers = f"torch.tensor({theta}), {factor}, {last}"
        (tmp_path / f"{name}.py").write_text(KERNEL.replace(NUMBERS, numbers))
    return tmp_path


RANGES = [tuple(map(row.get, ("declared", "scaling", "positions"))) for row in TABLE["ranges"]]


@pytest.mark.parametrize(("declared", "text", "positions"), RANGES)
def test_what_a_setting_serves(declared, text, positions) -> None:
    served = Served(declared, scaling(text))
    assert served.positions == positions
    said = f"{positions:,} positions" if positions else "nothing says for how many positions"
    assert served.words.startswith(said)


def test_every_kind_of_scaling_has_a_range() -> None:
    assert {text.partition(":")[0] for _, text, _ in RANGES} == set(KINDS)


def test_the_layer_that_reaches_furthest_says_the_range_of_a_model() -> None:
    some = [DEFAULT, scaling("yarn:factor=2,original=64"), scaling("yarn:factor=4,original=64")]
    assert Served.of(64, some).positions == 256
    assert Served.of(64, []).positions == 64
    assert from_config(config("olmo-3-7b"), "o", "here").maximum == 65536


@pytest.mark.parametrize("outside", [True, False])
def test_the_original_length_of_linear_scaling_is_read_in_both_places(outside: bool) -> None:
    given, length = config("vicuna-7b-v1.5-16k"), {"original_max_position_embeddings": 4096}
    assert from_config(given, "v", "here").maximum == 4096
    (given if outside else given["rope_scaling"]).update(length)
    assert from_config(given, "v", "here").maximum == 16384


def test_a_scaling_by_hand_stands_before_that_of_the_model() -> None:
    assert Case(model="llama-2-7b", scaling="yarn:factor=4,original=4096").maximum == 16384
    assert Case(model="deepseek-v3", scaling="default").maximum == 163840
    assert Case(scaling="yarn:factor=4,original=32768").maximum == 131072
    assert Case(scaling="linear:factor=4").maximum is None
    assert Case().maximum is None


def findings(**options: Any) -> dict[str, Any]:
    results = list(check(**options, under="none"))
    return {one.finding.check: one for one in results}


@pytest.mark.slow  # a whole check
def test_check_of_code_sees_a_table_that_ends_within_the_range(yarn: Path, capsys) -> None:
    wrong = findings(targets="clamps.py:rope", config="m.json")
    assert any(one.finding.failed for one in wrong.values())
    assert next(iter(wrong.values())).up_to == 4096
    declared = findings(targets="clamps.py:rope", config="m.json", up_to=1024)
    assert not any(one.finding.failed for one in declared.values())
    seen = ran(capsys, ["check", "right.py:rope", "--config", "m.json", "--under", "none"])
    assert "positions 0 to 4,095" in seen.out


def test_limit_counts_the_range(yarn: Path) -> None:
    small = {"heads": 1, "seq_len": 8, "up_to": 8192, "budget": 64}
    (found,) = limit(recipes="hf", dtypes="fp32", config="m.json", **small)
    assert (found.case.maximum, found.within) == (4096, 4088)
    assert found.margin is not None
    assert found.margin > 2


def test_vectors_reach_the_end_of_the_range(yarn: Path) -> None:
    (written,) = vectors(str(yarn / "v"), config="m.json", seq_len=8, heads=2)
    assert written.spec.offsets[-1] + written.spec.seq_len == 4096
    assert written.notes == (f"m serves {SAID}",)


def test_shift_of_code_reaches_the_end_of_the_range(yarn: Path, capsys) -> None:
    words = ["--config", "m.json", "--heads", "2", "--kv-heads", "2", "--seq-len", "8"]
    words += ["--dtype", "fp32", "-f", "csv"]
    seen = ran(capsys, ["shift", "--impl", "clamps.py:rope", *words, "--columns", "offset,verdict"])
    rows = [line.split(",") for line in seen.out.splitlines()[1:]]
    assert rows[-1] == ["4088", "wrong_rotation"]
    assert [int(offset) for offset, verdict in rows if verdict == "wrong_rotation"] == [2043, 4088]
    assert SAID in seen.err
    assert "is past the" not in seen.err
    main(["shift", "--recipe", "hf", *words, "--offset", "4089"])
    assert "offset 4089 is past the 4,096 positions that it serves" in capsys.readouterr().err


def test_explain_of_code_compares_up_to_the_end_of_the_range(yarn: Path, capsys) -> None:
    assert tracing.usual_offsets(Case()) == tracing.OFFSETS
    case = Case(config="m.json")
    assert tracing.usual_offsets(case) == (0, 1024, 4096 - tracing.COMPARED)
    last = 1010000 - tracing.COMPARED
    assert tracing.usual_offsets(Case(model="qwen2.5-7b-instruct-1m")) == (*tracing.OFFSETS, last)
    small = {"heads": 2, "kv_heads": 2, "seq_len": 8}
    (found,) = explain(dtypes="fp32", implementations="clamps.py:rope", config="m.json", **small)
    assert list(found.trace.drifts) == [0, 1024, 4096 - tracing.COMPARED]
    words = ["--config", "m.json", "--heads", "2", "--seq-len", "8", "--dtype", "fp32", "--recipe", "hf"]
    assert SAID in ran(capsys, ["explain", *words]).out
