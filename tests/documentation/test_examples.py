"""Every example runs and prints what stands at its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropeaudit import shift

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = {".py": sys.executable, ".sh": "bash"}


def expected(path: Path) -> str:
    _, _, tail = path.read_text(encoding="utf-8").partition("# Output:\n")
    return "".join(line.removeprefix("# ") + "\n" for line in tail.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"})
)
def test_example(name: str) -> None:
    path = EXAMPLES / name
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [PROGRAMS[path.suffix], str(path)], capture_output=True, text=True, env=os.environ | {"PATH": paths}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected(path)
    assert expected(path)


def test_recipe_of_ones_own() -> None:
    (record,) = shift(2**20, "bf16", str(EXAMPLES / "mine.toml"), heads=1)
    assert (record.implementation, record.verdict) == ("hf-fp64-angles", "sound")
