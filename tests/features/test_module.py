"""Buffers that were cast: in modules, in checkpoints, with and without a config."""

import json
import random
import tempfile
from pathlib import Path

import command_line
import numpy as np
import torch
from fuzz import damaged
from safetensors.torch import save_file
from tiny_models import change_config, make, split

from ropeaudit.main import main

KERNELS = "rope_buffers.py"
CONFIG = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 2, "rope_theta": 10000.0}


def audited(capsys, *arguments, code=0):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.json")
        assert main(["module", *map(str, arguments), "-o", str(file), "-q"]) == code
        return json.loads(file.read_text()) | {"answer": capsys.readouterr().out}


def test_a_state_dict_that_holds_itself_ends(tmp_path, capsys) -> None:
    loop = {"inv_freq": torch.from_numpy(1e4 ** (-np.arange(64) / 64)).float()}
    loop["self"] = loop
    torch.save(loop, tmp_path / "a.pt")
    names = [row["buffer"] for row in audited(capsys, tmp_path / "a.pt")["records"]]
    assert names[0] == "inv_freq"
    assert len(names) == 5


def test_a_checkpoint_without_buffers(tmp_path, capsys) -> None:
    folder = make("llama", tmp_path / "llama", steps=0)
    result = audited(capsys, folder, code=1)
    assert result["records"] == []
    assert result["headline"].endswith(": nothing was judged: no RoPE buffer among 21 tensors")
    assert "give the function that loads it" in result["answer"]
    split(folder)
    assert audited(capsys, folder, code=1)["headline"] == result["headline"]


def damaged_at_random(capsys, path: Path, count: int, *arguments) -> None:
    """Damage a file in many ways: each is read or refused in a line, and some are refused."""
    whole, codes = path.read_bytes(), set()
    for number in range(count):
        path.write_bytes(damaged(path.name, whole, random.Random(number)))
        code = main(["module", str(path), "-f", "csv", "-q", *arguments])
        out, err = capsys.readouterr()
        assert code in (0, 1, 2), (number, err)
        assert (code == 2) == (not out), number
        assert "Traceback" not in err
        assert code != 2 or len(err.splitlines()) <= 2, (number, err)
        codes.add(code)
    assert 2 in codes


def checkpoint(folder: Path, pairs: int = 64, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a checkpoint of two layers, each with its inv_freq, as older ones have it."""
    folder.mkdir()
    theta = (1e4 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).to(dtype)
    tensors = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": theta.clone() for n in (0, 1)}
    save_file({**tensors, "model.embed_tokens.weight": torch.ones(4, 4)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_a_checkpoint_with_its_config(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "old")
    result = audited(capsys, folder, code=1)
    assert [row["dtype"] for row in result["records"]] == ["bfloat16"] * 2
    assert {row["against"] for row in result["records"]} == {"old"}
    assert result["headline"].endswith("2 of 2 RoPE buffers cast (narrow-frequencies)")
    assert "= model.layers.0.self_attn.rotary_emb.inv_freq and 1 more: stored in" in result["answer"]
    split(folder)
    assert len(audited(capsys, folder, code=1)["records"]) == 2
    assert len(audited(capsys, folder / "model-00002-of-00002.safetensors", code=1)["records"]) == 2


def test_custom_code_is_not_executed(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "old")
    change_config(folder, auto_map={"AutoModel": "modeling.Mine"})
    (folder / "modeling.py").write_text("raise SystemExit('executed')")
    assert "which was not executed" in " ".join(audited(capsys, folder, code=1)["notes"])


def test_a_config_that_is_not_understood_is_a_note(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "old", dtype=torch.float32)
    change_config(folder, rope_new_thing=3)
    result = audited(capsys, folder)
    assert "is not understood" in result["notes"][0]
    assert result["records"][0]["against"] == "base 10000 (guessed)"


def test_the_table(spec, tmp_path, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["module", spec("bf16_back")]) == 1
    assert capsys.readouterr().out.replace(spec("").removesuffix("rope_buffers.py:"), "") == snapshot


def refused(capsys, *arguments):
    return command_line.refused(capsys, ["module", *arguments, "-q"])


def test_what_builds_no_module_is_refused(spec, tmp_path, capsys) -> None:
    (tmp_path / "bad.py").write_text("import no_such_package\n")
    (tmp_path / "leaves.py").write_text("import sys\ndef make(): sys.exit(0)\n")
    for source, message in {
        spec("fails"): "raised RuntimeError: no weights here",
        spec("refuses"): "error: not on this machine",
        spec("not_a_module"): "returned a int",
        spec("number"): "it is of type int and cannot be called",
        spec("nothing"): "unknown name in ",
        f"{tmp_path / 'bad.py'}:f": "cannot be imported: ModuleNotFoundError",
        f"{tmp_path / 'none.py'}:f": "no such file",
        f"{tmp_path / 'leaves.py'}:make": "raises SystemExit: 0",
        "no_such_package.part:f": "there is no module 'no_such_package'",
    }.items():
        assert message in refused(capsys, source)


def test_findings_instead_of_values(spec, capsys) -> None:
    nothing = audited(capsys, spec("empty"), code=1)["answer"]
    assert "nothing is stored: no RoPE buffer among 1 tensor; `ropeaudit check " in nothing
    assert "on the meta device" in " ".join(audited(capsys, spec("meta"), code=1)["notes"])
    result = audited(capsys, spec("not_finite"), code=1)
    assert result["records"][0]["agrees"] == "no"
    assert result["headline"].endswith("(nonfinite)")


def test_missing_shards_and_other_configs(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "old")
    change_config(folder, hidden_size=128)
    message = refused(capsys, folder)
    assert "has shape 64 and old has 32 pairs" in message
    split(folder)[0].unlink()
    assert "1 of 2 shards are missing or empty (model-00001-of-00002.safetensors)" in refused(capsys, folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    assert "a shard lies outside the folder" in refused(capsys, folder)
    index.write_text("{}")
    assert "no weight_map" in refused(capsys, folder)
    index.unlink()
    assert "1 of 2 shards" in refused(capsys, folder)  # the names say how many there are
