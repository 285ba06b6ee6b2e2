"""The default command is fast because it loads little: a child process says what it loaded."""

import json
import os
import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "pandas", "matplotlib", "transformers", "pyarrow"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nimport json\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.split(".")[0] for name in json.loads(out.splitlines()[-1])}


def command(*arguments: str) -> str:
    return f"from ropeaudit.main import main\nassert main({list(arguments)!r}) == 0"


def test_importing_the_package_loads_nothing_else() -> None:
    assert not loaded_by("import ropeaudit") & (HEAVY | {"numpy", "rich", "click"})


def test_help_loads_no_numpy() -> None:
    lines = [
        "--help",
        "--version",
        *(f"{name} --help" for name in ("shift", "explain", "model", "plot", "report")),
    ]
    loaded = loaded_by("\n".join(command(*line.split()) for line in lines))
    assert not loaded & (HEAVY | {"numpy", "rich", "jinja2"})


def features_loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*[m for m in sys.modules if m.startswith('ropeaudit.features.')])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.split(".")[2] for name in out.splitlines()[-1].split()}


def test_a_command_is_imported_when_it_is_called() -> None:
    assert features_loaded_by(command("--help")) == set()
    assert features_loaded_by(command("shift", "--help")) == {"shift"}
    assert features_loaded_by(command("shift", "--heads", "1", "--seq-len", "2", "-q")) == {"shift"}


def test_the_default_shift_loads_neither_torch_nor_pandas() -> None:
    shift = "shift --offset 1000 --dtype fp16 -f"
    few = loaded_by("\n".join(command(*shift.split(), form) for form in ("table", "csv")))
    assert not few & (HEAVY | {"jinja2", "rich", "logging", "shutil", "tempfile", "zipfile"})
    assert not HEAVY & loaded_by(
        "\n".join(command(*shift.split(), form) for form in ("json", "jsonl", "markdown"))
    )


def test_the_door_can_be_seen_open() -> None:
    on_torch = command("shift", "--backend", "torch", "--dtype", "fp32", "--heads", "1", "--seq-len", "2")
    assert "torch" in loaded_by(on_torch)
    assert "pandas" in loaded_by("from ropeaudit import shift, to_frame\nto_frame(shift(heads=1, seq_len=2))")


@pytest.mark.slow
def test_a_default_shift_takes_at_most_a_quarter_of_importing_torch(tmp_path) -> None:
    """By processor time: what else runs on the machine takes none of it. 0.19 is measured, a fifth asked for.

    Compiled as where it is installed: without bytecode every run compiles the package anew, and never torch.
    """
    alone = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    alone.pop("PYTHONDONTWRITEBYTECODE", None)
    alone["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env=alone)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    ours = ("-m", "ropeaudit")
    commands = (
        ("-c", "import torch"),
        (*ours, "shift", "--offset", "1000", "--dtype", "fp16"),
        (*ours, "--help"),
    )
    runs = [[seconds(*command) for command in commands] for _ in range(3)]
    torch, shift, help_ = (min(times) for times in zip(*runs, strict=True))
    assert shift / torch < 1 / 4, f"{shift / torch:.2f}"
    assert help_ / torch < 1 / 10, f"{help_ / torch:.2f}"
