"""GGUF files against the config of the model that they were converted from: what was lost is named.

Files are written by the package gguf. What llama.cpp's converter writes for a config stands in `gguf.toml`; a
mistake leaves out or changes one thing of it.
"""

import json
import math

import numpy as np
import pytest
from cases import table
from command_line import ran
from optional import needs
from test_module import damaged_at_random

import ropeaudit

pytestmark = needs("gguf")
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
TABLE = table(__file__, "gguf.toml")
RIGHT = TABLE["right"]
MISTAKES = [(name, *one.values()) for name, some in TABLE["mistakes"].items() for one in some]
ABSENT = "absent"


def llama3_divisors() -> np.ndarray:
    """What divides each frequency of base 500000 over 64 dims, by the formula of Llama 3.1."""
    theta = 500000.0 ** (-np.arange(32) / 32)
    wavelength = 2 * math.pi / theta
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    divisors = np.where(wavelength < 8192 / 4, 1.0, 8.0)
    between = (wavelength >= 8192 / 4) & (wavelength <= 8192)
    return np.where(between, 1 / ((1 - smooth) / 8 + smooth), divisors).astype("f4")


ARRAYS = {"llama3": llama3_divisors(), "1 / llama3": 1 / llama3_divisors(), "eights": np.full(32, 8.0)}
ARRAYS |= {"short": 1 + np.arange(32) / 64, "long": 1 + np.arange(32) / 2}


def written(folder, name, changes=None, config=True):
    """Write a conversion with changes, and its config beside it; return the path of the file."""
    import gguf

    one = {"tensors": {}, "context": 8192} | RIGHT[name]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, one["architecture"])
    keys = {"context_length": one["context"], "embedding_length": 512, "block_count": 6}
    keys |= {"attention.head_count": 8, "attention.head_count_kv": 2}
    keys |= {**one["keys"], **one["tensors"], **(changes or {})}
    writer.add_tensor("token_embd.weight", np.ones((4, 512), "f4"))
    for key, value in keys.items():
        full = f"{one['architecture']}.{key}"
        if isinstance(value, str) and value == ABSENT:
            continue
        if key.endswith(".weight"):
            writer.add_tensor(key, np.asarray(ARRAYS[value] if isinstance(value, str) else value, "f4"))
        elif isinstance(value, list):
            writer.add_array(full, value)
        else:
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(full, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if config:
        text = json.dumps({**SIZES, "max_position_embeddings": one["context"], **one["config"]})
        for word in ("short", "long"):
            text = text.replace(f'_factor": "{word}"', f'_factor": {ARRAYS[word].tolist()}')
        (folder / "config.json").write_text(text)
    return path


def records(capsys, *arguments, code):
    return ran(capsys, [*arguments, "-f", "json", "-q"], code).json


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_conversion_passes(name, tmp_path, capsys) -> None:
    path = written(tmp_path, name)
    audit = ropeaudit.module(str(path))
    assert [(one.diagnosis, one.keys) for one in audit.lost] == []
    assert (audit.wrong, audit.judged) == (False, True), [one.finding for one in audit.buffers]
    assert {one.agrees for one in audit.buffers} == {True}
    found = records(capsys, "check", path, code=0)["records"]
    assert [row["status"] for row in found] == ["pass", "info"]


@pytest.mark.parametrize(("name", "changes", "fails"), MISTAKES)
def test_a_mistake_of_conversion_is_named(name, changes, fails, tmp_path, capsys) -> None:
    code, where = fails
    path = written(tmp_path, name, changes)
    found = records(capsys, "check", path, code=1)["records"]
    failed = [row for row in found if row["status"] == "fail"]
    first = failed[0]
    assert code in first["diagnosis"].split("+")
    assert first["where"].startswith(where)
    if "attention.key_length" not in changes:
        assert len(failed) == 1, failed


@pytest.mark.parametrize("command", ["check", "module"])
def test_a_shorter_context_is_said_in_its_own_words(command, tmp_path, capsys) -> None:
    said = ran(capsys, [command, written(tmp_path, "llama", {"context_length": 4096})], 1).out
    assert "error[table-ends]: context_length is 4,096, config.json serves 8,192\n" in said
    assert "= the file is for fewer positions than config.json serves: convert it again\n" in said
    assert "a table" not in said
    assert "within rounding" not in said


def test_what_nothing_judges_is_said_and_fails(tmp_path, capsys) -> None:
    path = written(tmp_path, "yarn", config=False)
    for command in ("check", "module"):
        said = ran(capsys, [command, path, "-v"], 1)
        assert "nothing " in said.out
        assert "config.json beside it, or give --config" in said.out
        assert ran(capsys, [command, path], 1).out.count("beside it, or give --config") == 1
        assert "base 1000000" in said.out + said.err
        assert "yarn scaling (factor 4, original 8192" in said.out + said.err


@pytest.mark.parametrize("command", ["check", "module"])
def test_options_say_what_it_should_be(command, tmp_path, capsys) -> None:
    path = written(tmp_path, "llama", config=False)
    records(capsys, command, path, "--base", "500000", code=0)
    found = records(capsys, command, path, "--base", "1000000", code=1)["records"]
    assert found[0]["diagnosis"] == "wrong-base"
    other = tmp_path / "other"
    other.mkdir()
    written(other, "llama3")
    found = records(capsys, command, path, "--config", other / "config.json", code=1)["records"]
    assert found[0]["diagnosis"] == "missing-scaling"
    records(capsys, command, other / "model.gguf", "--scaling", "linear:factor=2", code=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attention.head_count": ABSENT}, "llama.attention.head_count is missing"),
        (
            {"rope.scaling.type": "ntk"},
            "rope.scaling.type = 'ntk' is not one of none, linear, yarn, longrope",
        ),
        ({"rope.scaling.factor": -2.0}, "rope.scaling.factor = -2 is no finite number above 0"),
        ({"rope.dimension_count": 33}, "rotary_dim 33 is not an even number"),
        ({"rope_freqs.weight": np.ones(8)}, "rope_freqs.weight has 8 elements and 32 pairs are rotated"),
        ({"rope_freqs.weight": np.zeros(32)}, "divisors that are no finite number above 0"),
        ({"rope.freq_base": [1.0, 2.0]}, "is not one number"),
        ({"rope.freq_base": math.nan}, "is not a finite number above 1"),
    ],
)
def test_what_cannot_be_read_is_refused(changes, expected, tmp_path, capsys) -> None:
    path = written(tmp_path, "llama", changes)
    for command in ("check", "module"):
        assert expected in ran(capsys, [command, path], 2).err


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch) -> None:
    path = written(tmp_path, "llama")
    monkeypatch.setattr("ropeaudit.tensor_files.gguf_files.find_spec", lambda name: None)
    assert "pip install 'ropeaudit[gguf]'" in ran(capsys, ["module", path], 2).err


def test_damage_is_never_a_traceback(tmp_path, capsys) -> None:
    damaged_at_random(capsys, written(tmp_path, "llama3"), 30)
