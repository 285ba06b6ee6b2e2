"""Files of the current folder that are named as packages are imported by no command, nor by its children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make

from ropeaudit import data

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
SMALL = "--heads 1 --seq-len 24 --head-dim 16"
CODE = "code/rope.py:f"
# command lines, which together start what commands may start
LINES = f"""
shift --recipe hf {SMALL} -q -o rows.csv
shift --impl {CODE},packed.rope:f {SMALL} --dtype fp32 --jobs 2
shift --impl code/careless.py:f {SMALL} --dtype bf16 --offset 1000 --ticket ticket.md
limit --impl {CODE} {SMALL} --up-to 100 --dtype fp32
explain --recipe hf {SMALL}
explain {CODE} {SMALL}
parity {CODE} hf {SMALL}
vectors -o vectors {SMALL}
module {CODE} --up-to 64 --head-dim 16 --dtype bf16 --under none
decay --head-dim 16 --distance 0-64+8
plot rows.csv -o rows.svg
report rows.csv -o rows.html
report rows.csv --by implementation,dtype
report rows.csv --against rows.csv
report rows.csv rows.csv -o merged.csv
list implementations
list frequencies --head-dim 16
list environment
check {CODE} --up-to 100 --dtype fp32 --head-dim 16
model model --tokens 5,6,7 --offset 9 --dtype fp32
""".strip().splitlines()
# As the installed command starts them, but one after the other: from a file that lies in no folder of theirs.
STARTED = """
import sys
from ropeaudit.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["ropeaudit", *line.split()]
    code = main(sys.argv[1:])
    if code not in (0, 1):
        sys.exit(f"{line}: exit code {code}")
"""


def test_every_command_is_tried() -> None:
    assert {line.split()[0] for line in LINES} == {
        name for lines in data.table("help.toml")["commands"].values() for name in lines
    }


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


def run(folder: Path, line: str, *start: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line there, by the installed command unless another way to start it is given."""
    command = [*(start or (str(Path(sys.executable).with_name("ropeaudit")),)), *line.split()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False
    )


def test_the_installed_command_imports_nothing_that_lies_about(folder, tmp_path) -> None:
    for line in ("list formats", f"explain {CODE} {SMALL} -q"):
        assert run(folder, line).returncode == 0
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()


@pytest.mark.slow  # all commands, in a process
@pytest.mark.parametrize("trained", [False, True], ids=["others", "check and model"])
def test_no_command_imports_what_lies_about(trained, folder, tmp_path) -> None:
    if trained:
        make("llama", folder / "model", steps=1)
    write(tmp_path / "start" / "run.py", STARTED)
    lines = [line for line in LINES if line.startswith(("check", "model ")) == trained]
    done = run(folder, "", sys.executable, str(tmp_path / "start" / "run.py"), given="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()
    assert trained or "It prints `drift_rms" in (folder / "ticket.md").read_text()


def test_started_as_a_module_neither(folder, tmp_path) -> None:
    """But Python itself looks for the package's name in the folder first."""
    (folder / "ropeaudit.py").unlink()
    start = (sys.executable, "-m", "ropeaudit")
    done = run(folder, f"shift --impl {CODE} {SMALL} --dtype fp32 --jobs 2", *start)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()


def test_the_files_can_be_imported(folder, tmp_path) -> None:
    """By Python where nothing keeps it from that: else no test here could fail."""
    assert run(folder, "", sys.executable, "-c", "import json").returncode == 1
    assert (tmp_path / "marker").read_text() == "json\n"
