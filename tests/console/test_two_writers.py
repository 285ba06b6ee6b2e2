"""Two files that a command writes: it is refused before any work, or both of them stand there whole."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from ropeaudit.main import main
from ropeaudit.reports.tickets import drift
from ropeaudit.reports.tickets.ticket import Reproduction

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links")

SIZES = "--heads 1 --seq-len 4 --head-dim 8"
SHIFT = "shift --heads 1 --seq-len 24 --head-dim 16 --recipe uniform --dtype bf16 --offset 1000"
TICKET = f"{SHIFT} --impl mine.py:turn"
CHECK = "check c.json --recipe uniform --dtype fp16"
CODE = "def turn(x, positions):\n    return x\n"
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "rope_theta": 1e4}
CONFIG |= {"max_position_embeddings": 60000}
PAIRS = [  # a command, and two of its options that name files
    (SHIFT, "-o", "-o"),
    (TICKET, "-o", "--ticket"),
    ("report a.json --by implementation", "-o", "-o"),
    (CHECK, "-o", "--junit"),
    ("list frequencies --head-dim 8", "-o", "-o"),
    (TICKET, "--ticket", "-o"),
    (f"limit {SIZES} --recipe hf --dtype fp16 --up-to 99", "-o", "-o"),
    (CHECK, "--junit", "--ticket"),
    ("report b.json --against a.json", "-o", "-o"),
    (f"parity hf uniform {SIZES}", "-o", "-o"),
    (f"shift {SIZES} --rerotate 2", "-o", "-o"),
]
MEET = ["x.csv", "./x.csv", "ABSOLUTE", "y/../x.csv", "linked/x.csv", "soft.csv", "hard.csv"]
BESIDE = ["x.csv.meta.json", "y/../x.csv.meta.json", "soft.json", "hard.json"]
APART = ["x.json", "X.CSV", "y/x.csv"]
PART = "x.csv.part"
"""What the second option names, where the first one names x.csv: that, what goes with it, or another file."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("inputs")
    for name in ("a.json", "b.json"):
        assert main([*SHIFT.split(), "-q", "-o", str(folder / name)]) == 0
    (folder / "mine.py").write_text(CODE)
    (folder / "c.json").write_text(json.dumps(CONFIG))
    assert main([*SHIFT.split(), "--offset", "7", "-q", "-o", str(folder / "x.csv")]) == 0
    return folder


def copied(inputs: Path, folder: Path, there: bool) -> Path:
    """Copy the folder, with names that lead to its x.csv; there: x.csv itself is in it."""
    shutil.copytree(inputs, folder)
    (folder / "y").mkdir()
    os.symlink(".", folder / "linked")
    for suffix, target in (("csv", "x.csv"), ("json", "x.csv.meta.json")):
        os.symlink(target, folder / f"soft.{suffix}")
        os.link(folder / target, folder / f"hard.{suffix}")
        if not there:
            (folder / target).unlink()
            (folder / f"hard.{suffix}").unlink()
    return folder


@pytest.fixture(autouse=True)
def _believed(monkeypatch) -> None:
    """Snippets of tickets are not run, which takes seconds each."""
    monkeypatch.setattr(drift, "reproduced", lambda one: replace(one, printed=printed(one)))


def printed(snippet: Reproduction) -> str:
    return f"drift_rms {snippet.value:.3g}"


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
    elif path.endswith(".json"):
        assert isinstance(json.loads(text)["records"], list)
    else:
        header, *rows = csv.reader(text.splitlines())
        assert len(header) > 1
        assert all(len(row) == len(header) for row in rows)
        about = json.loads(Path(f"{path}.meta.json").read_text())
        assert about["command"]
        assert before.get(f"{os.path.abspath(path)}.meta.json") != about


def refused(line: str, first: str, second: str, other: str, there: bool) -> bool:
    """Whether the two are one file, or the second goes with the first, or no form has its suffix."""
    if other.startswith("hard") and not there:
        return False
    if other in BESIDE:
        return first == "-o"
    if other == PART:
        return second == "-o" or (first == "-o" and line.startswith("shift"))
    return other in MEET


def combinations() -> list[tuple[str, str, str, str, bool]]:
    """Every second name, there and not, with each pair of options in turn: the two counts share no factor."""
    others = itertools.product((*MEET, *BESIDE, PART, *APART), (True, False))
    return [(*PAIRS[number % len(PAIRS)], other, there) for number, (other, there) in enumerate(others)]


@pytest.mark.slow  # processes
def test_two_files_are_refused_or_both_written(inputs, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ropeaudit", "now"])  # which the metadata say
    for number, (line, first, second, other, there) in enumerate(combinations()):
        here = copied(inputs, tmp_path / str(number), there)
        monkeypatch.chdir(here)
        two = str(here / "x.csv") if other == "ABSOLUTE" else other
        before = contents(here)
        code = main([*line.split(), first, "x.csv", second, two, "-q"])
        message = capsys.readouterr().err
        about = f"{line} {first} x.csv {second} {other} there={there}: {message}"
        assert (code == 2) == refused(line, first, second, other, there), about
        if code == 2:
            assert contents(here) == before, about
            assert message.count("\n") == 1, about
            continue
        assert code in (0, 1), about
        assert not os.path.samefile("x.csv", two), about
        assert_whole(first, "x.csv", before)
        assert_whole(second, two, before)
