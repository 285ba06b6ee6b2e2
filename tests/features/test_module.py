"""What checkpoints store of RoPE: cast, off, too short, never written or nothing; by a config or without."""

import json
import random
import tempfile
from pathlib import Path

import command_line
import numpy as np
import pytest
import torch
from command_line import ran
from dumped_tables import inv
from fuzz import damaged
from safetensors.torch import save_file
from tiny_models import change_config, make, split

import ropeaudit
from ropeaudit import RopeSetting
from ropeaudit.errors import UsageError
from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.rope import scaling

KERNELS = "rope_modules.py"
CONFIG = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 2, "rope_theta": 10000.0}
SERVED = {**CONFIG, "max_position_embeddings": 600, "num_hidden_layers": 2}
FIRST = "model.layers.0.self_attn.rotary_emb."
TYPES = {
    "model_type": "gemma3_text",
    "head_dim": 128,
    "num_key_value_heads": 1,
    "num_hidden_layers": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}


def audited(capsys, *arguments, code=0):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.json")
        assert main(["module", *map(str, arguments), "-o", str(file), "-q"]) == code
        return json.loads(file.read_text()) | {"answer": capsys.readouterr().out}


def refused(capsys, *arguments):
    return command_line.refused(capsys, ["module", *arguments, "-q"])


def theta(base: float = 1e4, pairs: int = 64) -> torch.Tensor:
    return (base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).float()


def table(rows: int, frequencies: torch.Tensor, factor: float = 1.0) -> dict[str, torch.Tensor]:
    angles = torch.arange(rows)[:, None].double() * frequencies.double().tile(2)
    return {f"{FIRST}cos_cached": factor * angles.cos(), f"{FIRST}sin_cached": factor * angles.sin()}


def sinusoids(rows: int = 1500, pairs: int = 192) -> torch.Tensor:
    """Return Whisper's table, as transformers makes it."""
    angles = torch.arange(rows)[:, None] * 1e4 ** (-torch.arange(pairs).double() / (pairs - 1))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def written(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object] | None) -> Path:
    """Write a checkpoint in float32, but for what is narrower, and its config."""
    folder.mkdir()
    wide = {name: one.float() if one.dtype == torch.float64 else one for name, one in tensors.items()}
    save_file({**wide, "model.embed_tokens.weight": torch.ones(4, 4)}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def checkpoint(folder: Path, pairs: int = 64, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a checkpoint of two layers, each with its inv_freq, as older ones have it."""
    names = [f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in (0, 1)]
    return written(folder, {name: theta(pairs=pairs).to(dtype) for name in names}, CONFIG)


def test_a_state_dict_that_holds_itself_ends(tmp_path, capsys) -> None:
    loop = {"inv_freq": theta()}
    loop["self"] = loop
    torch.save(loop, tmp_path / "a.pt")
    names = [row["buffer"] for row in audited(capsys, tmp_path / "a.pt")["records"]]
    assert names[0] == "inv_freq"
    assert len(names) == 5


def test_a_checkpoint_without_buffers(tmp_path, capsys) -> None:
    folder = make("llama", tmp_path / "llama", steps=0)
    result = audited(capsys, folder)
    assert result["records"] == []
    none = "nothing stored: no RoPE buffer among 21 tensors; {} computes them at load"
    assert result["headline"].endswith(f": {none.format('transformers')}")
    assert f"`ropeaudit check {folder}` judges those" in result["answer"]
    split(folder)
    assert audited(capsys, folder)["headline"] == result["headline"]
    (folder / "config.json").unlink()
    assert audited(capsys, folder)["headline"].endswith(none.format("the code that loads it"))


def test_what_only_falls_as_frequencies_do_is_no_buffer(tmp_path, capsys) -> None:
    held = {f"{FIRST}inv_freq": theta(), "model.layers.0.ssm.decay": torch.exp(-torch.arange(64) / 9)}
    said = audited(capsys, written(tmp_path / "hybrid", held, CONFIG))
    assert [row["buffer"] for row in said["records"]] == [f"{FIRST}inv_freq"]


def test_what_has_no_rope_is_said_to_have_none(tmp_path, capsys) -> None:
    """By its type, whatever is stored; without a config by sinusoids that no RoPE has."""
    held = {"model.encoder.embed_positions.weight": sinusoids()}
    whisper = {"model_type": "whisper", "d_model": 384, "encoder_attention_heads": 6}
    for name, config in {
        "whisper": whisper,
        "bloom": {"model_type": "bloom", "hidden_size": 64, "n_head": 4},
        "bert": {"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4},
    }.items():
        folder = written(tmp_path / name, held if name == "whisper" else {}, config)
        for command in ("module", "check"):
            answer = ran(capsys, [command, folder], 0).out
            assert answer.startswith(f"OK  {folder}   nothing to check: "), answer
        assert "leave out --base" in refused(capsys, folder, "--base", "10000")
    for dtype in (torch.float32, torch.float16):
        alone = written(tmp_path / str(dtype), {name: one.to(dtype) for name, one in held.items()}, None)
        said = audited(capsys, alone)
        assert said["records"] == []
        assert "sinusoids of absolute positions, 10000^(-i/(d/2-1)), which rotate nothing" in said["answer"]
    beside = written(tmp_path / "beside", {**held, f"{FIRST}inv_freq": theta()}, None)
    assert [row["what"] for row in audited(capsys, beside)["records"]] == ["inv_freq"]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 150}
STRETCHED = torch.from_numpy(inv(RopeSetting.of(128, scaling=scaling.parse("yarn:factor=4,original=150"))))
FACTOR = 0.1 * np.log(4.0) + 1.0
WRONG = {  # what a checkpoint stores, the keys of its config beside the usual ones, the codes of each tensor
    "right": (table(600, theta()), {}, [""]),
    "longer": (table(700, theta()), {}, [""]),
    "short": (table(512, theta()), {}, ["table-ends"]),
    "no range": (table(512, theta()), {"max_position_embeddings": None}, [""]),
    "short, of another base": (table(512, theta(5e5)), {}, ["wrong-base+table-ends"]),
    "short, cast": (
        {name: one.bfloat16() for name, one in table(512, theta()).items()},
        *({}, ["narrow-table+table-ends"]),
    ),
    "frequencies of another base": ({f"{FIRST}inv_freq": theta(5e5)}, {}, ["wrong-base"]),
    "zeros": ({f"{FIRST}inv_freq": torch.zeros(64)}, {}, ["uninitialised"]),
    "memory": ({f"{FIRST}inv_freq": torch.full((64,), 4.6e-41)}, {}, ["uninitialised"]),
    "large": ({f"{FIRST}inv_freq": 1e24 * theta()}, {}, ["uninitialised"]),
    "zeros in tables": (
        {name: 0 * one for name, one in table(600, theta()).items()},
        *({}, ["uninitialised"]),
    ),
    "nan": ({f"{FIRST}inv_freq": torch.full((64,), torch.nan)}, {}, ["nonfinite"]),
    "yarn": (table(600, STRETCHED, FACTOR), {"rope_scaling": YARN}, [""]),
    "yarn without its factor": (table(600, STRETCHED), {"rope_scaling": YARN}, ["attention-factor"]),
    "yarn, not scaled": (table(600, theta()), {"rope_scaling": YARN}, ["missing-scaling"]),
    "layer types": (
        {"model.rotary_emb.inv_freq": theta(1e6), "model.rotary_emb_local.inv_freq": theta()},
        *(TYPES, [""]),
    ),
    "a layer of another type": (
        {f"model.layers.{n}.rotary_emb.inv_freq": theta() for n in (0, 5)},
        *(TYPES, ["", "wrong-base"]),
    ),
    "the local base": (
        {"model.rotary_emb.inv_freq": theta(1e6), "model.rotary_emb_local.inv_freq": theta(1e6)},
        *(TYPES, ["", "wrong-base"]),
    ),
}


def test_what_is_wrong_in_a_checkpoint_is_named(tmp_path, capsys) -> None:
    """And `check` of the folder names the same; where no config says a range, none is claimed."""
    seen = {}
    for name, (tensors, more, expected) in WRONG.items():
        folder = written(tmp_path / name.replace(" ", "-").replace(",", ""), tensors, SERVED | more)
        audit = ropeaudit.module(str(folder))
        seen[name] = list(dict.fromkeys(codes(one.diagnosis) for one in audit.buffers))
        assert audit.wrong == (expected != [""]), name
        if name in ("right", "short", "zeros"):
            line = ["check", folder, "--up-to", "600", "--dtype", "fp32", "-f", "json"]
            found = ran(capsys, line, int(audit.wrong)).json["records"]
            stored = {row["diagnosis"] or "" for row in found if row["check"].startswith("stored")}
            assert stored == {*expected}, name
    assert seen == {name: expected for name, (_, _, expected) in WRONG.items()}


@pytest.mark.parametrize("form", ["safetensors", "pt", "npz", "onnx"])
def test_a_table_that_ends_is_told_with_what_the_config_serves(form, tmp_path, capsys) -> None:
    tables = {name.rpartition(".")[2]: one.float() for name, one in table(512, theta()).items()}
    path = tmp_path / f"t.{form}"
    if form == "safetensors":
        save_file(tables, path)
    elif form == "pt":
        torch.save(tables, path)
    elif form == "npz":
        np.savez(path, **{name: one.numpy() for name, one in tables.items()})
    else:
        onnx = pytest.importorskip("onnx")
        constants = [onnx.numpy_helper.from_array(one.numpy(), name) for name, one in tables.items()]
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], constants)), path)
    assert audited(capsys, path)["answer"].startswith("WARN")  # nothing says a range
    (tmp_path / "config.json").write_text(json.dumps(SERVED))
    answer = audited(capsys, path, code=1)["answer"]
    assert "error[table-ends]: a table that ends at position 511" in answer
    assert "its 512 rows end at position 511" in answer
    assert "and the config serves 600 positions (max_position_embeddings 600)" in answer
    assert "= fix: write it with 600 rows, or serve 512 positions" in answer


def damaged_at_random(capsys, path: Path, count: int, *arguments) -> None:
    """Damage a file in many ways: each is read or refused in a line, and some are refused."""
    whole, seen = path.read_bytes(), set()
    for number in range(count):
        path.write_bytes(damaged(path.name, whole, random.Random(number)))
        code = main(["module", str(path), "-f", "csv", "-q", *arguments])
        out, err = capsys.readouterr()
        assert code in (0, 1, 2), (number, err)
        assert (code == 2) == (not out), number
        assert "Traceback" not in err
        assert code != 2 or len(err.splitlines()) <= 2, (number, err)
        seen.add(code)
    assert 2 in seen


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


def test_the_table(tmp_path, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(Path("old"))
    assert main(["module", "old", "-v"]) == 1
    assert capsys.readouterr().out == snapshot


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


def test_code_is_checked(spec, tmp_path, capsys) -> None:
    code = spec("Llama")
    small = ["--up-to", "64", "--head-dim", "64", "--under", "none"]
    checked = ran(capsys, ["check", code, *small], 0)
    handed = ran(capsys, ["module", code, *small], 0)
    assert handed.out == checked.out
    assert f"{code} is code, which `ropeaudit check` calls; `module` reads files\n" in handed.err
    with pytest.raises(UsageError, match="is code, which `check` calls"):
        ropeaudit.module(code)


def test_what_the_class_builds_is_held_against_the_config(tmp_path, capsys) -> None:
    """A class that cannot be built is a warning, and one of no known type is not checked."""
    pytest.importorskip("transformers")
    line = ["--up-to", "512", "--dtype", "fp32", "-f", "json"]
    for name, more, status, said in (
        ("plain", {}, "pass", "it builds the frequencies and factor that config.json means"),
        ("yarn", {"rope_scaling": YARN}, "pass", "it builds the frequencies and factor"),
        ("types", TYPES, "pass", "it builds the frequencies and factor"),
        (
            "bad",
            {"vocab_size": "many"},
            "info",
            "the installed transformers cannot build it: LlamaConfig raises",
        ),
        ("unknown", {"model_type": "mine"}, "not applicable", "has no model type 'mine'"),
        ("own", {"auto_map": {"AutoModel": "a.B"}}, "not applicable", "names code of its own"),
    ):
        folder = written(tmp_path / name, {}, SERVED | more)
        rows = ran(capsys, ["check", folder, *line], 0).json["records"]
        found = [row for row in rows if row["check"] == "class table"]
        assert {row["status"] for row in found} == {status}, (name, found)
        assert all(said in row["detail"] for row in found), (name, found)
    assert ran(capsys, ["check", tmp_path / "bad", *line[:4]], 0).out.startswith("WARN")


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
    (alone := tmp_path / "alone").mkdir()
    (alone / "config.json").write_text(json.dumps(CONFIG))
    assert "a folder without *.safetensors; give" in (said := refused(capsys, alone))
    assert "`ropeaudit check` of it judges config.json" in said


def test_what_cannot_be_meant_is_refused(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "old", dtype=torch.float32)
    (folder / "config.json").rename(tmp_path / "config.json")
    for options, message in {
        f"--config {tmp_path} --model llama-2-7b": "both name a model",
        "--model llama-9": "unknown model",
        "--rotary-dim 64": "has shape 64 and --rotary-dim 64 has 32 pairs",
        "--base 0": "base 0.0",
        "--head-dim 0": "head_dim 0",
        "--base 1": "base 1.0",
        "--rotary-dim 128 --head-dim 64": "is larger than head_dim",
    }.items():
        assert message in refused(capsys, folder, *options.split())


def test_scaled_frequencies_are_described_and_not_called_right(tmp_path, capsys) -> None:
    llama3 = "llama3:factor=8,low=1,high=4,original=8192"
    setting = RopeSetting.of(128, base=5e5, scaling=scaling.parse(llama3))
    torch.save({"x": torch.from_numpy(inv(setting).astype(np.float32))}, tmp_path / "a.pt")
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
    (folder := tmp_path / "old").mkdir()
    torch.save({"a.inv_freq": theta()}, folder / "pytorch_model.bin")
    assert len(audited(capsys, folder)["records"]) == 1
    save_file({"b.inv_freq": theta().bfloat16()}, folder / "model.safetensors")
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
