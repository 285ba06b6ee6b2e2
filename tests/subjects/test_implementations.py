"""Real implementations, called: the families that they measure like, what they refuse, their layouts."""

import json
import os
import subprocess
import sys
import traceback
from dataclasses import replace

import numpy as np
import pytest
from cases import first_fast
from command_line import ran
from planted import Planted, plant, rotated

from ropeaudit import RopeSetting, parse, shift
from ropeaudit.errors import ForeignError, MissingPackage, UnknownName, UsageError
from ropeaudit.main import main
from ropeaudit.rope.scaling import parse as read_scaling
from ropeaudit.subjects import third_party
from ropeaudit.subjects.third_party import ENTRIES, adapter

pytestmark = pytest.mark.usefixtures("in_process")  # each package is imported once, not in each child
# their pins exclude those of others, or are never needed -> the family of their figures
HEAVY = {
    **dict.fromkeys(("litgpt", "llama-models", "gemma", "tunix-llama3", "tunix-gemma3", "tunix-gemma4"), "A"),
    **dict.fromkeys(("equinox", "torchtune", "torchtitan", "fairseq2", "timm"), "A"),
    **dict.fromkeys(("megatron-core", "tunix-qwen3", "easydel", "equinox-dtype", "keras-hub", "esm"), "C"),
    **dict.fromkeys(("flash-attn", "vllm", "sglang", "sglang-float32", "mlx-lm"), "C"),
    "torchtune-cast": "B",
    **dict.fromkeys(("openvino", "openvino-fp16"), ""),  # in float32 alone
}
# tables that are repeated by halves, whatever the layout; frequencies rounded to float16
WRONG = {("esm", "interleaved"), ("openvino-fp16", "half")}
LIGHT = sorted(set(ENTRIES) - set(HEAVY))
POSITIONS = np.array([1000, 1001, 1002, 7, 9, 4000])


def installed(name: str) -> str:
    if name in HEAVY and not ENTRIES[name].installed:
        pytest.skip(f"{name} is not installed: {ENTRIES[name].install}")
    return name


def called(name: str, x: np.ndarray, positions: np.ndarray, setting: RopeSetting, dtype="fp32"):
    one = third_party.implementation(name)
    assert one.refuses(setting, parse(dtype)) == ""
    return one.rotator(setting, parse(dtype)).rotate_both(x[None], x[None], positions)[0][0]


# (implementation, dtype) -> largest |drift| at offsets 0, 1000, 131072 (float32: 0, 2^20), d=128, base 1e4,
# 8 heads x 256², gaussian, full mask, measured once by a script that shares no code with the audit, but
# onnxruntime at 131072 (no growth, by reasoning) and rotary-embedding-torch (its first cells: family A)
A16, A_BF = (1.7e-3, 1.8e-3, (7e-3, 10e-3)), (1.2e-2, 1.2e-2, 1.4e-2)
B_BF, C16, C_BF = (1.6e-2, 1.7e-2, 1.8e-2), (2.6e-3, 2.8e-3, 8e-3), (2.0e-2, 2.2e-2, 2.2e-2)
A32 = ((1.2e-5, 1.5e-5), 6.4e-2)
FAMILIES = {
    ("x-transformers", "fp32"): A32,
    ("x-transformers", "fp16"): A16,
    **{
        (name, "bf16"): A_BF
        for name in ("x-transformers", "transformers-llama4", "diffusers-1d", "mistral-inference")
    },
    ("transformers-cohere", "fp16"): (2.1e-3, 2.0e-3, (8e-3, 9e-3)),
    ("transformers-cohere", "bf16"): B_BF,
    # its tables are the caller's: ours are float64, rounded once, so nothing grows with the offset
    ("onnxruntime", "fp16"): (2.1e-3, 2.0e-3, 2.0e-3),
    ("onnx-reference", "fp16"): (2.6e-3, 2.8e-3, 2.8e-3),  # C16, and nothing grows
    ("transformers-llama", "fp32"): A32,
    ("transformers-llama", "fp16"): C16,
    **{(name, "bf16"): C_BF for name in ("transformers-llama", "mlx")},
    ("rotary-embedding-torch", "fp16"): (1.7e-3, 1.8e-3, None),
    ("rotary-embedding-torch", "bf16"): (1.2e-2, (3.4, 4.5), (5.5, 6.1)),
    ("x-transformers-cast", "fp16"): (0.11, 0.77, None),
    ("x-transformers-cast", "bf16"): (0.91, (3.4, 4.5), (5.5, 6.1)),
    ("transformers-llama-cast", "fp16"): (5.7e-2, 5.7e-2, 5.7e-2),
    ("transformers-llama-cast", "bf16"): (0.32, 0.32, 0.32),
    ("ggml", "fp32"): (5e-5, 0.15),
    ("ggml", "fp16"): (1.6e-3, 1.8e-3, 2.2e-2),
    ("curated-transformers", "fp16"): (1.3e-5, 8.1e-5, 7.0e-3),  # it returns float32
    ("diffusers-flux", "fp32"): (3.1e-7, 3.1e-7),
    ("diffusers-flux", "bf16"): (1.2e-2, 1.2e-2, 1.3e-2),
}
OFFSETS = {"fp32": (0, 2**20), "fp16": (0, 1000, 131072), "bf16": (0, 1000, 131072)}


@pytest.mark.processor
@pytest.mark.parametrize(("name", "dtype"), first_fast(FAMILIES, 3))
def test_it_measures_like_its_family(name: str, dtype: str) -> None:
    rows = shift(OFFSETS[dtype], dtype, implementations=name, mask="full")
    for record, figure in zip(rows, FAMILIES[name, dtype], strict=True):
        assert record.version == ENTRIES[name].version
        if figure is None:
            assert (record.verdict, record.nonfinite) == ("overflow", record.scores)
            assert record.distinct_positions == 0
            continue
        low, high = figure if isinstance(figure, tuple) else (figure, figure)
        assert low / 1.25 <= record.drift_max <= 1.25 * high, record.offset


@pytest.mark.parametrize("name", sorted(name for name in HEAVY if HEAVY[name]))
def test_a_heavy_one_measures_like_its_family(name: str) -> None:
    figures = {"A": A_BF, "B": B_BF, "C": C_BF}[HEAVY[installed(name)]]
    for record, figure in zip(
        shift((0, 1000), "bf16", implementations=name, mask="full"), figures, strict=False
    ):
        assert record.drift_max == pytest.approx(figure, rel=0.25)


@pytest.mark.parametrize("name", LIGHT)
def test_the_light_ones_are_installed_in_ci(name: str) -> None:
    if not ENTRIES[name].installed and "CI" not in os.environ:
        pytest.skip(f"{name} is not installed: {ENTRIES[name].install}")
    assert ENTRIES[name].installed
    assert ENTRIES[name].version != "none"


@pytest.mark.parametrize("name", ENTRIES)
def test_positions_may_be_anything_in_every_layout(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    installed(name)
    for layout in ENTRIES[name].layouts:
        for part in (8, 4) if ENTRIES[name].partial else (8,):
            for text in ENTRIES[name].scalings[:2]:
                scaling = read_scaling("linear:factor=4" if text == "linear" else text)
                setting = RopeSetting.of(8, rotary_dim=part, layout=layout, scaling=scaling)
                result = called(name, x, POSITIONS, setting)
                if (name, layout) in WRONG:
                    assert result != pytest.approx(rotated(x, POSITIONS, setting), abs=0.02)
                    continue
                assert result == pytest.approx(rotated(x, POSITIONS, setting), abs=1e-3), (layout, part, text)


def test_transformers_takes_scalings() -> None:
    given = {"implementations": "transformers-llama", "heads": 1, "seq_len": 96}
    for text in ("linear:factor=4", "yarn:factor=4,original=64", "llama3:factor=8,low=1,high=4,original=64"):
        (result,) = shift(0, "fp32", scaling=text, **given)
        assert result.refused is None
        assert 0 < result.drift_max < 1e-4


@pytest.mark.parametrize("name", first_fast(["mlx", "rotary-embedding-torch", "ggml"]))
def test_a_sample_agrees_with_all_scores(name: str) -> None:
    every, some = (
        next(iter(shift(1000, "fp16", implementations=name, heads=2, seq_len=100, sample=sample)))
        for sample in (None, 3000)
    )
    assert some.drift_rms == pytest.approx(every.drift_rms, rel=0.1)


REFUSED = [
    ("onnxruntime", "bf16", {}, "it is audited in float32, float16"),
    ("ggml", "fp64", {}, "it is audited in float32, float16"),
    ("transformers-llama", "fp8_e5m2", {}, "it is audited in float64"),
    ("x-transformers", "fp32", {"layout": "half"}, "--layout interleaved"),
    ("transformers-llama", "fp32", {"layout": "interleaved"}, "--layout half"),
    ("transformers-llama", "fp32", {"rotary_dim": 64}, "leave out --rotary-dim"),
    ("mlx", "fp32", {"scaling": "yarn:factor=4,original=64"}, "audited with the scaling default or linear"),
    ("mlx", "fp32", {"clip": 10.0}, "leave out --clip"),
    ("mistral-inference", "fp32", {"offset": -5}, "has no position -5"),
    ("mistral-inference", "fp32", {"offset": 2**22}, "up to position 2097151"),
    ("ggml", "fp32", {"offset": 2**31}, "positions are int32"),
]


def test_what_is_not_taken_is_a_row_with_the_reason() -> None:
    for name, dtype, case, reason in REFUSED:
        given = {"heads": 1, "seq_len": 8} | case
        (result,) = shift(given.pop("offset", 0), dtype, implementations=name, **given)
        assert (result.verdict, np.isnan(result.drift_max)) == ("refused", True), name
        assert reason in result.why


def test_each_is_audited_in_its_own_layout_unless_one_is_typed(capsys) -> None:
    command = "shift --impl transformers-llama,x-transformers,mlx --recipe hf --heads 1 --seq-len 8 -f csv -q"
    command += " --dtype fp32 --offset 0"
    results = [(one["implementation"], one["layout"]) for one in ran(capsys, command.split()).rows]
    names = ["hf", "transformers-llama", "x-transformers", "mlx"]
    assert results == list(zip(names, ["half", "half", "interleaved", "half"], strict=True))
    interleaved = ran(capsys, [*command.split(), "--layout", "interleaved"]).rows
    verdicts = {one["implementation"]: one["verdict"] for one in interleaved}
    assert verdicts == dict.fromkeys(names, "sound") | {"transformers-llama": "refused"}
    of_model = ran(capsys, [*command.split(), "--model", "llama-3.1-8b"]).rows
    assert {one["layout"] for one in of_model} == {"half"}


def test_a_planted_layout_bug_is_found_at_offset_0(monkeypatch, capsys) -> None:
    plant(monkeypatch, Planted)
    assert main(["shift", "--impl", "planted", "--dtype", "fp32", "--offset", "0", "-f", "jsonl", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["resembles"]) == ("wrong_rotation", "half pairs")
    plant(monkeypatch, Planted, layouts=("half",))
    command = ["shift", "--impl", "planted", "--dtype", "fp32", "--offset", "0", "-f", "csv", "-q"]
    (result,) = ran(capsys, command).rows
    assert float(result["drift_max"]) < 1e-5


def test_what_is_missing_says_what_to_type(monkeypatch, capsys) -> None:
    plant(monkeypatch, Planted, needs=("there_is_no_such_package",))
    with pytest.raises(MissingPackage, match=r"needs there_is_no_such_package; pip install 'ropeaudit\[pla"):
        third_party.implementation("planted")
    listed = ran(capsys, ["list", "implementations", "-f", "csv"]).rows
    (row,) = (one for one in listed if one["implementation"] == "planted")
    assert row["runs"] == "pip install 'ropeaudit[planted]'"
    with pytest.raises(UnknownName, match="did you mean mlx"):
        third_party.implementation("mxl")


def test_a_package_that_cannot_be_imported_says_why(monkeypatch) -> None:
    plant(monkeypatch, Planted)
    monkeypatch.setitem(sys.modules, "ropeaudit.subjects.third_party.planted_rope", None)
    with pytest.raises(MissingPackage, match=r"planted cannot be imported: .*; pip install"):
        third_party.implementation("planted")


def test_position_axes_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out mrope"):
        list(shift(0, "fp32", implementations="mlx", mrope="16,24,24", seq_len=8, heads=1))


def test_every_extra_is_in_pyproject() -> None:
    import tomllib
    from pathlib import Path

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    always = {one.partition(">")[0] for one in project["dependencies"]}
    for entry in ENTRIES.values():
        if entry.package in always and entry.extra not in extras:
            continue  # it is there without an extra
        assert entry.extra in extras, (
            f'{entry.name}: add {entry.extra} = ["{entry.package}>=..."] to pyproject'
        )
        needed = {one.replace("_", "-").split(">")[0].split("[")[0] for one in extras[entry.extra]}
        assert entry.package.replace("_", "-") in needed


def test_list_implementations_says_layouts_dtypes_and_what_is_called(capsys) -> None:
    listed = ran(capsys, ["list", "implementations", "-f", "csv"]).rows
    results = {one["implementation"]: one for one in listed}
    assert list(results) == [*ENTRIES, *(f"{name}:*" for name in third_party.FAMILIES)]
    assert int(results["transformers:*"]["classes"]) == len(third_party.FAMILIES["transformers"].members())
    assert results["onnxruntime"]["dtypes"] == "float32 float16"
    assert "tables of the caller" in results["onnxruntime"]["calls"]
    assert results["ggml"]["layouts"] == "half interleaved"


def test_code_of_rows_is_short_and_uses_no_name_that_it_is_not_given(tmp_path) -> None:
    coded = [entry for entry in ENTRIES.values() if entry.code]
    assert len(coded) == len(ENTRIES) - 1
    assert [entry.name for entry in coded if len(entry.code.splitlines()) > 12] == []
    for entry in coded:
        (tmp_path / f"{entry.name}.py").write_text(entry.code, encoding="utf-8")
    given = [*adapter.values(coded[0], RopeSetting(), parse("fp32")), "end"]
    options = ["--isolated", "--select", "F", "--config", f"builtins = {given}", "--line-length", "120"]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, tmp_path], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_a_row_says_its_line_where_it_raises(monkeypatch) -> None:
    plant(monkeypatch, adapter.adapter, code="def rotate(x, at):\n    return x / 'planted'\n")
    one = third_party.implementation("planted")
    x = np.ones((1, 1, 3, 8))
    with pytest.raises(ForeignError) as raised:
        one.rotator(RopeSetting.of(8), parse("fp32")).rotate_both(x, x, np.arange(3))
    shown = "".join(traceback.format_exception(raised.value))
    assert "File \"adapters.toml:planted\", line 2, in rotate\n    return x / 'planted'" in shown


def test_a_snippet_has_values_for_names_but_not_for_keywords_and_texts() -> None:
    entry = replace(ENTRIES["mistral-inference"], code='rope(base=base, end=end, a={"base": x.base})\n')
    setting = RopeSetting.of(8, base=500.0)
    assert (
        adapter.snippet(entry, setting, parse("fp16"), 7) == 'rope(base=500.0, end=7, a={"base": x.base})\n'
    )
