"""A case of vectors is read as it was written; one that was changed is refused, with what is wrong."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from vector_kernels import case

from ropeaudit.arithmetic.formats import FORMATS, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import vector_case
from ropeaudit.errors import BadInput, UsageError


def test_raw_bytes_hold_every_number_of_a_format_as_programs_read_it() -> None:
    for fmt in (fmt for fmt in FORMATS if fmt.name != "tf32"):
        x = round_to(np.random.default_rng(0).standard_normal((3, 5)) * 10, fmt)
        content = vector_case.to_bytes(vector_case.array(x, fmt))
        assert len(content) * 8 == x.size * fmt.storage_bits
        back = np.frombuffer(content, vector_case.file_dtype(fmt)).reshape(3, 5)
        np.testing.assert_array_equal(vector_case.from_file(back, fmt), x)
    one = np.array([1.0, -2.0])
    assert vector_case.to_bytes(vector_case.array(one, parse("bf16"))) == b"\x80\x3f\x00\xc0"
    assert vector_case.to_bytes(np.array([258], dtype=">i8")) == b"\x02\x01" + bytes(6)
    with pytest.raises(UsageError, match="no file holds tf32"):
        vector_case.file_dtype(parse("tf32"))


def test_the_manifest_says_what_the_case_is(tmp_path: Path) -> None:
    read = case(tmp_path / "case", model="llama-3.1-8b", head_dim=None)
    content = json.loads((read.folder / "manifest.json").read_text())
    assert vector_case.spec_of(content) == read.spec
    assert content["scaling"] == {"kind": "llama3", "factor": 8, "low": 1, "high": 4, "original": 8192}
    lines = (read.folder / "manifest.txt").read_text().splitlines()
    assert all(len(line.split()) == 2 for line in lines)
    flat = {key: value for key, value in map(str.split, lines) if key != "offset"}
    assert flat["digest"] == content["digest"]
    assert float(flat["scaling.factor"]) == 8
    assert [line.split()[1] for line in lines if line.startswith("offset ")] == [
        "0",
        "1000",
        "65511",
        "65536",
    ]
    assert {name for name in flat if "." not in name} <= content.keys() | {"calls"}


def test_factors_of_longrope_stand_in_the_flat_manifest_one_a_line(tmp_path: Path) -> None:
    read = case(tmp_path / "case", model="phi-3.5-mini", head_dim=None, offsets=0)
    assert (read.folder / "manifest.txt").read_text().count("\nscaling.long.") == 48
    assert read.spec.setting.length == 4096  # positions up to 47: the short factors
    again = case(tmp_path / "long", model="phi-3.5-mini", head_dim=None, offsets=0, context=131072)
    assert again.spec.setting.length == 4097
    assert vector_case.spec_of(vector_case.read_manifest(again.folder / "manifest.json")) == again.spec


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def edit(old: str, new: str):
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def forged(**changed):
    """Return what changes parameters and makes the digest hold again."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | changed
        path.write_bytes(vector_case.as_json(content | {"digest": vector_case.digest_of(content)}))

    return change


def replaced_by(made):
    def change(path: Path) -> None:
        path.unlink()
        made(path)

    return change


DAMAGES = [
    ("q.bin cannot be read: it is no file", "q.bin", replaced_by(Path.mkdir)),
    ("k.bin cannot be read: it is no file", "k.bin", replaced_by(os.mkfifo)),
    ("q.bin: its digest differs", "q.bin", flip),
    ("positions.1000.bin: its digest differs", "positions.1000.bin", flip),
    ("inputs.safetensors: its digest differs", "inputs.safetensors", flip),
    ("k.bin: its digest differs", "k.bin", lambda path: path.write_bytes(b"")),
    ("there is no k.bin", "k.bin", Path.unlink),
    ("there is no manifest.json; give the folder", "manifest.json", Path.unlink),
    ("there is no manifest.txt", "manifest.txt", Path.unlink),
    ("manifest.txt does not say what", "manifest.txt", edit("half", "interleaved")),
    ("was changed after it was written", "manifest.json", edit('"half"', '"interleaved"')),
    ("is no manifest of", "manifest.json", lambda path: path.write_text("[]")),
    ("is no manifest", "manifest.json", lambda path: path.write_text('{"digest": 1' + "}" * 3)),
    ("is of ropeaudit-vectors version 3", "manifest.json", edit('"version": 2', '"version": 3')),
    ("not those that its parameters make", "manifest.json", forged(seq_len=49)),
    ("not those that its parameters make", "manifest.json", forged(served=1)),
    ("not those that its parameters make", "manifest.json", forged(version=1)),
    ("48 or more, not 47", "manifest.json", forged(seq_len=47)),
]


def test_a_damaged_case_is_refused(tmp_path: Path) -> None:
    for number, (message, name, damage) in enumerate(DAMAGES):
        read = case(tmp_path / str(number), served=True)
        damage(read.folder / name)
        with pytest.raises(BadInput) as refused:
            vector_case.read(read.folder)
        assert all(part in str(refused.value) for part in message.split(": ")), refused.value
        assert "\n" not in str(refused.value)


def test_parameters_of_wrong_types_are_refused(tmp_path: Path) -> None:
    path, taken = case(tmp_path / "case").folder / "manifest.json", []
    known = json.loads(path.read_text())
    for name in ("dtype", "scaling", "heads", "offsets", "base", "layout", "want", "context"):
        for value in (None, -1, "x", [], {}, 1e400):
            content = known | {name: value}
            path.write_bytes(vector_case.as_json(content | {"digest": vector_case.digest_of(content)}))
            try:
                taken.append((name, value, vector_case.read(path.parent)))
            except BadInput:
                continue
    assert taken == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none", tmp_path / "a\0b"):
        with pytest.raises(BadInput, match=re.escape(repr(str(folder)))):
            vector_case.read(folder)
    read = case(tmp_path / "case")
    assert vector_case.read(read.folder / "manifest.json") == read
