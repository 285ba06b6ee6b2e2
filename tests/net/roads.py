"""The roads on which a fault reaches the tool: what each writes in a folder, and the commands that see it.

Every file is the text of `kernel.py`, the setting, the fault, and how the road calls the steps.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import pprint
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from faults import Fault

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import vector_case
from ropeaudit.main import main
from ropeaudit.rope import hf_config
from ropeaudit.testing import assert_shift_invariant

MATRIX = Path(__file__).parents[1] / "kernels" / "matrix"
HEADS = 2


@dataclass(frozen=True)
class Answer:
    """What a command says of a row that fails. code: codes joined by `|`; words: what it prints."""

    code: str
    words: str


@dataclass(frozen=True)
class Command:
    """A command on a road's files: its name, and what runs it. Returns an answer for each row that fails."""

    name: str
    run: Callable[[], list[Answer]]


# ---------------------------------------------------------------------------- files


def written(folder: Path, fault: Fault | None, setting: Fault, call: str, given: bool = False) -> Path:
    """Write a kernel in Python. call: the file of what calls its steps.

    given: cos and sin are given to it, and the fault is in what it does then.
    """
    path = folder / "rope.py"
    parts = [(MATRIX / "kernel.py").read_text(), constants(setting)]
    if fault is not None:
        parts.append(fault.given if given and fault.given else fault.kernel)
    if call:
        parts.append((MATRIX / f"{call}.py").read_text())
    path.write_text("\n\n".join(parts))
    return path


def constants(setting: Fault) -> str:
    """Return the setting as a kernel's constants."""
    return (
        f"HEAD_DIM, ROTARY_DIM, BASE = {setting.head_dim}, {setting.rotated_dims}, {setting.base}\n"
        f"SCALING = {pprint.pformat(dict(setting.scaling))}\n"
    )


def config(folder: Path, setting: Fault, **more: object) -> Path:
    keys: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HEADS * setting.head_dim,
        "head_dim": setting.head_dim,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "vocab_size": 64,
        "max_position_embeddings": setting.scaling.get("max_position_embeddings", 8192),
        "rope_parameters": {"rope_theta": setting.base, **setting.scaling},
    }
    if setting.rotary_dim:  # of which Llama's code reads nothing
        keys |= {"model_type": "stablelm", "architectures": ["StableLmForCausalLM"]}
        keys |= {"attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6}  # of the tiny Llama
        keys["rope_parameters"]["partial_rotary_factor"] = setting.rotary_dim / setting.head_dim
    path = folder / "config.json"
    path.write_text(json.dumps(keys | more, indent=1))
    return path


def imported(path: Path) -> ModuleType:
    """Execute a written file here."""
    spec = importlib.util.spec_from_file_location("rope_of_the_matrix", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as a test suite imports it: what has a past can be executed anew
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------- commands


def records(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run a command here and return its report. Raises: RuntimeError with what it refused."""
    out, said = folder / "report.json", io.StringIO()
    out.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main([*arguments, "-o", str(out)])
    if code not in (0, 1) or not out.exists():
        raise RuntimeError(f"ropeaudit {' '.join(arguments)}: exit code {code}: {said.getvalue()}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def told(
    folder: Path,
    name: str,
    arguments: list[str],
    failed: Callable[[dict[str, Any]], bool],
) -> Command:
    """Return a command that is read row by row."""

    def run() -> list[Answer]:
        report = records(folder, arguments)
        tables = [value for key, value in report.items() if isinstance(value, list) and key != "notes"]
        rows = [row for table in tables for row in table if isinstance(row, dict) and failed(row)]
        return [Answer(row.get("diagnosis") or "", words(row)) for row in rows]

    return Command(name, run)


def words(row: dict[str, Any]) -> str:
    """Return what a row says of its cause, or of its result where it says no cause."""
    names = ["resembles", "behaviour", "finding", "cause", "verdict", "result"]
    if row.get("kind") == "checkpoint":
        names.insert(0, "detail")
    return next((str(row[name]) for name in names if row.get(name) not in (None, "", "none")), "")


def check(folder: Path, target: str, *arguments: str) -> Command:
    """Return `ropeaudit check`."""
    return told(folder, "check", ["check", target, *arguments], lambda row: row.get("status") == "fail")


def code_commands(
    folder: Path, path: Path, name: str, setting: Fault, *more: str, order: str | None = None
) -> list[Command]:
    """Return the commands that see code in a file. more: options that `check` does not have."""
    target, at = f"{path}:{name}", ["--config", str(config(folder, setting)), "--layout", "half"]
    at += ["--dtype", setting.dtype, *(["--order", order] if order else [])]
    calls = ["--offset", f"0,{setting.offset}", "--heads", str(HEADS), "--seq-len", "32", *more]
    judged = ["--up-to", str(setting.up_to), "--under", "none"]
    shift = told(folder, "shift", ["shift", "--impl", target, *at, *calls], wrong_shift)
    explain = told(folder, "explain", ["explain", target, *at, *calls], explained)
    if more:
        return [shift, explain]
    testing = Command("testing", lambda: helper(path, name, setting, order))
    return [check(folder, target, *at, *judged), shift, explain, testing]


def explained(row: dict[str, Any]) -> bool:
    """Return whether a row of `explain` says what code resembles; at an offset it may resemble right code."""
    return "diagnosis" in row or "behaviour" in row


def summary(row: dict[str, Any]) -> bool:
    """Return whether a row of `model` is about a whole run, and something of it changes."""
    return bool(row.get("diagnosis")) or row.get("verdict", "none") != "none"


def wrong_shift(row: dict[str, Any]) -> bool:
    return row.get("within_tolerance") is False or (row.get("rotation_excess") or 0) > 1


def helper(path: Path, name: str, setting: Fault, order: str | None) -> list[Answer]:
    """Return what the helper for pytest says."""
    (rope,) = hf_config.read(str(config(path.parent, setting))).layers.values()
    try:
        assert_shift_invariant(
            getattr(imported(path), name),
            dtype=setting.dtype,
            recipe="hf",
            offsets=(0, setting.offset),
            head_dim=setting.head_dim,
            rotary_dim=setting.rotated_dims,
            base=setting.base,
            scaling=str(rope.scaling),
            heads=HEADS,
            seq_len=32,
            order=order,
        )
    except AssertionError as error:
        words = str(error).partition("behaves like: ")[2]
        return [Answer(getattr(error, "diagnosis", None) or "", words or "no known implementation matches")]
    return []


# ---------------------------------------------------------------------------- roads


def function(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """f(x, positions)."""
    return code_commands(folder, written(folder, fault, setting, "call_function"), "rope", setting)


def stored(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """f(positions, q, k), with a table that is made when the file is imported."""
    return code_commands(folder, written(folder, fault, setting, "call_stored"), "rope", setting)


def cached(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A class with a table that grows."""
    return code_commands(folder, written(folder, fault, setting, "call_cached"), "Rope", setting)


def tables(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """f(q, k, cos, sin): faults of formats by --set, the others in the function.

    The order of the axes is given: with another one, a table that is broadcast wrongly may fit.
    """
    by_option = ["--set", fault.set] if fault is not None and fault.set and not fault.given else []
    path = written(folder, None if by_option else fault, setting, "call_tables", given=True)
    return code_commands(folder, path, "rope", setting, *by_option, order="bhsd")


def named(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A library's function by its name, whose tables --set makes in another format."""
    at = ["--config", str(config(folder, setting)), "--dtype", setting.dtype, "--heads", str(HEADS)]
    at += ["--seq-len", "32", "--offset", f"0,{setting.offset}"]
    if fault is not None:
        at += ["--set", fault.set]
    name = "transformers.models.llama.modeling_llama:apply_rotary_pos_emb"
    return [
        told(folder, "shift", ["shift", "--impl", name, *at], wrong_shift),
        told(folder, "explain", ["explain", name, *at], explained),
    ]


def vectors(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """Files of a kernel outside Python."""
    kernel = imported(written(folder, fault, setting, "call_vectors"))
    case, out = folder / "case", folder / "out"
    out.mkdir()
    sizes = ["--heads", str(HEADS), "--kv-heads", str(HEADS), "--seq-len", "48"]
    at = ["--config", str(config(folder, setting)), "--dtype", setting.dtype]
    at += ["--offset", f"0,{setting.offset}"]
    if fault is None or fault.code != "q-k-swapped":  # grouped heads of the one do not fit the other
        at.append("--served")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        done = main(["vectors", "-o", str(case), *at, *sizes])
    assert done == 0
    given = vector_case.read(case)
    dtype = parse(setting.dtype)
    kind = getattr(torch, dtype.name)
    q, k = (torch.tensor(np.asarray(given.vectors()[side], np.float32)).to(kind) for side in ("q", "k"))
    for call in given.spec.calls:
        results = kernel.rope(call.part(q, False), call.part(k, True), torch.tensor(call.positions()))
        for side, x in zip(("q", "k"), results, strict=True):
            values = vector_case.array(round_to(x.float().numpy(), dtype), dtype)
            (out / f"{side}.{call.key}.bin").write_bytes(vector_case.to_bytes(values))
    (out / "case.txt").write_text(given.digest + "\n")
    return [check(folder, str(case), "--returned", str(out))]


def module(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A module that returns cos and sin."""
    target = f"{written(folder, fault, setting, 'call_module')}:Rope"
    at = ["--config", str(config(folder, setting)), "--layout", "half", "--dtype", setting.dtype]
    return [check(folder, target, *at, "--up-to", str(setting.up_to), "--under", "none")]


def wrong_buffer(row: dict[str, Any]) -> bool:
    return row.get("agrees") == "no"


def held(folder: Path, fault: Fault | None, setting: Fault) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a file of the fault holds: frequencies, and tables of all positions that are served."""
    kernel = imported(written(folder, fault, setting, ""))
    served = hf_config.read(str(config(folder, setting))).maximum
    cos, sin = kernel.kept(*kernel.made(torch.arange(served)))
    named = {"inv_freq": kernel.frequencies(), "cos_cached": cos, "sin_cached": sin}
    return {name: values.numpy().astype(np.float32) for name, values in named.items()}


def checkpoint(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A checkpoint's tensors."""
    from safetensors.numpy import save_file

    tensors = {
        f"model.layers.0.self_attn.rotary_emb.{name}": np.ascontiguousarray(x)
        for name, x in held(folder, fault, setting).items()
    }
    place = folder / "weights"
    place.mkdir()
    save_file(tensors, place / "model.safetensors")
    config(place, setting)
    return [
        told(folder, "module", ["module", str(place)], wrong_buffer),
        told(
            folder,
            "check",
            ["check", str(place), "--dtype", setting.dtype, "--up-to", "4096"],
            lambda row: row.get("status") == "fail",
        ),
    ]


def onnx(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A graph whose operator says which constant is cos and which is sin."""
    import onnx as format
    from onnx import helper, numpy_helper

    values = held(folder, fault, setting)
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(values[f"{name}_cached"]), f"{name}_cache")
        for name in ("cos", "sin")
    ]
    node = helper.make_node(
        "RotaryEmbedding",
        ["x", "position_ids", "cos_cache", "sin_cache"],
        ["y"],
        domain="com.microsoft",
        name="rope",
    )
    x = helper.make_tensor_value_info("x", format.TensorProto.FLOAT, ["b", HEADS, "s", setting.head_dim])
    at = helper.make_tensor_value_info("position_ids", format.TensorProto.INT64, ["b", "s"])
    y = helper.make_tensor_value_info("y", format.TensorProto.FLOAT, ["b", HEADS, "s", setting.head_dim])
    path = folder / "rope.onnx"
    format.save(helper.make_model(helper.make_graph([node], "rope", [x, at], [y], constants)), path)
    return [
        told(folder, "module", ["module", str(path), "--config", str(config(folder, setting))], wrong_buffer)
    ]


def model(folder: Path, fault: Fault | None, setting: Fault) -> list[Command]:
    """A tiny Llama whose code the folder brings."""
    from transformers import AutoConfig, LlamaForCausalLM

    place = folder / "tiny"
    place.mkdir()
    config(place, setting)
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        LlamaForCausalLM(AutoConfig.from_pretrained(place, initializer_range=0.3)).save_pretrained(place)
    written(place, fault, setting, "remote").rename(place / "modeling_tiny.py")
    config(place, setting, initializer_range=0.3, auto_map={"AutoModelForCausalLM": "modeling_tiny.Tiny"})
    tokens = min(32, setting.scaling.get("max_position_embeddings", 32))
    arguments = ["--trust-remote-code", "--tokens", str(tokens), "--offset", str(setting.offset)]
    arguments += ["--dtype", setting.dtype]
    return [told(folder, "model", ["model", str(place), *arguments], summary)]


ROADS: dict[str, Callable[[Path, Fault | None, Fault], list[Command]]] = {
    "class" if road is cached else road.__name__: road
    for road in (function, stored, cached, tables, named, vectors, module, checkpoint, onnx, model)
}
