"""torch and pandas that cannot be used: what needs neither runs, and the rest says what to type."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from cases import first_fast

ROOT = Path(__file__).parents[1]
SMALL = ("--heads", "1", "--seq-len", "8", "--dtype", "bf16")
FREE = (  # with NumPy alone
    ("shift", *SMALL, "--offset", "0,1000"),
    ("limit", *SMALL, "--recipe", "hf", "--up-to", "2k"),
    ("explain", *SMALL, "--recipe", "uniform"),
    ("decay", "--dtype", "bf16"),
    ("list", "recipes"),
    ("list", "frequencies"),
    ("list", "environment"),
    ("parity", "hf", "meta", *SMALL),
    ("check", "llama-3.1-8b", "--dtype", "bf16", "--up-to", "1k"),
)
NEEDS_TORCH = (
    ("shift", *SMALL, "--backend", "torch"),
    ("shift", *SMALL, "--qk", "randn"),
    ("shift", "--dtype", "bf16", "--qk", "qk.pt"),
    ("shift", *SMALL, "--impl", f"{ROOT}/examples/kernel.py:apply_rope"),
    ("shift", *SMALL, "--impl", "transformers-llama"),
    ("check", f"{ROOT}/examples/kernel.py:apply_rope"),
    ("module", f"{ROOT}/examples/cast_buffers.py:model"),
    ("module", "qk.pt"),
)
_RUN = """
import contextlib, io, json, os, sys
os.environ["ROPEAUDIT_DOOR"] = "in-process"  # where the package cannot be used
sys.path.insert(0, {place!r})
{before}
from ropeaudit.main import main
results = []
try:
    import ropeaudit
    ropeaudit.to_frame(ropeaudit.shift(heads=1, seq_len=2))
except ropeaudit.MissingPackage as error:
    results.append((2, f"ropeaudit: error: {{error}}\\n"))
try:
    list(ropeaudit.shift(heads=1, seq_len=2, backend="torch"))
except ropeaudit.MissingPackage as error:
    results.append((2, f"ropeaudit: error: {{error}}\\n"))
for command in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    results.append((code, err.getvalue()))
print(json.dumps(results))
"""


class Kind(NamedTuple):
    """One way in which a package cannot be used: its __init__.py, a statement before it, what is said."""

    file: str | None
    before: str
    said: str


KINDS = {
    "missing": Kind(
        None,
        "sys.modules['torch'] = sys.modules['pandas'] = None",
        "{0}, which is not installed; type: pip install {0}",
    ),
    "broken": Kind(
        "raise ImportError('libtorch_cpu.so: cannot open shared object file')",
        "",
        "{0}, which cannot be imported (ImportError: libtorch_cpu.so: cannot open shared object file); "
        "type: pip install --force-reinstall {0}",
    ),
    "no DLL": Kind(
        "raise OSError('[WinError 126] The specified module could not be found')",
        "",
        "{0}, which cannot be imported (OSError: [WinError 126] The specified module could not be found); "
        "type: pip install --force-reinstall {0}",
    ),
    "hidden": Kind(
        "",
        "",
        "{0}, but '{1}/{0}/__init__.py' is imported in its place; rename that, or run from another folder",
    ),
}


@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_what_needs_a_package_that_cannot_be_used_says_so_and_the_rest_runs(kind: str, tmp_path) -> None:
    how = KINDS[kind]
    for package in ("torch", "pandas"):
        if how.file is not None:
            (tmp_path / "there" / package).mkdir(parents=True)
            (tmp_path / "there" / package / "__init__.py").write_text(how.file)
    (tmp_path / "qk.pt").write_bytes(b"0")
    free = FREE if kind == "missing" else FREE[:1]
    commands = [list(command) for command in (*free, *NEEDS_TORCH)]
    script = _RUN.format(place=str(tmp_path / "there"), before=how.before, commands=commands)
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    frame, called, *results = json.loads(ran.stdout)
    said = how.said.format("torch", tmp_path / "there")
    assert frame[1].endswith("this needs " + how.said.format("pandas", tmp_path / "there") + "\n")
    assert called[1].endswith(f"this needs {said}\n")
    for command, (code, errors) in zip(commands, results, strict=True):
        if command in commands[: len(free)]:
            assert code == 0, (command, errors)
        else:
            own = [line for line in errors.splitlines() if not line.startswith("[transformers]")]
            assert (code, len(own)) == (2, 1), (command, errors)
            assert errors.endswith(f" needs {said}\n"), (command, errors)
