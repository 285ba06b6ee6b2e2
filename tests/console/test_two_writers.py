"""Two files that a command writes: it is refused before any work, or both of them stand there whole."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from ropeaudit.main import main
from ropeaudit.reports.tickets import drift
from ropeaudit.reports.tickets.reproduction import Reproduction, Snippet

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links")

SIZES = "--heads 1 --seq-len 4 --head-dim 8"
SHIFT = "shift --heads 1 --seq-len 24 --head-dim 16 --recipe uniform --dtype bf16 --offset 1000"
TICKET = f"{SHIFT} --impl mine.py:turn"
CHECK = "check c.json --recipe uniform --dtype fp16"
CODE = """import torch
def turn(x, positions):
    return x
class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 64, 2) / 64))
def cast():
    return Rotary().to(torch.bfloat16)
"""
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "rope_theta": 1e4}
CONFIG |= {"max_position_embeddings": 60000}
REPORTS = [  # commands that write reports alone; slow ones behind
    *("report a.json", "report a.json b.json"),
    *("report a.json --by implementation", "report b.json --against a.json"),
    *(
        "list frequencies --head-dim 8",
        f"explain {SIZES} --offset 9",
        f"shift {SIZES} --rerotate 2",
        "decay --head-dim 8",
    ),
    f"limit {SIZES} --recipe hf --dtype fp16 --up-to 99",
]
COSTLY = ("check", "module", "explain", "decay")
SLOW = ["explain mine.py:turn", "plot --kind limit safe.json"]
PAIRS = [
    *((line, "-o", "-o") for line in (SHIFT, CHECK, f"parity hf uniform {SIZES}", *REPORTS, *SLOW)),
    *((TICKET, *flags) for flags in (("-o", "--ticket"), ("--ticket", "-o"))),
    (CHECK, "-o", "--junit"),
    (CHECK, "-o", "--ticket"),
    (CHECK, "--junit", "--ticket"),
    ("module mine.py:cast --base 10000", "-o", "--ticket"),
]
MEET = ["x.csv", "./x.csv", "ABSOLUTE", "y/../x.csv", "linked/x.csv", "soft.csv", "hard.csv"]
BESIDE = ["x.csv.meta.json", "y/../x.csv.meta.json", "soft.json", "hard.json"]
APART = ["x.json", "X.CSV", "y/x.csv"]
PART = "x.csv.part"
"""What the second option names, where the first one names x.csv: that, what goes with it, or another file."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with what the commands read, with links, and with files of an earlier run."""
    folder: Path = tmp_path_factory.mktemp("inputs")
    for name in ("a.json", "b.json"):
        assert main([*SHIFT.split(), "-q", "-o", str(folder / name)]) == 0
    limit = ["limit", *SIZES.split(), "--recipe", "hf", "--dtype", "fp16", "--up-to", "99"]
    assert main([*limit, "-q", "-o", str(folder / "safe.json")]) == 0
    (folder / "mine.py").write_text(CODE)
    (folder / "c.json").write_text(json.dumps(CONFIG))
    np.savez(folder / "f.npz", inv_freq=1e4 ** -np.linspace(0, 1, 4, endpoint=False))
    assert main([*SHIFT.split(), "--offset", "7", "-q", "-o", str(folder / "x.csv")]) == 0
    return folder


@pytest.fixture
def here(inputs, tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(inputs, folder)
    monkeypatch.chdir(folder)
    Path("y").mkdir()
    os.symlink(".", "linked")
    for suffix, target in (("csv", "x.csv"), ("json", "x.csv.meta.json")):
        os.symlink(target, f"soft.{suffix}")
        os.link(target, f"hard.{suffix}")
    return folder


@pytest.fixture(autouse=True)
def _believed(monkeypatch) -> None:
    """Snippets of tickets are not run, which takes seconds each."""
    monkeypatch.setattr(drift, "reproduced", lambda one: Reproduction(one, printed(one)))


def printed(snippet: Snippet) -> str:
    return f"{snippet.column} {snippet.value:.3g}"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_whole(flag: str, path: str, before: dict[str, bytes]) -> None:
    """Fail unless a file is what its option writes: new, with its beginning and its end."""
    text = Path(path).read_text(encoding="utf-8")
    assert before.get(os.path.abspath(path)) != text.encode()
    if flag == "--junit":
        assert ET.fromstring(text).tag == "testsuites"  # noqa: S314 it is ours
    elif flag == "--ticket":
        assert "## Versions" in text
        assert text.endswith("\n")
    elif path.endswith(".svg"):
        assert text.rstrip().endswith("</svg>")
    elif path.endswith(".json"):
        assert isinstance(json.loads(text)["records"], list)
    else:
        header, *rows = csv.reader(text.splitlines())
        assert len(header) > 1
        assert all(len(row) == len(header) for row in rows)
        about = json.loads(Path(f"{path}.meta.json").read_text())
        assert about["command"]
        assert before.get(f"{os.path.abspath(path)}.meta.json") != about


def named(line: str, path: str) -> str:
    """A path as a command takes it: `plot` writes pictures."""
    return path.replace(".csv", ".svg").replace(".json", ".svg") if line.startswith("plot") else path


def refused(line: str, first: str, second: str, other: str, there: bool) -> bool:
    """Whether the two are one file, or the second goes with the first, or no form has its suffix."""
    if other.startswith("hard") and not there:
        return False
    if other in BESIDE:
        return first == "-o"
    if other == PART:
        return second == "-o" or (first == "-o" and line.startswith("shift"))
    return other in MEET


def combinations() -> list[object]:
    cases: list[object] = []
    for line, first, second in PAIRS:
        for other, there in itertools.product((*MEET, *BESIDE, PART, *APART), (True, False)):
            if line.startswith("plot") and other in (*BESIDE, "x.json", "X.CSV"):  # no pictures
                continue
            runs = not refused(line, first, second, other, there)
            alike = line in (*REPORTS, *SLOW) and other not in ("x.csv", "x.csv.meta.json", "x.json")
            slow = alike or (runs and (line in SLOW or line.startswith(COSTLY)))
            marks = [pytest.mark.slow] if slow else []
            name = f"{line.split()[0]} {first} {second} {other} {'there' if there else 'new'}"
            cases.append(pytest.param(line, first, second, other, there, marks=marks, id=name))
    return cases


@pytest.mark.parametrize(("line", "first", "second", "other", "there"), combinations())
def test_two_files_are_refused_or_both_written(
    line, first, second, other, there, here, capsys, monkeypatch
) -> None:
    one, two = named(line, "x.csv"), named(line, str(here / "x.csv") if other == "ABSOLUTE" else other)
    if line.startswith("plot"):
        os.symlink(one, "soft.svg")
        Path(one).write_text("old")
        os.link(one, "hard.svg")
    if not there:
        for name in (one, "x.csv", "x.csv.meta.json", "hard.csv", "hard.json", "hard.svg"):
            Path(name).unlink(missing_ok=True)
    monkeypatch.setattr(sys, "argv", ["ropeaudit", "now"])  # which the metadata say
    before = contents(here)
    code = main([*line.split(), first, one, second, two, "-q"])
    message = capsys.readouterr().err
    assert (code == 2) == refused(line, first, second, other, there), message
    if code == 2:
        assert contents(here) == before
        assert message.count("\n") == 1
        return
    assert code in (0, 1)
    assert not os.path.samefile(one, two)
    assert_whole(first, one, before)
    assert_whole(second, two, before)
