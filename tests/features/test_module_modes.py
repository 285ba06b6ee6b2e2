"""Buffers of modules that code builds, in each loading mode; forward is never called."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from test_module import audited, refused

from ropeaudit import module
from ropeaudit.main import main

KERNELS = "rope_modules.py"


def rows(capsys, *arguments, code=0):
    return audited(capsys, *arguments, code=code)["records"]


def test_what_is_not_stored_or_loaded_is_not_judged(spec, capsys) -> None:
    result = audited(capsys, spec("Computed"), "--loaded", "built", code=1)
    assert result["records"] == []
    assert ": nothing is stored: no RoPE buffer among 0 tensors; `ropeaudit check " in result["headline"]
    alone = audited(capsys, spec("Llama"), "--loaded", "from-pretrained", code=1)
    assert alone["headline"].endswith(": nothing was judged")
    assert "from-pretrained:bf16 was not tried: neither transformers nor diffusers" in alone["notes"][1]


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
