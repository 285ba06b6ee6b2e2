"""Write what the command lines of the net read: kernels, configs, tables, checkpoints, graphs, reports."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import tomllib
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.main import main

from ..kernel_rows import KERNELS

HERE = Path(__file__).parent
WRITTEN = tomllib.loads((HERE / "written.toml").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = WRITTEN["configs"]


def write(folder: Path) -> Path:
    """Write all inputs into a new folder; those of a package that is missing are left out. Returns it."""
    folder.mkdir()
    shutil.copy(KERNELS / "called" / "of_command_lines.py", folder / "kernels.py")
    shutil.copy(HERE / "mine.toml", folder)
    waivers = (HERE / "waivers.toml").read_text().replace("IN/", f"{folder.as_posix()}/")
    (folder / "waivers.toml").write_text(waivers)
    configs(folder / "configs")
    arrays(folder)
    checkpoint(folder / "checkpoint")
    stored(folder / "stored")
    damaged(folder)
    cases(folder)
    reports(folder)
    optional: dict[str, Callable[[Path], None]] = {"transformers": model, "gguf": gguf, "onnx": onnx}
    for package, writes in optional.items():
        if find_spec(package) is not None:
            writes(folder)
    return folder


def run(line: str) -> None:
    """Run a command line that must succeed, silently."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(line.split())
    assert code == 0, f"{line}: {said.getvalue()}"


def configs(folder: Path) -> None:
    for name, config in CONFIGS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))


def frequencies(dims: int, base: float = 10000.0) -> np.ndarray:
    """Return base^(-2i/dims) of each pair, float64."""
    return base ** (-np.arange(0, dims, 2) / dims)


def arrays(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = np.random.default_rng(0)
    qk = {name: generator.standard_normal((2, 32, 32)).astype(np.float32) for name in "qk"}
    np.savez(folder / "qk.npz", **qk)
    save_file({name: torch.from_numpy(one) for name, one in qk.items()}, folder / "qk.safetensors")
    np.save(folder / "exact.npy", frequencies(64).astype(np.float32))
    np.save(folder / "half.npy", frequencies(64).astype(np.float16))
    angles = np.arange(128)[:, None] * frequencies(32)
    np.savez(folder / "tables.npz", cos=np.cos(angles).astype("f4"), sin=np.sin(angles).astype("f4"))
    np.savez(folder / "swapped.npz", cos=np.sin(angles).astype("f4"), sin=np.cos(angles).astype("f4"))
    cast = torch.from_numpy(frequencies(64)).bfloat16()
    save_file({"model.rotary_emb.inv_freq": cast}, folder / "cast.safetensors")


def checkpoint(folder: Path) -> None:
    """Write a folder of weights with frequencies of its config, in float32, and one that was cast."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["plain"]))
    exact = torch.from_numpy(frequencies(64)).float()
    tensors = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": exact,
        "model.layers.1.self_attn.rotary_emb.inv_freq": exact.bfloat16().float(),
        "model.layers.0.self_attn.q_proj.weight": torch.ones(4, 4),
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def stored(folder: Path) -> None:
    """Write what the modules of rope_buffers.py hold, a file each."""
    import torch

    folder.mkdir()
    spec = spec_from_file_location("rope_buffers", KERNELS / "called" / "rope_buffers.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(kernels := module_from_spec(spec))
    for name in kernels.STORED:
        made = getattr(kernels, name)()
        tensors = {key: one for key, one in vars(made).items() if isinstance(one, torch.Tensor)}
        torch.save({**tensors, **dict(made.named_buffers())}, folder / f"{name}.pt")


def damaged(folder: Path) -> None:
    """Write what cannot be read."""
    (folder / "noise.safetensors").write_bytes(b"\xff" * 64)
    (folder / "noise.npz").write_bytes(b"PK nothing")
    (folder / "noise.json").write_text("{")
    (folder / "noise.csv").write_text("a,b\n1\n")
    (folder / "noise.py").write_text("def f(:\n")
    (folder / "noise.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (folder / "noise.toml").write_text("extends = ")
    (folder / "unknown-stage.toml").write_text('extends = "hf"\nname = "x"\nspam = "fp32"\n')


def cases(folder: Path) -> None:
    """Write a case of vectors, and what two kernels wrote back: one is right, one is a position late."""
    sizes = "--heads 2 --kv-heads 1 --seq-len 16 --head-dim 16 --rotary-dim 16 --base 10000 --layout half"
    case = folder / "case"
    run(f"vectors {sizes} --offset 0,1000 --dtype fp32 --seed 0 --positions int64 -o {case}")
    manifest = json.loads((case / "manifest.json").read_text())
    theta = frequencies(16)
    for name, late in (("returned", 0), ("returned-late", 1)):
        out = folder / name
        out.mkdir()
        for call in manifest["calls"]:
            positions = np.fromfile(case / call["inputs"]["positions"]["file"], "<i8") + late
            angles = positions[:, None] * theta
            for side, given in manifest["inputs"].items():
                x = np.fromfile(case / given["file"], "<f4").reshape(given["shape"]).astype(float)
                a, b = np.split(x, 2, axis=-1)
                cos, sin = np.cos(angles), np.sin(angles)
                rotated = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
                rotated.astype("<f4").tofile(out / call["outputs"][side]["file"])


def reports(folder: Path) -> None:
    """Write reports of the commands, and two in which every third row drifts more, or less."""
    for name, line in WRITTEN["reports"].items():
        run(f"{line.replace('<small>', WRITTEN['small'])} -q -o {folder / name}")
    rows = list(csv.DictReader((folder / "before.csv").read_text().splitlines()))
    for name, times in (("after.csv", 1.5), ("lower.csv", 0.5)):
        changed = [
            row | {"drift_rms": repr(float(row["drift_rms"]) * (1 if number % 3 else times))}
            for number, row in enumerate(rows)
        ]
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(changed)
    for path in folder.glob("*.meta.json"):
        path.unlink()


def model(folder: Path) -> None:
    """Write a Llama of two layers, whose weights are the same on every machine, and one with another base."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=2**21,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    made = AutoModelForCausalLM.from_config(config)
    generator = np.random.default_rng(0)
    for name, weight in sorted(made.state_dict().items()):
        if "norm" not in name:
            weight.copy_(torch.from_numpy(generator.integers(-32, 33, tuple(weight.shape)) / 128))
    made.save_pretrained(folder / "model")


def gguf(folder: Path) -> None:
    """Write a GGUF file that holds what its config says, and one whose base was lost."""
    from gguf import GGUFWriter

    for name, base in (("converted", 10000.0), ("lost", 500000.0)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(CONFIGS["plain"]))
        writer = GGUFWriter(folder / name / "model.gguf", "llama")
        writer.add_context_length(4096)
        writer.add_embedding_length(512)
        writer.add_block_count(2)
        writer.add_head_count(8)
        writer.add_head_count_kv(2)
        writer.add_rope_freq_base(base)
        writer.add_rope_dimension_count(64)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def onnx(folder: Path) -> None:
    """Write a graph that multiplies positions by frequencies, stored in float16, and one in float32."""
    from onnx import TensorProto, helper, numpy_helper, save

    for name, dtype in (("graph16", np.float16), ("graph32", np.float32)):
        stored = numpy_helper.from_array(frequencies(64).astype(dtype), "inv_freq")
        kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Mul", ["positions", "inv_freq"], ["angles"])],
            "rotary",
            [helper.make_tensor_value_info("positions", kind, ["s", 1])],
            [helper.make_tensor_value_info("angles", kind, ["s", 32])],
            [stored],
        )
        save(helper.make_model(graph), folder / f"{name}.onnx")
