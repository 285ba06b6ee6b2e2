"""Buffers known by their values, judged against what was given; and what wrong ones do to scores."""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from test_module import CONFIG, audited, refused

from ropeaudit import RopeSetting, parse
from ropeaudit.rope import scaling
from ropeaudit.rope.frequencies import frequencies

KERNELS = "rope_buffers.py"


def test_what_cannot_be_meant_is_refused(spec, tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for options, message in {
        f"--config {tmp_path} --model llama-2-7b": "both name a model",
        "--model llama-9": "unknown model",
        "--rotary-dim 64": "has shape 64 and --rotary-dim 64 has 32 pairs",
        "--base 0": "base 0.0",
        "--head-dim 0": "head_dim 0",
        "--base 1": "base 1.0",
        "--rotary-dim 128 --head-dim 64": "is larger than head_dim",
    }.items():
        assert message in refused(capsys, spec("plain"), *options.split())


def test_scaled_frequencies_are_described_and_not_called_right(tmp_path, capsys) -> None:
    llama3 = "llama3:factor=8,low=1,high=4,original=8192"
    setting = RopeSetting.of(128, base=5e5, scaling=scaling.parse(llama3))
    theta = torch.tensor(frequencies(setting, "inverse_power", parse("fp32")).astype(np.float32))
    torch.save({"x": theta}, tmp_path / "a.pt")
    (row,) = (result := audited(capsys, tmp_path / "a.pt"))["records"]
    assert row["against"].startswith("base 500000, scaling llama3(factor=8 ")
    assert row["diagnosis"] == ""
    assert row["agrees"] == "unknown"
    assert row["drift_256"] is None
    assert "nothing says which values are right" in result["headline"]
    assert result["answer"].startswith("WARN")
    given = ("--base", "5e5", "--scaling", llama3)
    assert audited(capsys, tmp_path / "a.pt", *given)["records"][0]["agrees"] == "yes"


def test_partners_are_found_by_their_values(tmp_path, capsys) -> None:
    """Two tables in one module, called anything: each cos goes with its own sin."""
    tables = {}
    for n, base in enumerate((1e4, 5e5)):
        angles = torch.arange(64)[:, None] * base ** (-torch.arange(8, dtype=torch.float64) / 8)
        tables |= {f"r.b{n}": angles.sin(), f"r.a{n}": angles.cos()}
    save_file(tables, tmp_path / "m.safetensors")
    rows = audited(capsys, tmp_path / "m.safetensors")["records"]
    found = {(row["buffer"], row["against"].partition(" (")[0]) for row in rows}
    bases = ("base 10000", "base 500000")
    assert found == {(f"r.{name}{n}", base) for name in "ab" for n, base in enumerate(bases)}


def test_shards_of_the_other_kind_are_read_too(tmp_path, capsys) -> None:
    """A folder of pytorch_model*.bin alone, and one that has both: safetensors count."""
    theta = (1e4 ** (-torch.arange(64, dtype=torch.float64) / 64)).float()
    (folder := tmp_path / "old").mkdir()
    torch.save({"a.inv_freq": theta}, folder / "pytorch_model.bin")
    assert len(audited(capsys, folder)["records"]) == 1
    save_file({"b.inv_freq": theta.bfloat16()}, folder / "model.safetensors")
    (row,) = audited(capsys, folder, code=1)["records"]
    assert (row["buffer"], row["dtype"]) == ("b.inv_freq", "bfloat16")


def test_a_checkpoint_is_searched_by_values(tmp_path, capsys) -> None:
    """Tables of any name in safetensors; weights and integers are not read as tables."""
    angles = torch.arange(100)[:, None] * 1e4 ** (-torch.arange(16) / 16)
    tensors = {"x.y": angles, "w": torch.randn(64, 64), "i": torch.arange(64), "z": torch.zeros(3, 64, 64)}
    save_file(tensors, tmp_path / "m.safetensors")
    result = audited(capsys, tmp_path / "m.safetensors", "--base", "1e4")
    assert [(row["buffer"], row["what"], row["agrees"]) for row in result["records"]] == [
        ("x.y", "angles", "yes")
    ]
