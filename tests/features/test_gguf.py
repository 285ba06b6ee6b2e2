"""GGUF files against the config of the model that they were converted from: what was lost is named.

Files are written by the package gguf. What llama.cpp's converter writes for a config stands in `RIGHT`; a
mistake leaves out or changes one thing of it.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from command_line import ran
from net.inputs import LLAMA3
from optional import needs
from test_module import damaged_at_random

import ropeaudit

pytestmark = needs("gguf")
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
SHORT, LONG = [1.0 + i / 64 for i in range(32)], [1.0 + i / 2 for i in range(32)]


def llama3_divisors() -> np.ndarray:
    """What divides each frequency of base 500000 over 64 dims, by the formula of Llama 3.1."""
    theta = 500000.0 ** (-np.arange(32) / 32)
    wavelength = 2 * math.pi / theta
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    divisors = np.where(wavelength < 8192 / 4, 1.0, 8.0)
    between = (wavelength >= 8192 / 4) & (wavelength <= 8192)
    return np.where(between, 1 / ((1 - smooth) / 8 + smooth), divisors).astype("f4")


@dataclass(frozen=True)
class Conversion:
    """A config, and what a right conversion writes of it: keys, and tensors of divisors."""

    architecture: str
    config: dict[str, Any]
    keys: dict[str, Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    context: int = 8192


RIGHT = {
    "llama": Conversion(
        "llama",
        {"model_type": "llama", "rope_theta": 500000.0},
        {"rope.freq_base": 500000.0, "rope.dimension_count": 64},
    ),
    "llama3": Conversion(
        "llama",
        {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"rope.freq_base": 500000.0, "rope.dimension_count": 64},
        {"rope_freqs.weight": llama3_divisors()},
        131072,
    ),
    "linear": Conversion(
        "llama",
        {
            "model_type": "llama",
            "rope_theta": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
        {"rope.freq_base": 10000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "yarn": Conversion(
        "qwen2",
        {
            "model_type": "qwen2",
            "rope_theta": 1000000.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
        },
        {
            "rope.freq_base": 1000000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 8192,
        },
        context=32768,
    ),
    "longrope": Conversion(
        "phi3",
        {
            "model_type": "phi3",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        },
        {
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 64,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(131072 / 4096) / math.log(4096)),
        },
        {
            "rope_factors_short.weight": np.array(SHORT, "f4"),
            "rope_factors_long.weight": np.array(LONG, "f4"),
        },
        131072,
    ),
    "partial": Conversion(
        "gptneox",
        {"model_type": "gpt_neox", "rotary_emb_base": 10000.0, "rotary_pct": 0.25},
        {"rope.dimension_count": 16, "rope.freq_base": 10000.0},
    ),
    "wide heads": Conversion(
        "qwen3",
        {"model_type": "qwen3", "rope_theta": 1000000.0, "head_dim": 128},
        {"rope.freq_base": 1000000.0, "attention.key_length": 128},
    ),
    "sections": Conversion(
        "qwen2vl",
        {
            "model_type": "qwen2_vl",
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        },
        {"rope.freq_base": 1000000.0, "rope.dimension_sections": [8, 12, 12, 0]},
    ),
    "two bases": Conversion(
        "gemma3",
        {
            "model_type": "gemma3_text",
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "head_dim": 64,
            "sliding_window": 512,
            "num_hidden_layers": 6,
        },
        {"rope.freq_base": 1000000.0, "rope.freq_base_swa": 10000.0, "attention.key_length": 64},
    ),
}
DROP = object()
SCALING = ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length")
MISTAKES = [  # which conversion, what is changed of it, the code, where the file says it
    ("llama", {"rope.freq_base": DROP}, "wrong-base", "rope.freq_base"),
    ("llama", {"rope.freq_base": 50000.0}, "wrong-base", "rope.freq_base"),
    ("llama", {"rope.dimension_count": 32}, "partial-rotation", "rope.dimension_count"),
    ("llama", {"attention.key_length": 128}, "other-head-dim", "attention.key_length"),
    ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, "other-scaling", "rope.scaling.*"),
    ("llama", {"rope_freqs.weight": llama3_divisors()}, "other-scaling", "rope_freqs.weight"),
    ("llama3", {"rope_freqs.weight": DROP}, "missing-scaling", "rope_freqs.weight"),
    ("llama3", {"rope_freqs.weight": 1 / llama3_divisors()}, "other-scaling", "rope_freqs.weight"),
    ("llama3", {"rope_freqs.weight": np.full(32, 8, "f4")}, "other-scaling", "rope_freqs.weight"),
    ("llama3", {"rope.freq_base": DROP}, "wrong-base", "rope.freq_base"),
    ("linear", dict.fromkeys(SCALING, DROP), "missing-scaling", "rope.scaling.*"),
    ("linear", {"rope.scaling.factor": 0.25}, "other-scaling", "rope.scaling.*"),
    ("linear", {"rope.scaling.factor": 8.0}, "other-scaling", "rope.scaling.*"),
    ("linear", {"rope.scaling.type": "none"}, "missing-scaling", "rope.scaling.*"),
    ("yarn", dict.fromkeys(SCALING, DROP), "missing-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.type": DROP}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.type": "linear"}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.factor": 2.0}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.factor": DROP}, "missing-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.original_context_length": DROP}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.original_context_length": 32768}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.scaling.attn_factor": 1.1386294}, "attention-factor", "rope.scaling.attn_factor"),
    ("yarn", {"rope.scaling.yarn_beta_fast": 16.0}, "other-scaling", "rope.scaling.*"),
    ("yarn", {"rope.freq_base": DROP}, "wrong-base", "rope.freq_base"),
    (
        "longrope",
        {"rope_factors_long.weight": DROP, "rope_factors_short.weight": DROP},
        "missing-scaling",
        "rope_fact",
    ),
    ("longrope", {"rope_factors_long.weight": DROP}, "missing-scaling", "rope_fact"),
    ("longrope", {"rope_factors_long.weight": np.array(SHORT, "f4")}, "other-scaling", "rope_factors"),
    ("longrope", {"rope.scaling.original_context_length": DROP}, "other-scaling", "rope_factors"),
    ("longrope", {"rope.scaling.attn_factor": DROP}, "attention-factor", "rope.scaling.attn_factor"),
    ("partial", {"rope.dimension_count": DROP}, "partial-rotation", "rope.dimension_count"),
    ("partial", {"rope.dimension_count": 32}, "partial-rotation", "rope.dimension_count"),
    ("wide heads", {"attention.key_length": DROP}, "other-head-dim", "attention.key_length"),
    ("sections", {"rope.dimension_sections": DROP}, "other-sections", "rope.dimension_sections"),
    ("sections", {"rope.dimension_sections": [12, 12, 8, 0]}, "other-sections", "rope.dimension_sections"),
    ("two bases", {"rope.freq_base_swa": 1000000.0}, "wrong-base", "rope.freq_base"),
    ("two bases", {"rope.freq_base": 10000.0}, "wrong-base", "rope.freq_base"),
]


def written(folder, name, changes=None, config=True):
    """Write a conversion with changes, and its config beside it; return the path of the file."""
    import gguf

    one = RIGHT[name]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, one.architecture)
    keys = {**one.keys, **one.tensors, **(changes or {})}
    keys = {"context_length": one.context, "embedding_length": 512, "block_count": 6} | keys
    keys = {"attention.head_count": 8, "attention.head_count_kv": 2} | keys
    writer.add_tensor("token_embd.weight", np.ones((4, 512), "f4"))
    for key, value in keys.items():
        full = f"{one.architecture}.{key}"
        if value is DROP:
            continue
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value.astype("f4"))
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
        data = {**SIZES, "max_position_embeddings": one.context, **one.config}
        (folder / "config.json").write_text(json.dumps(data))
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


@pytest.mark.parametrize(("name", "changes", "code", "where"), MISTAKES)
def test_a_mistake_of_conversion_is_named(name, changes, code, where, tmp_path, capsys) -> None:
    path = written(tmp_path, name, changes)
    found = records(capsys, "check", path, code=1)["records"]
    failed = [row for row in found if row["status"] == "fail"]
    first = failed[0]
    assert code in first["diagnosis"].split("+")
    assert first["where"].startswith(where)
    if "attention.key_length" not in changes:
        assert len(failed) == 1, failed


def test_what_nothing_judges_is_said_and_fails(tmp_path, capsys) -> None:
    path = written(tmp_path, "yarn", config=False)
    for command in ("check", "module"):
        said = ran(capsys, [command, path, "-v"], 1)
        assert "nothing " in said.out
        assert "config.json beside it, or give --config" in said.out
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
        ({"attention.head_count": DROP}, "llama.attention.head_count is missing"),
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
