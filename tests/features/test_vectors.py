"""ropeaudit vectors: what is written, that it is written alike again, and what is refused."""

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from command_line import ran
from safetensors.numpy import load_file
from vector_kernels import SMALL, rotated, written

import ropeaudit
from ropeaudit.audits.cases import straddling
from ropeaudit.conformance import returned, vector_case
from ropeaudit.errors import BadOutput, UsageError
from ropeaudit.main import main

SIZES = ["--heads", "2", "--kv-heads", "1", "--seq-len", "48", "--head-dim", "32"]
NUMPY = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "int32": "<i4", "bfloat16": ml_dtypes.bfloat16}


def vectors(folder: Path, *arguments: str) -> int:
    return main(["vectors", "-o", str(folder), *SIZES, *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_are_what_the_manifest_says(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "case"
    assert vectors(folder, "--offset", "0,1000", "--positions", "int32", "--dtype", "bf16") == 0
    seen = capsys.readouterr()
    assert seen.out.startswith(f"OK  {folder}   2 calls at positions up to 1,047, ")
    assert f"ropeaudit check {folder} --returned OUT\n" in seen.out
    assert seen.err == ""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [
        *manifest["inputs"].values(),
        *(file for call in manifest["calls"] for file in call["inputs"].values()),
    ]
    tensors = load_file(folder / manifest["safetensors"]["inputs"])
    assert len(tensors) == len(files) == len(list(folder.iterdir())) - 3
    for file in files:
        raw = np.frombuffer((folder / file["file"]).read_bytes(), NUMPY[file["dtype"]]).reshape(file["shape"])
        tensor = tensors[file["file"].removesuffix(".bin")]
        assert tensor.dtype.name == file["dtype"]
        np.testing.assert_array_equal(tensor, raw)
    assert tensors["q"].shape == (2, 2, 48, 32)
    assert tensors["k"].shape == (2, 1, 48, 32)
    assert not np.array_equal(tensors["q"][0], tensors["q"][1])
    np.testing.assert_array_equal(tensors["positions.1000"], np.arange(1000, 1048))
    assert manifest["calls"][1]["outputs"]["k"] == {
        "file": "k.1000.bin",
        "dtype": "bfloat16",
        "shape": [2, 1, 48, 32],
    }


def test_a_case_has_the_version_that_a_reader_needs(tmp_path: Path, capsys) -> None:
    assert vectors(tmp_path / "plain", "--offset", "1000") == 0
    assert vectors(tmp_path / "served", "--offset", "1000", "--served") == 0
    plain, served = (
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("plain", "served")
    )
    assert (plain["version"], served["version"]) == (1, 2)
    assert plain.keys() == served.keys() - {"served"}
    assert served["calls"][:2] == plain["calls"]
    lines = (tmp_path / "served" / "manifest.txt").read_text().splitlines()
    at = lines.index("call packed")
    sizes = ["call.batch 1", "call.heads 2", "call.kv_heads 1", "call.seq_len 96", "call.sequences 4"]
    assert lines[at + 1 : at + 6] == sizes
    assert vector_case.read(tmp_path / "served").spec.served
    capsys.readouterr()


@pytest.mark.parametrize(
    ("heads", "seq_len", "offsets"),
    [((1, 1), 48, 0), ((3, 1), 49, (0, 7)), ((40, 8), 256, 2**20)],
)
def test_served_calls_are_within_what_is_given(heads, seq_len: int, offsets, tmp_path: Path) -> None:
    q, k = heads
    sizes = {"heads": q, "kv_heads": k, "seq_len": seq_len, "head_dim": 4}
    (one,) = ropeaudit.vectors(tmp_path / "case", offsets=offsets, served=True, **sizes)
    spec = one.spec
    for call in spec.served_calls:
        assert call.heads % call.kv_heads == 0
        assert call.batch * call.heads * call.seq_len <= vector_case.BATCH * q * seq_len
        assert call.batch * call.kv_heads * call.seq_len <= vector_case.BATCH * k * seq_len
        at = call.positions()
        assert 0 <= at.min() <= at.max() < spec.offsets[-1] + seq_len
        assert len(np.unique(at[:, 0])) == call.batch
    assert any(call.kv_heads == 1 < call.heads for call in spec.served_calls)


def test_the_manifest_holds_the_attention_factor(tmp_path: Path) -> None:
    list(ropeaudit.vectors(tmp_path / "case", "fp64", model="gpt-oss-20b", offsets=0, seq_len=8))
    content = json.loads((tmp_path / "case" / "manifest.json").read_text())
    assert content["attention_factor"] == pytest.approx(0.1 * math.log(32) + 1)


def test_offsets_straddle_what_breaks_positions(tmp_path: Path, capsys) -> None:
    usual = ["vectors", "-o", str(tmp_path / "usual"), "--seq-len", "48", "--model", "mistral-7b-v0.3"]
    (row,) = json.loads(ran(capsys, [*usual, "-f", "json"]).out)["records"]
    assert [int(text) for text in row["offsets"].split()] == straddling(32768, 48)
    given = ["vectors", "-o", str(tmp_path / "given"), "--seq-len", "48", "--model", "llama-2-7b"]
    said = ran(capsys, [*given, "--offset", "4k"]).out
    assert "offset 4071 is added: its positions are on both sides of a power of two" in said
    assert "llama-2-7b: positions from offset 4071 on go past the 4096 that it is made for" in said
    spec = vector_case.read(tmp_path / "given").spec
    assert spec.offsets == (0, 4071, 4096)
    assert spec.offsets[1] < 4096 <= spec.offsets[1] + 47


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8_e4m3", "fp32"])
def test_numbers_are_those_of_float64_rounded_once_with_all_the_bits(dtype: str, tmp_path: Path) -> None:
    for fmt in (dtype, "fp64"):
        list(ropeaudit.vectors(tmp_path / fmt, fmt, offsets=0, **SMALL))
    narrow, wide = (vector_case.read(tmp_path / fmt).vectors()["q"] for fmt in (dtype, "fp64"))
    fmt = ropeaudit.parse(dtype)
    np.testing.assert_array_equal(narrow, ropeaudit.round_to(wide, fmt))
    for narrower in map(ropeaudit.parse, ("fp32", "fp16", "bf16")):
        held = (ropeaudit.round_to(narrow, narrower) == narrow).mean()
        assert (held == 1) == (fmt.precision <= narrower.precision)


def test_the_usual_set_has_ten_settings_that_a_right_kernel_passes(tmp_path: Path, capsys) -> None:
    line = "vectors --model usual --seq-len 16 --offset 0,2000 -o"
    assert main([*line.split(), str(tmp_path / "cases")]) == 0
    folders = sorted((tmp_path / "cases").iterdir())
    settings = {vector_case.read(folder).spec.setting for folder in folders}
    assert len(folders) == len(settings) == 10
    assert {one.scaling.kind for one in settings} == {"default", "linear", "llama3", "yarn", "longrope"}
    assert {one.layout for one in settings} == {"half", "interleaved"}
    for folder in folders:
        read = vector_case.read(folder)
        results = returned.findings(folder, written(read, tmp_path / "out", rotated(read)))
        assert {one.status for one in results} == {"pass"}, folder
    assert "phi-3.5-mini: scaling longrope depends on the length" in capsys.readouterr().out


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name, what in (("full", "has files in it"), ("file", "is no folder")):
        with pytest.raises(UsageError, match=what):
            list(ropeaudit.vectors(tmp_path / name, offsets=0, **SMALL))
    with pytest.raises(BadOutput, match="cannot be written"):
        list(ropeaudit.vectors(tmp_path / "file" / "case", offsets=0, **SMALL))
    (tmp_path / "empty").mkdir()
    list(ropeaudit.vectors(tmp_path / "empty", offsets=0, **SMALL))
    assert vector_case.read(tmp_path / "empty").folder == tmp_path / "empty"
    assert {path.name for path in tmp_path.iterdir()} == {"full", "file", "empty"}


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_case_is_never_half_written(raised, tmp_path: Path, monkeypatch) -> None:
    wrote: list[str] = []

    def full(self: Path, content: bytes) -> None:
        wrote.append(self.name)
        if len(wrote) > 2:
            raise raised

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises((BadOutput, KeyboardInterrupt)):
        list(ropeaudit.vectors(tmp_path / "case", offsets=0, **SMALL))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("refused", ["", "rename", "all"])
def test_cases_that_are_there_are_replaced_whole(refused, tmp_path: Path, monkeypatch) -> None:
    """Where a folder cannot be moved, as one that is mounted, it is cleared and filled."""
    folder = tmp_path / "case"
    list(ropeaudit.vectors(folder, offsets=(0, 1000), **SMALL))
    with monkeypatch.context() as patch:
        if refused:
            patch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(OSError(16, "busy")))
        if refused == "all":
            patch.setattr("shutil.copytree", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(BadOutput, match="full"):
                list(ropeaudit.vectors(folder, offsets=0, **SMALL))
            assert not list(folder.iterdir())
        else:
            list(ropeaudit.vectors(folder, offsets=0, **SMALL))
            assert vector_case.read(folder).spec.offsets == (0,)
            assert not list(folder.glob("*1000*"))
    assert [path.name for path in tmp_path.iterdir()] == ["case"]
    (folder / "mine.txt").touch()
    with pytest.raises(UsageError, match="has files in it"):
        list(ropeaudit.vectors(folder, offsets=0, **SMALL))


def test_python_gives_what_the_command_writes(tmp_path: Path, capsys) -> None:
    assert vectors(tmp_path / "command", "--offset", "1000") == 0
    (result,) = ropeaudit.vectors(tmp_path / "python", offsets=1000, **SMALL)
    report = ropeaudit.report([result], ["digest", "calls"])
    assert report.rows[0]["digest"] == result.digest
    assert report.screen == ["digest", "calls"]
    assert contents(tmp_path / "command") == contents(tmp_path / "python")
    assert result.digest == vector_case.read(tmp_path / "python").digest
    assert result.size == sum(map(len, contents(tmp_path / "python").values()))
    capsys.readouterr()
