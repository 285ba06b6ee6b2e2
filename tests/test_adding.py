"""What one touches to add something: a toy of each kind is added to a copy of the package, and works.

`ADDED` holds every place that is touched; CONTRIBUTING.md's table has the same numbers and files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from ropeaudit.main import main

ROOT = Path(__file__).parent.parent
TOY_FILES = "-o c.csv -o c.json -o c.jsonl -o c.parquet -o c.html -o c.txt"
SMALL = "--heads 1 --seq-len 8 --head-dim 8 --dtype fp32 -q --offset 0,7"


@dataclass(frozen=True)
class Place:
    """A place that is touched: the lines that go before an anchor; a file that is new, or grows, has none.

    A folder is one place: further files of it come in `beside`.
    """

    file: str
    text: str
    anchor: str = ""
    beside: tuple[tuple[str, str], ...] = ()

    def touch(self, package: Path) -> None:
        """Make the change in a copy of the package."""
        path = package / self.file
        path.parent.mkdir(exist_ok=True)
        for name, text in self.beside:
            (path.parent / name).write_text(text, encoding="utf-8")
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        assert before.count(self.anchor) == 1 or not self.anchor, (self.file, self.anchor)
        at = before.index(self.anchor) if self.anchor else len(before)
        path.write_text(before[:at] + self.text + before[at:], encoding="utf-8")


RECIPE = """
[toy]
summary = "a toy"
position = "fp32"
frequency = "fp32"
angle = "fp32"
trig = "fp32"
table = "model"
input = "model"
rotation = "model"
output = "model"
accumulate = "auto"
score = "model"
softmax = "model"
frequency_form = "inverse_power"
rotation_rounding = "each"
scale_after_store = true
source = "nobody"
verified = "ours"
"""

AXES = """
[toy-axes]
summary = "a toy"
axes = ["h", "w"]
dims = [4, 4]
head_dim = 8
source = "nowhere"
"""
MODEL = """
["toy-1b"]
base = 12345
head_dim = 8
rotary_dim = 8
layout = "half"
heads = 2
kv_heads = 1
maximum = 4096
source = "nobody"
verified = "source"
"""

IMPLEMENTATION = """
[toy]
engine = "numpy"
package = "numpy"
needs = ["numpy"]
layouts = ["half"]
dtypes = ["float32"]
whole_base = true
calls = "numpy.cos"
code = '''
import numpy as np
frequencies = np.float32(base) ** -(np.arange(head_dim // 2, dtype=np.float32) / (head_dim // 2))
def rotate(x, at):
    angles = at[:, None].astype(np.float32) * frequencies
    cos, sin, (a, b) = np.cos(angles), np.sin(angles), np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
'''
"""

FORM = '''"""TSV: the columns of CSV, parted by tabs; no text of ours holds one."""

import csv
import io
from collections.abc import Iterator

from ropeaudit.reports import Report, Row
from ropeaudit.reports.numbers import exact


def render(report: Report) -> str:
    """Return a header and a line a row."""
    lines = [list(report.columns)] * report.header
    lines += [[exact(row[name]) for name in report.columns] for row in report.rows]
    return "".join("\\t".join(cells) + "\\n" for cells in lines)


def decode(content: bytes) -> Iterator[Row]:
    """Yield the rows of a file."""
    yield from csv.DictReader(io.StringIO(content.decode()), delimiter="\\t")
'''

COMMAND = '''"""ropeaudit toy: the number of recipes."""

import click


@click.command()
def toy() -> None:
    """Count recipes."""
    from ropeaudit.recipes import all_recipes

    click.echo(len(all_recipes()))
'''

CODE = """
FORMULAS["toy"] = lambda theta, setting, rounded: rounded(theta / (2 * setting.scaling.stretch))
"""
EXACT = """
FORMULAS["toy"] = lambda theta, pair, setting: theta / (2 * _stretch(setting.scaling))
"""

CHECK = '''"""A toy: whether it is one."""

from __future__ import annotations

from collections.abc import Iterator

from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged


def toy(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield that it is one."""
    yield judged("toy", True, f"{code.tested.name} is one")
'''

DIAGNOSIS = """
[toy]
class = "operands"
title = "a quarter turn too far"
sentence = "every pair a quarter turn too far"
shows = "Everywhere alike."
cause = "A toy."
remedy = "turn it back"
bugs = []
"""

# what is called: right, and every pair a quarter turn too far
KERNEL = """
import torch


def right(x, positions, turn=0.0):
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8) + turn
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def quarter(x, positions):
    return right(x, positions, torch.pi / 2)
"""

TOY_SCALING = """[toy]
example = "toy:factor=4"
needs = ["factor"]

"""

# kind -> the places of the package that are touched, how the toy is called, and what shows that it works
ADDED: dict[str, tuple[tuple[Place, ...], dict[str, str]]] = {
    "recipe": (
        (Place("data/recipes.toml", RECIPE),),
        {"list recipes -f csv": "\ntoy,a toy,", f"shift --recipe toy {SMALL} -f csv": ",sound,,,"},
    ),
    "model preset": (
        (Place("data/models.toml", MODEL),),
        {
            "list models -f csv": "\ntoy-1b,",
            "shift --model toy-1b --recipe hf --seq-len 8 --dtype fp32 -q -f csv": ",toy-1b,",
        },
    ),
    "position axes of a grid": (
        (Place("data/axes.toml", AXES),),
        {
            "list axes -f csv": "\ntoy-axes,a toy,",
            "shift --axes toy-axes --grid 2x3 --recipe hf --dtype fp32 -q -f csv": ",toy-axes,",
        },
    ),
    "third-party implementation": (
        (Place("data/adapters.toml", IMPLEMENTATION),),
        {
            "list implementations -f csv": "\ntoy,numpy,",
            f"shift --impl toy {SMALL} -f csv": ",sound,,,",
            f"shift --impl toy --base 1000.5 {SMALL} -f csv": ",refused,,unsupported,",
        },
    ),
    "report form": (
        (
            Place("reports/forms/tsv.py", FORM),
            Place(
                "reports/__init__.py", '    "tsv": Form((".tsv",), "beside", True),\n', '    "html": Form('
            ),
        ),
        {
            f"shift --recipe hf {SMALL} -f tsv": "\nhf\tfloat32\t7\t",
            f"shift --recipe hf {SMALL} -o x.tsv": "\nhf               fp32 ",
            f"shift --recipe hf {SMALL},1000 -o x.tsv --resume": "3 undecided, of 3",
            "report x.tsv -f csv": "\nhf,float32,1000,",
            "report x.tsv -f markdown": "$ ropeaudit shift --recipe hf",
        },
    ),
    "command": (
        (
            Place("features/toy/command.py", COMMAND, beside=(("__init__.py", '"""ropeaudit toy."""\n'),)),
            Place("main.py", '        "toy": "Count recipes.",\n', '        "list": '),
        ),
        {"toy": "", "--help": "\n  toy      Count recipes."},
    ),
    "column of a record": (
        (
            Place(
                "data/columns.toml",
                'toy = {kind = "integer", group = "detail", meaning = "three times the scores"}\n',
                "within_tolerance = {kind",
            ),
            Place("audits/records.py", "    toy: int\n", "    within_tolerance: bool | None"),
            Place(
                "audits/case_run.py", '            "toy": 3 * drift.count,\n', '            "drift_mean_abs":'
            ),
        ),
        {
            "list columns -f csv": "\ntoy,detail,three times the scores",
            f"shift --recipe hf {SMALL} --columns offset,toy -f csv": "offset,toy\n0,108\n7,108\n",
            f"shift --recipe hf {SMALL} --fail-if toy>1000 -f csv": ",sound,,,",
            f"shift --recipe hf {SMALL} --columns core,toy {TOY_FILES} -f markdown": "| toy |",
            "report c.csv c.jsonl --columns offset,toy -f csv": "offset,toy\n0,108\n7,108\n",
            "report c.json --by dtype --column toy --worst -f csv": ",108\n",
            "report c.parquet --columns offset,toy -f csv": "offset,toy\n0,108\n7,108\n",
        },
    ),
    "check": (
        (
            Place("conformance/toy.py", CHECK),
            Place("conformance/code_checks.py", "    toy,\n", "    environments,\n"),
            Place("conformance/code_checks.py", '    "toy": Check(toy.toy),\n', '    "under": Check('),
        ),
        {"check kernel.py:right --head-dim 8 --up-to 64 --dtype fp32 --under none -f csv": "toy,pass"},
    ),
    "diagnosis": (
        (
            Place("data/diagnoses.toml", DIAGNOSIS),
            Place(
                "recognition/faults.py",
                '    yield Fault(Diagnosis("toy"), turn=lambda z, turns: 1j * z * turns)\n',
                '    yield Fault(Diagnosis("halves-swapped"),',
            ),
        ),
        {
            "list diagnoses -f csv": "\ntoy,",
            f"shift --impl kernel.py:quarter {SMALL} -f csv": ",toy,",
        },
    ),
    "environment": (
        (
            Place(
                "data/environments.toml",
                '[toy]\nkind = "default-dtype"\ndoes = "a toy"\ndtype = "fp64"\n\n',
                "[compile]\n",
            ),
        ),
        {f"shift --impl kernel.py:right --under toy {SMALL} -f csv": ",toy,"},
    ),
    "frequency form": (
        (
            Place("rope/frequencies.py", '    "toy",  # 1 / base^x / 2\n', '    "exp2",  # 2^'),
            Place(
                "rope/frequencies.py",
                '    if form == "toy":\n        return unscaled(base, rotary_dim, "power", fmt) / 2\n',
                '    if form == "exp":\n        slope',
            ),
            Place(
                "subjects/torch_native.py",
                '    if form == "toy":\n        return plain(base, rotary_dim, "power", fmt, on) / 2\n',
                '    if form == "power":',
            ),
        ),
        {
            f"shift --recipe hf --set frequency_form=toy {SMALL} -f csv": "[frequency_form=toy],",
            f"shift --recipe hf --set frequency_form=toy --backend torch {SMALL} -f csv": ",torch,",
        },
    ),
    "scaling": (
        (
            Place("data/scalings.toml", TOY_SCALING, "[linear]"),
            Place("rope/scaled.py", CODE),
            Place("reference/exact_frequencies.py", EXACT),
        ),
        {
            f"shift --scaling toy:factor=4 --recipe hf {SMALL} -f csv": ",toy(factor=4),",
            f"shift --scaling toy:factor=3 --recipe hf {SMALL} -f csv": ",sound,,,",
        },
    ),
}


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


def test_every_place_is_in_the_row_of_its_kind() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z -]+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(ADDED)
    for kind, (places, _) in ADDED.items():
        [(number, where)] = [row[1:] for row in rows if row[0] == kind]
        assert len(places) == int(number), kind
        for named in {place.file for place in places}:
            parents = (f"`ropeaudit/{named}`", *(f"`ropeaudit/{parent}/`" for parent in Path(named).parents))
            assert any(one in where for one in parents), (kind, named)


@pytest.mark.slow
def test_toys_are_added_in_the_places_of_the_table_and_work(tmp_path) -> None:
    """All in one copy of the package, called in one process."""
    package = tmp_path / "ropeaudit"
    copytree(ROOT / "ropeaudit", package, ignore=ignore_patterns("__pycache__"))
    for places, _ in ADDED.values():
        for place in places:
            place.touch(package)
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    calls = [call for _, known in ADDED.values() for call in known.items()]
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
