"""Twelve ways in which own code lies on the disk; of each two checkouts, which nothing mixes up.

The first checkout of a layout has base 10000, the second 500000, in whichever file holds it; names are alike.
"""

import csv
import io
import sys
import threading
from pathlib import Path

import pytest

from ropeaudit import shift
from ropeaudit.features.parity.analysis import parity
from ropeaudit.main import main
from ropeaudit.runtime import own_modules, process_state
from ropeaudit.subjects.calling import loading

ROPE = """
import numpy as np
{head}
def f(x, positions):
    {line}
    d = x.shape[-1]
    a = positions[:, None] / float(base) ** (np.arange(0, d, 2) / d)
    c, s, u, v = np.cos(a), np.sin(a), x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([u * c - v * s, v * c + u * s], -1).astype(x.dtype)
"""
BASE = "BASE = {base}\n"


def rope(head: str = "", line: str = "base = BASE") -> str:
    return ROPE.format(head=head, line=line)


# layout: the spec of the code, file -> content
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "one file": ("rope.py:f", {"rope.py": rope(BASE)}),
    "helper": ("rope.py:f", {"rope.py": rope("from helper import BASE"), "helper.py": BASE}),
    "helper of a helper": (
        "rope.py:f",
        {"rope.py": rope("from helper import BASE"), "helper.py": "from third import BASE", "third.py": BASE},
    ),
    "import in a call": (
        "rope.py:f",
        {"rope.py": rope("", "from helper import BASE as base"), "helper.py": BASE},
    ),
    "import by name in a call": (
        "rope.py:f",
        {
            "rope.py": rope("import importlib", "base = importlib.import_module('hel' + 'per').BASE"),
            "helper.py": BASE,
        },
    ),
    "package with relative imports": (
        "rope.py:f",
        {
            "rope.py": rope("from parts.values import BASE"),
            "parts/__init__.py": "",
            "parts/values.py": "from .deep import BASE",
            "parts/deep.py": BASE,
        },
    ),
    "namespace package": (
        "rope.py:f",
        {"rope.py": rope("import parts.values", "base = parts.values.BASE"), "parts/values.py": BASE},
    ),
    "file of a package": (
        "pack/inner/rope.py:f",
        {
            "pack/__init__.py": "",
            "pack/inner/__init__.py": "",
            "pack/inner/rope.py": rope("from ..values import BASE"),
            "pack/values.py": BASE,
        },
    ),
    "two files of one name": (
        "rope.py:f",
        {
            "rope.py": rope("from parts import helper", "base = helper.BASE"),
            "helper.py": "BASE = 7",
            "parts/__init__.py": "",
            "parts/helper.py": BASE,
        },
    ),
    "named as the standard library": (
        "rope.py:f",
        {
            "rope.py": rope("from json import BASE"),
            "json.py": "from fractions import BASE",
            "fractions.py": BASE,
        },
    ),
    "named as an installed package": (
        "rope.py:f",
        {"rope.py": rope("", "from click import BASE as base"), "click/__init__.py": BASE},
    ),
    "folder put on the path": (
        "rope.py:f",
        {
            "rope.py": rope(
                "import os, sys\nsys.path.insert(0, os.path.dirname(__file__) + '/src')\n"
                "from parts import BASE"
            ),
            "src/parts.py": BASE,
        },
    ),
}
SMALL = {"heads": 1, "seq_len": 4, "head_dim": 8, "dtypes": "fp32", "offsets": 0}
SMALL_LINE = [
    "--heads",
    "1",
    "--seq-len",
    "4",
    "--head-dim",
    "8",
    "--dtype",
    "fp32",
    "--offset",
    "0,1000",
    "-q",
]
RIGHT, WRONG = "10000", "500000"


def write(folder: Path, files: dict[str, str], base: str) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content.replace("{base}", base))


@pytest.fixture(params=LAYOUTS)
def pair(request, tmp_path) -> tuple[str, str]:
    """The specs of the right checkout and of the wrong one."""
    spec, files = LAYOUTS[request.param]
    for name, base in (("right", RIGHT), ("wrong", WRONG)):
        write(tmp_path / name, files, base)
    return str(tmp_path / "right" / spec), str(tmp_path / "wrong" / spec)


def judged(*specs: str) -> list[bool]:
    """Whether each drifts by next to nothing."""
    rows = list(shift(implementations=specs, **SMALL))
    assert [row.implementation for row in rows] == list(specs)
    return [row.drift_relative < 1e-5 for row in rows]


def test_no_order_mixes_two_checkouts_up(pair) -> None:
    right, wrong = pair
    modules, path = set(sys.modules), list(sys.path)
    assert judged(right, wrong) == [True, False]
    assert judged(wrong, right) == [False, True]
    assert judged(right) == [True]
    assert judged(wrong) == [False]
    files = {name: str(getattr(sys.modules[name], "__file__", "")) for name in set(sys.modules) - modules}
    assert not [name for name, file in files.items() if file.startswith(str(Path(right).parents[1]))]
    assert sys.path == path


def test_a_version_is_that_of_all_files(pair) -> None:
    right, wrong = pair
    first, second = shift(implementations=[right, wrong], **SMALL)
    (again,) = shift(implementations=right, **SMALL)
    assert first.version == again.version != second.version


def test_processes_give_the_rows_of_one_for_all_layouts_at_once(tmp_path, capsys) -> None:
    """Two files of each name in each process, whatever it measured before."""
    specs = []
    for number, (spec, files) in enumerate(LAYOUTS.values()):
        for name, base in (("right", RIGHT), ("wrong", WRONG))[:: -1 if number % 2 else 1]:
            write(tmp_path / str(number) / name, files, base)
            specs.append(str(tmp_path / str(number) / name / spec))
    outputs = []
    for jobs in "12":
        assert main(["shift", "--impl", ",".join(specs), *SMALL_LINE, "--jobs", jobs, "-f", "csv"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    rows = list(csv.DictReader(io.StringIO(outputs[0])))
    assert len(rows) == 2 * 2 * len(LAYOUTS)
    assert all(("right" in row["implementation"]) == (float(row["drift_relative"]) < 1e-4) for row in rows)


def test_a_file_that_changed_is_read_again(pair, tmp_path) -> None:
    """Of the same size and within the same second, which bytecode does not tell apart."""
    right, wrong = pair
    assert judged(right, wrong) == [True, False]
    for source in (tmp_path / "right").rglob("*.py"):
        source.write_text(source.read_text().replace(RIGHT, "50000"))
    assert judged(right, wrong) == [False, False]


LAZY = "import in a call"


@pytest.fixture
def lazy(tmp_path) -> tuple[str, str]:
    """Two checkouts whose helper is imported when they are called."""
    for name, base in (("right", RIGHT), ("wrong", WRONG)):
        write(tmp_path / name, LAYOUTS[LAZY][1], base)
    return str(tmp_path / "right" / "rope.py:f"), str(tmp_path / "wrong" / "rope.py:f")


SIZE = ["--head-dim", "8", "--dtype", "fp32", "-q", "-f", "csv"]
COMMANDS = {
    "check": ["--up-to", "200", *SIZE],
    "explain": ["--heads", "1", "--seq-len", "8", *SIZE],
    "limit": ["--up-to", "300", "--heads", "1", "--seq-len", "16", *SIZE],
    "module": ["-q", "-f", "csv"],
}
MODULE = """
import torch
class Rotary(torch.nn.Module):
    def __init__(self):
        from helper import BASE as base
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / float(base) ** (torch.arange(0, 64, 2) / 64))
    def forward(self, x, position_ids):
        from helper import BASE
        freqs = position_ids[..., None].float() * self.inv_freq.float()
        emb = torch.cat([freqs, freqs], -1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)
def f():
    return Rotary()
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_sees_each_checkout_as_if_it_were_alone(name, lazy, capsys) -> None:
    if name == "module":
        for spec in lazy:
            Path(spec.removesuffix(":f")).write_text(MODULE)

    def run(*specs: str) -> list[list[str]]:
        named = ["--impl", ",".join(specs)] if name == "limit" else [",".join(specs)]
        assert main([name, *named, *COMMANDS[name]]) in (0, 1)
        rows = csv.reader(io.StringIO(capsys.readouterr().out))
        return [[value.replace("/wrong/", "/right/") for value in row] for row in list(rows)[1:]]

    right, wrong = lazy
    alone = run(right)
    others = run(wrong)
    assert alone
    assert others
    assert alone != others
    assert run(right) == alone
    if name not in ("explain", "module"):
        assert run(right, wrong) == [*alone, *others]
        assert run(wrong, right) == [*others, *alone]


def test_parity_compares_two_checkouts(lazy) -> None:
    (result,) = parity(*lazy, 0, "fp32", head_dim=8, seq_len=4, heads=1)
    (same,) = parity(lazy[0], lazy[0], 0, "fp32", head_dim=8, seq_len=4, heads=1)
    assert result.statistics.difference.rms > 1e-3
    assert same.statistics.difference.rms == 0


def test_a_module_by_its_name_is_that_of_the_folder(tmp_path, monkeypatch) -> None:
    """Two folders, one after the other, in one process; what is installed under a name is not hidden."""
    hostile = "raise RuntimeError('imported')"
    for name, base in (("right", RIGHT), ("wrong", WRONG)):
        files = {"pack/rope.py": rope("from .values import BASE\nimport json, click"), "pack/values.py": BASE}
        write(tmp_path / name, {**files, "json.py": hostile, "click.py": hostile, "torch.py": hostile}, base)
    for name in ("right", "wrong", "right"):
        monkeypatch.chdir(tmp_path / name)
        assert judged("pack.rope:f") == [name == "right"]
    assert "pack" not in sys.modules


def test_a_name_of_the_library_means_the_own_file_to_own_code_alone(tmp_path) -> None:
    """A package that is loaded by own code gets the library's; so do the threads of others meanwhile."""
    outside = tmp_path / "outside"
    write(outside, {"foreign_package.py": "import fractions\nSEEN = fractions.Fraction(1, 2)\n"}, RIGHT)
    head = "import foreign_package, fractions\nBASE = fractions.BASE if foreign_package.SEEN else 0"
    write(tmp_path / "own", {"rope.py": rope(head), "fractions.py": BASE}, RIGHT)
    before = sys.modules.get("fractions")
    sys.path.append(str(outside))
    try:
        own = loading.load(str(tmp_path / "own" / "rope.py:f"))
        assert "foreign_package" in sys.modules
        assert before is None or sys.modules["fractions"] is before
        with process_state.foreign(own.home):
            assert own_modules.current() is not None
            seen: list[object] = []
            thread = threading.Thread(target=lambda: seen.append(__import__("fractions").Fraction))
            thread.start()
            thread.join()
            assert len(seen) == 1
        assert own_modules.current() is None
    finally:
        sys.path.remove(str(outside))
        sys.modules.pop("foreign_package", None)


def test_state_of_a_helper_does_not_outlive_an_audit(tmp_path) -> None:
    head = "import helper\nhelper.CALLS.append(1)\nBASE = 10000 * len(helper.CALLS)"
    write(tmp_path, {"rope.py": rope(head), "helper.py": "CALLS = []"}, RIGHT)
    spec = str(tmp_path / "rope.py:f")
    assert judged(spec) == judged(spec) == [True]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_resuming_measures_again_what_another_digest_gave(layout, tmp_path, monkeypatch, capsys) -> None:
    """The helper changed, not the file that is named; rows of the code as it is now are kept."""
    spec, files = LAYOUTS[layout]
    write(tmp_path, files, RIGHT)
    monkeypatch.chdir(tmp_path)
    line = ["shift", "--impl", spec, *SMALL_LINE[:-3], "-o", "rows.csv"]
    assert main([*line, "--offset", "0"]) == 0
    assert main([*line, "--offset", "0,1000", "--resume"]) == 0
    kept = Path("rows.csv").read_text()
    assert "another digest" not in capsys.readouterr().err
    write(tmp_path, files, WRONG)
    assert main([*line, "--offset", "0,1000", "--resume"]) == 0
    assert "2 rows there were measured with code of another digest, such as" in capsys.readouterr().err
    resumed = Path("rows.csv").read_text()
    Path("rows.csv").unlink()
    assert main([*line, "--offset", "0,1000"]) == 0
    assert resumed == Path("rows.csv").read_text() != kept


LATE = {
    "a statement": "from late import EXTRA",
    "a name": "import importlib; EXTRA = importlib.import_module('la' + 'te').EXTRA",
}


@pytest.mark.parametrize("how", LATE)
def test_what_a_late_call_imports_counts(how, tmp_path, capsys) -> None:
    """Of a statement it is known beforehand, of a name when rows that were measured with it are written."""
    line = f"base = 10000\n    if positions.max() == 1003: {LATE[how]}"
    write(tmp_path, {"rope.py": rope("", line), "late.py": "EXTRA = 1"}, RIGHT)
    spec = str(tmp_path / "rope.py:f")

    def versions(jobs: str) -> list[str]:
        assert main(["shift", "--impl", spec, *SMALL_LINE, "--jobs", jobs, "-f", "csv"]) == 0
        return [row["version"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]

    before = versions("1")
    assert len(set(before)) == 1
    assert versions("2")[1] == before[1]
    (tmp_path / "late.py").write_text("EXTRA = 2")
    assert versions("1")[1] != before[1]
