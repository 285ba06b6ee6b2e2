"""What one touches to add something: a toy of each kind is added to a copy of the package, and works.

`adding.toml` holds every place that is touched; CONTRIBUTING.md's table has the same numbers and files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

import pytest
from cases import table

from ropeaudit.main import main

ROOT = Path(__file__).parent.parent
ADDED = table(__file__, "adding.toml")

# Runs every call of a JSON list in this process, and prints the exit code and what each put out.
CALLER = """
import contextlib, io, json, sys
from ropeaudit.main import main
seen = []
for line in json.load(sys.stdin):
    sys.argv = ["ropeaudit", *line.split()]
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(sys.argv[1:])
    seen.append([code, *(one.buffer.getvalue().decode() for one in (out, errors))])
print(json.dumps(seen))
"""


def touch(package: Path, place: dict[str, str], beside: dict[str, str]) -> None:
    """Put a text into a file of a package, before its anchor or at its end, and write files beside it."""
    path, anchor = package / place["file"], place.get("anchor", "")
    path.parent.mkdir(exist_ok=True)
    for name, text in beside.items():
        (path.parent / name).write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    assert before.count(anchor) == 1 or not anchor, (path, anchor)
    at = before.index(anchor) if anchor else len(before)
    path.write_text(before[:at] + place["text"] + before[at:], encoding="utf-8")


def test_every_place_is_in_the_row_of_its_kind() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z -]+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(ADDED)
    for kind, number, where in rows:
        files = [place["file"] for place in ADDED[kind]["places"]]
        assert len(files) == int(number), kind
        for named in files:
            parents = (f"`ropeaudit/{named}`", *(f"`ropeaudit/{parent}/`" for parent in Path(named).parents))
            assert any(one in where for one in parents), (kind, named)


@pytest.mark.slow
def test_toys_are_added_in_the_places_of_the_table_and_work(tmp_path) -> None:
    """All in one copy of the package, called in one process."""
    package = tmp_path / "ropeaudit"
    copytree(ROOT / "ropeaudit", package, ignore=ignore_patterns("__pycache__"))
    for place in (place for kind in ADDED.values() for place in kind["places"]):
        touch(package, place, place.get("beside", {}))
    copyfile(ROOT / "tests" / "kernels" / "called" / "quarter_turned.py", tmp_path / "kernel.py")
    copyfile(ROOT / "examples" / "kernel.py", tmp_path / "careful.py")
    calls = [call for kind in ADDED.values() for call in kind["calls"]]
    # the package lies below the user's folder, and is not the user's
    calls += [["check careful.py:apply_rope --in-process --up-to 64 --dtype fp32 --under none", "PASS"]]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NO_COLOR": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLER],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        input=json.dumps([command for command, _ in calls]),
    )
    assert done.returncode == 0, done.stderr
    wrong = [
        (command, seen)
        for (command, expected), seen in zip(calls, json.loads(done.stdout), strict=True)
        if seen[0] != 0 or expected not in seen[1]
    ]
    assert not wrong


def test_what_is_not_added_is_not_there(capsys) -> None:
    """Without its places none of the toys is known: what the test above sees is what was added."""
    for command in ("shift --recipe toy", "shift --impl toy", "shift --scaling toy:factor=4", "toy"):
        assert (main(command.split()), capsys.readouterr().out) == (2, ""), command
