"""Forty answers at 100 and 80 columns: what people see first. The snapshots are to be read."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ropeaudit.console import delivery
from ropeaudit.main import main
from ropeaudit.reports import Report
from ropeaudit.reports.forms import table

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "kernels"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}
CONFIGS = {
    "plain": {},
    "yarn-short": {"max_position_embeddings": 131072, "rope_scaling": YARN},
    "yarn": {"max_position_embeddings": 65536, "rope_scaling": YARN},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "unknown": {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}},
    "partial": {"partial_rotary_factor": 0.5, "model_type": "glm4"},
    "no-rope": {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2},
}
SMALL = "--up-to 4096 --dtype bf16"
CHECKS = {
    "kernel passes": f"check kernel.py:apply_rope {SMALL}",
    "kernel with narrow positions": f"check faulty.py:bfloat16_positions {SMALL}",
    "kernel with cast frequencies": f"check faulty.py:cast_frequencies {SMALL}",
    "kernel changes its input": f"check faulty.py:changes_input {SMALL}",
    "kernel with a scaled angle": f"check reduction.py:pi_31415 {SMALL}",
    "kernel with one wrong head": f"check faulty.py:last_head_of_k {SMALL}",
    "kernel ignores the first row": f"check faulty.py:first_row {SMALL}",
    "kernel raises": "check raises.py:undefined_name --up-to 256",
    "kernel refused": "check needs.py:right --up-to 256",
    "two kernels": "check kernel.py:apply_rope reduction.py:pi_31415 --up-to 1024 --dtype bf16",
    **{f"config {name}": f"check {name}.json" for name in CONFIGS},
}
OTHERS = {
    "shift": "shift",
    "shift within tolerance": "shift --recipe hf --dtype bf16,fp16 --offset 0,131072",
    "shift overflows": "shift --recipe uniform --dtype fp16 --offset 70000",
    "shift of a model": "shift --config yarn.json --dtype bf16 --heads 2 --kv-heads 2",
    "shift after softmax": "shift --recipe uniform --dtype bf16 --attention",
    "shift of code": "shift --impl faulty.py:bfloat16_positions --dtype bf16 --offset 0,1000 --heads 2",
    "limit": "limit --recipe hf --dtype bf16 --budget 64",
    "limit fails": "limit --recipe uniform --dtype bf16,fp16",
    "limit of a model": "limit --config plain.json --dtype bf16 --heads 2 --kv-heads 2 --budget 64",
    "explain": "explain --recipe hf-4.31-table --dtype bf16 --offset 131072",
    "explain within tolerance": "explain --recipe hf --dtype bf16",
    "explain code": "explain faulty.py:bfloat16_positions --dtype bf16 --heads 2",
    "parity": "parity hf uniform",
    "parity of equals": "parity hf hf-sdpa --set score=fp32 --dtype fp32",
    "decay": "decay --distance 0,10,1000",
    "module": "module cast_buffers.py:cast_and_back",
    "vectors": "vectors -o vectors --dtype bf16 --offset 0,1000",
    "report": "report a.csv",
    "report by": "report a.csv --by implementation,dtype",
    "report against": "report a.csv --against a.csv",
    "list": "list formats",
    "list diagnoses": "list diagnoses narrow-positions",
}
LONGEST = {100: 15, 80: 20}  # lines of an answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers")
    files = {
        "kernel.py": ROOT / "examples" / "kernel.py",
        "cast_buffers.py": ROOT / "examples" / "cast_buffers.py",
        "faulty.py": KERNELS / "conformance" / "kernels_faulty.py",
        "reduction.py": KERNELS / "cases" / "reduction.py",
        "raises.py": KERNELS / "cases" / "always_raises.py",
        "needs.py": KERNELS / "cases" / "many_needed.py",
    }
    for name, source in files.items():
        shutil.copy(source, path / name)
    for name, more in CONFIGS.items():
        config = more if name == "no-rope" else LLAMA | more
        (path / f"{name}.json").write_text(json.dumps(config))
    assert main(["shift", "--heads", "1", "--seq-len", "64", "-q", "-o", f"{path / 'a.csv'}"]) == 0
    return path


def screens(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    reports: list[Report] = []

    def keep(report: Report, screen: delivery.ScreenOptions, alone: bool = False) -> int:
        reports.append(replace(report, verbose=screen.verbose))
        return 0

    monkeypatch.setattr(delivery, "print_report", keep)
    main(command.split())
    results = {}
    for width in LONGEST:
        lines = [line for report in reports for line in table.lines(report, width)]
        results[width] = "".join(f"{''.join(text for text, _ in line).rstrip()}\n" for line in lines)
    return results


@pytest.mark.slow  # each is a whole command
@pytest.mark.parametrize("name", [*CHECKS, *OTHERS])
def test_an_answer_is_short_and_fits(name, folder, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(folder)
    shown = screens({**CHECKS, **OTHERS}[name], monkeypatch)
    error = capsys.readouterr().err
    for width, text in shown.items():
        lines = text.splitlines()
        if name in CHECKS or name.startswith(("limit", "explain", "parity", "module")):
            assert len(lines) <= LONGEST[width], text
        assert all(len(line) <= width for line in lines[:1]), text
    assert "Traceback" not in error
    # how far it is, and how long it took, is said of what takes seconds, and depends on the machine
    said = "".join(f"{line}\n" for line in error.splitlines() if not re.search(r"done in|: +\d+%", line))
    assert f"{shown[100]}--- 80\n{shown[80]}--- stderr\n{said}" == snapshot
