"""Files of the current folder that are named as packages are imported by no command, nor by its children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make

from ropeaudit.main import COMMANDS

NAMES = ("torch", "numpy", "ropeaudit", "json", "pickle", "click", "pandas", "helper_of_nobody", "socket")
HOSTILE = "open({marker!r}, 'a').write(__name__ + '\\n')\nraise ImportError('hostile')\n"
KERNEL = """
import json, click
import numpy as np
from helper import BASE
def f(x, positions):
    d = x.shape[-1]
    a = positions[:, None] / BASE ** (np.arange(0, d, 2) / d)
    c, s, u, v = np.cos(a), np.sin(a), x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([u * c - v * s, v * c + u * s], -1).astype(x.dtype)
"""
CARELESS = """
import torch
from helper import BASE
def f(x, positions):
    a = positions.to(x.dtype)[:, None] / BASE ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    c, s, (u, v) = a.cos(), a.sin(), x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1).to(x.dtype)
"""
MODULE = """
import torch
class Rotary(torch.nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000.0 ** (torch.arange(0, dim, 2) / dim))
"""
SMALL = ["--heads", "1", "--seq-len", "24", "--head-dim", "16"]
CODE = "code/rope.py:f"
# command: command lines of it, which together start what it may start
LINES: dict[str, list[list[str]]] = {
    "check": [["check", CODE, "--up-to", "100", "--dtype", "fp32", "--head-dim", "16"]],
    "shift": [
        ["shift", "--impl", f"{CODE},packed.rope:f", *SMALL, "--dtype", "fp32", "--jobs", "2"],
        [
            "shift",
            "--impl",
            "code/careless.py:f",
            *SMALL,
            "--dtype",
            "bf16",
            "--offset",
            "1000",
            "--ticket",
            "ticket.md",
        ],
    ],
    "limit": [["limit", "--impl", CODE, *SMALL, "--up-to", "100", "--dtype", "fp32"]],
    "explain": [["explain", "--recipe", "hf", *SMALL], ["explain", CODE, *SMALL]],
    "parity": [["parity", CODE, "hf", *SMALL]],
    "vectors": [["vectors", "-o", "vectors", *SMALL]],
    "module": [["module", "code/module.py:Rotary", "--loaded", "built"]],
    "model": [["model", "{model}", "--tokens", "5,6,7", "--offset", "9", "--dtype", "fp32"]],
    "decay": [["decay", "--head-dim", "16"]],
    "plot": [["plot", "{rows}", "-o", "rows.svg"]],
    "report": [
        ["report", "{rows}", "-o", "rows.html"],
        ["report", "{rows}", "--by", "implementation,dtype"],
        ["report", "{rows}", "--against", "{rows}"],
        ["report", "{rows}", "{rows}", "-o", "merged.csv"],
    ],
    "list": [
        ["list", "implementations"],
        ["list", "frequencies", "--head-dim", "16"],
        ["list", "environment"],
    ],
}


def test_every_command_is_tried() -> None:
    assert set(LINES) == {name for lines in COMMANDS.values() for name in lines}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder where commands run, with hostile files; own code lies in folders of it."""
    here = tmp_path / "here"
    for name in NAMES:
        write(here / f"{name}.py", HOSTILE.format(marker=str(tmp_path / "marker")))
    for place in ("code", "packed"):
        write(
            here / place / "rope.py", KERNEL.replace("from helper", f"from {'.' * (place == 'packed')}helper")
        )
        write(here / place / "helper.py", "BASE = 10000.0\n")
    write(here / "code" / "module.py", MODULE)
    write(here / "code" / "careless.py", CARELESS)
    return here


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def run(folder: Path, line: list[str], *start: str) -> subprocess.CompletedProcess[str]:
    """Run a command line there, by the installed command unless another way to start it is given."""
    command = start or (str(Path(sys.executable).with_name("ropeaudit")),)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [*command, *line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


SLOW = ("model", "check")  # what trains, or loads torch several times


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LINES]
)
def test_no_command_imports_what_lies_about(name, folder, tmp_path) -> None:
    places = {"model": str(tmp_path / "model"), "rows": str(tmp_path / "rows.csv")}
    if name == "model":
        make("llama", tmp_path / "model", steps=1)
    if name in ("plot", "report"):
        rows = ["shift", "--recipe", "hf", *SMALL, "-q", "-o", places["rows"]]
        assert run(folder, rows).returncode == 0
    for line in LINES[name]:
        done = run(folder, [word.format(**places) for word in line])
        assert done.returncode in (0, 1), done.stderr
        assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()
    if name == "shift":
        ticket = (folder / "ticket.md").read_text()
        assert "It prints `drift_rms" in ticket


def test_started_as_a_module_neither(folder, tmp_path) -> None:
    """But Python itself looks for the package's name in the folder first."""
    (folder / "ropeaudit.py").unlink()
    start = (sys.executable, "-m", "ropeaudit")
    done = run(folder, ["shift", "--impl", CODE, *SMALL, "--dtype", "fp32", "--jobs", "2"], *start)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()


def test_the_files_can_be_imported(folder, tmp_path) -> None:
    """By Python where nothing keeps it from that: else no test here could fail."""
    assert run(folder, ["-c", "import json"], sys.executable).returncode == 1
    assert (tmp_path / "marker").read_text() == "json\n"
