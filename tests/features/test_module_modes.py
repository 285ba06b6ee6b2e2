"""Buffers of modules that code builds, in each loading mode; forward is never called."""

import warnings

import pytest
import torch
from optional import needs
from safetensors.torch import save_file
from test_module import audited, refused

from ropeaudit import module
from ropeaudit.features.module.report import COLUMNS
from ropeaudit.main import main

KERNELS = "rope_modules.py"


def rows(capsys, *arguments, code=0):
    return audited(capsys, *arguments, code=code)["records"]


def test_a_row_a_buffer_and_mode_says_how_far_a_cast_moved_it(spec, capsys) -> None:
    result = audited(capsys, spec("Aliasing"), "--dtype", "bf16,fp16", code=1)
    assert list(result["records"][0]) == list(COLUMNS)
    by_mode = {row["loaded"]: row for row in result["records"]}
    assert list(by_mode) == ["built", "to:bf16", "to:fp16", "default-dtype:bf16", "default-dtype:fp16"]
    exact = 1e4 ** -(torch.arange(0, 64, 2).double() / 64)
    held = 1.0 / 1e4 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    for short, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        row, now = by_mode[f"to:{short}"], held.to(dtype).double()
        assert row["from_built"] == pytest.approx(float(((now - held.double()) / held.double()).abs().max()))
        assert row["largest_error"] == pytest.approx(float((now / exact - 1).abs().max()))
        assert (row["agrees"], row["diagnosis"], row["how"]) == ("no", "narrow-frequencies", "stored")
        other = by_mode[f"default-dtype:{short}"]
        assert (other["from_built"], other["cast"], other["agrees"]) == (0.0, "none", "unknown")
    assert by_mode["built"]["from_built"] is None
    assert {row["against"] for row in result["records"]} == {"base 10000 (guessed)"}


def test_what_is_not_stored_or_loaded_is_not_judged(spec, capsys) -> None:
    result = audited(capsys, spec("Computed"), "--loaded", "built", code=1)
    assert result["records"] == []
    assert ": nothing is stored: no RoPE buffer among 0 tensors; `ropeaudit check " in result["headline"]
    alone = audited(capsys, spec("Llama"), "--loaded", "from-pretrained", code=1)
    assert alone["headline"].endswith(": nothing was judged")
    assert "from-pretrained:bf16 was not tried: neither transformers nor diffusers" in alone["notes"][1]


def test_values_that_no_base_explains_are_held_to_those_as_built(spec, capsys) -> None:
    (wide,) = rows(capsys, spec("Unknown"), "--loaded", "to", "--dtype", "fp64", code=1)
    assert (wide["agrees"], wide["from_built"]) == ("unknown", 0.0)  # what casts do to them: the net


def test_a_lost_imaginary_part_is_a_finding_and_no_raw_warning(spec, capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = audited(capsys, spec("Registered"), "--loaded", "to", code=1)
        factory = audited(capsys, spec("cast_complex"), code=1)
    (row,) = result["records"]
    assert (row["diagnosis"], row["agrees"], row["largest_error"]) == ("buffer-cast", "no", None)
    assert "it is complex as built and bfloat16 now: its imaginary part (sin) is lost" in result["answer"]
    assert any("discards the imaginary part" in note for note in factory["notes"])


def test_arguments_and_refusals(spec, tmp_path, capsys) -> None:
    assert "needs the arguments dim, secret" in refused(capsys, spec("Needs"))
    assert "unexpected keyword" in refused(capsys, spec("Llama"), "--build", "no=1")
    assert rows(capsys, spec("plain"), "--build", "dim=32")[0]["shape"] == "16"
    save_file({"inv_freq": torch.ones(4)}, tmp_path / "a.safetensors")
    for flag in (("--loaded", "to"), ("--build", "a=1")):
        assert "is a file; leave it out" in refused(capsys, tmp_path / "a.safetensors", *flag)
    line = [spec("Llama"), "--columns", "held"]
    assert "unknown column 'held'; known: schema, buffer, loaded" in refused(capsys, *line)


def test_torch_is_afterwards_as_it_was(spec) -> None:
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    module(spec("Llama"), loaded="default-dtype")
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


def test_the_table_of_modes_and_its_ticket(spec, tmp_path, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(tmp_path)
    ticket = tmp_path / "ticket.md"
    assert main(["module", spec("Layers"), "-v", "--ticket", str(ticket)]) == 1
    assert capsys.readouterr().out.replace(spec("").removesuffix("rope_modules.py:"), "") == snapshot
    text = ticket.read_text()
    assert "# RoPE buffer full_inv_freq is bfloat16 after .to(torch.bfloat16) (narrow-frequencies)" in text
    assert "| loaded | to:bf16 |" in text
    assert main(["module", spec("Llama"), "--loaded", "built", "--base", "1e4", "--ticket", str(ticket)]) == 0
    assert "modules.py:Llama: 1 of 1 RoPE buffer within" in ticket.read_text().splitlines()[0]
    assert "**Expected.**" not in ticket.read_text()


@pytest.mark.parametrize("name", ["LlamaRotaryEmbedding", "of_a_factory"])
def test_transformers_makes_buffers_anew_where_it_loads_them(name, tmp_path, capsys) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "from transformers import LlamaConfig, LlamaModel\n"
        "from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding\n"
        "def of_a_factory(): return LlamaModel(LlamaConfig(hidden_size=64, intermediate_size=64, "
        "num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=8))\n"
    )
    result = audited(capsys, f"{path}:{name}", "--loaded", "built,to,from-pretrained", code=1)
    agrees = {row["loaded"]: row["agrees"] for row in result["records"]}
    assert agrees == {"built": "yes", "to:bf16": "no", "from-pretrained:bf16": "yes"}
    held = "that holds the LlamaRotaryEmbedding" in " ".join(result.get("notes", ()))
    assert held == (name == "LlamaRotaryEmbedding")


@needs("diffusers")
def test_a_class_of_diffusers_is_loaded_within_a_model_of_one_parameter(capsys) -> None:
    place = "diffusers.models.transformers.transformer_stable_audio3:StableAudio3RotaryEmbedding"
    result = audited(capsys, place, "--loaded", "from-pretrained")
    assert [(row["dtype"], row["from_built"]) for row in result["records"]] == [("float32", 0.0)]
    assert "model of one parameter that holds the StableAudio3RotaryEmbedding" in " ".join(result["notes"])
