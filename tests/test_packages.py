"""torch and pandas that cannot be used: what needs neither runs, and the rest says what to type."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import first_fast, table

ROOT = Path(__file__).parents[1]
TABLE = table(__file__, "packages.toml")
KINDS = TABLE["kinds"]


def lines(name: str) -> list[list[str]]:
    """Return command lines of the table, each split into words."""
    return [line.replace("<small>", TABLE["small"]).format(root=ROOT).split() for line in TABLE[name]]


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


@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_what_needs_a_package_that_cannot_be_used_says_so_and_the_rest_runs(kind: str, tmp_path) -> None:
    how = KINDS[kind]
    for package in ("torch", "pandas"):
        if "file" in how:
            (tmp_path / "there" / package).mkdir(parents=True)
            (tmp_path / "there" / package / "__init__.py").write_text(how["file"])
    (tmp_path / "qk.pt").write_bytes(b"0")
    free = lines("free") if kind == "missing" else lines("free")[:1]
    commands = [*free, *lines("needs_torch")]
    script = _RUN.format(place=str(tmp_path / "there"), before=how["before"], commands=commands)
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    frame, called, *results = json.loads(ran.stdout)
    said = how["said"].format("torch", tmp_path / "there")
    assert frame[1].endswith("this needs " + how["said"].format("pandas", tmp_path / "there") + "\n")
    assert called[1].endswith(f"this needs {said}\n")
    for command, (code, errors) in zip(commands, results, strict=True):
        if command in commands[: len(free)]:
            assert code == 0, (command, errors)
        else:
            own = [line for line in errors.splitlines() if not line.startswith("[transformers]")]
            assert (code, len(own)) == (2, 1), (command, errors)
            assert errors.endswith(f" needs {said}\n"), (command, errors)
