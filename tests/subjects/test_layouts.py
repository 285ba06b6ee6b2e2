"""Twelve ways in which own code lies on the disk; of each two checkouts, which nothing mixes up.

The first checkout of a layout has base 10000, the second 500000, in whichever file holds it; names are alike.
"""

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import thinned
from planted import rotated

from ropeaudit import RopeSetting
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.parity.analysis import parity
from ropeaudit.main import main
from ropeaudit.subjects.calling import foreign

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
    "file of a package that names it": (
        "pack/inner/rope.py:f",
        {
            "pack/__init__.py": "",
            "pack/inner/__init__.py": "",
            "pack/inner/rope.py": rope("from pack.values import BASE"),
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
SMALL = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "fp32", "-q"]
RIGHT, WRONG = "10000", "500000"
SETTING = RopeSetting.of(8)


def write(folder: Path, files: dict[str, str], base: str) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content.replace("{base}", base))


def pair(folder: Path, layout: str) -> tuple[str, str]:
    spec, files = LAYOUTS[layout]
    for name, base in (("right", RIGHT), ("wrong", WRONG)):
        write(folder / name, files, base)
    return str(folder / "right" / spec), str(folder / "wrong" / spec)


def judged(*specs: str) -> tuple[list[bool], list[str]]:
    """Return whether each rotates right, and its version. All are loaded before the first of them rotates."""
    codes = [foreign.load(spec) for spec in specs]
    rotators = [code.rotator(SETTING, FP32) for code in codes]
    x, at = np.random.default_rng(0).standard_normal((1, 4, 8)).astype(np.float32), np.array([0, 1, 5, 77])
    turned = [rotator.rotate_both(x[None], x[None], at)[0][0] for rotator in rotators]
    right = [np.allclose(one, rotated(x, at, SETTING), atol=1e-4) for one in turned]
    return right, [code.version for code in codes]


@pytest.mark.slow  # processes
def test_no_order_mixes_two_checkouts_up(tmp_path) -> None:
    """A version is that of all files, and one that changed is read again.

    Of the same size and within the same second, which bytecode does not tell apart.
    """
    modules, path, mixed_up = set(sys.modules), list(sys.path), {}
    for number, layout in enumerate(LAYOUTS):
        right, wrong = pair(tmp_path / str(number), layout)
        seen, versions = judged(right, wrong, right)
        for source in (tmp_path / str(number) / "right").rglob("*.py"):
            source.write_text(source.read_text().replace(RIGHT, "50000"))
        later, changed = judged(wrong, right)
        told_apart = versions[0] == versions[2] and versions[1] == changed[0]
        told_apart = told_apart and len({*versions, *changed}) == 3
        if not told_apart or seen != [True, False, True] or later != [False, False]:
            mixed_up[layout] = seen, later, versions, changed
    assert mixed_up == {}
    files = {name: str(getattr(sys.modules[name], "__file__", "")) for name in set(sys.modules) - modules}
    assert not [name for name, file in files.items() if file.startswith(str(tmp_path))]
    assert sys.path == path


@pytest.mark.slow  # processes
def test_processes_keep_all_layouts_apart(tmp_path, capsys) -> None:
    """Two files of each name in each process, whatever it measured before."""
    specs = []
    for number, layout in enumerate(LAYOUTS):
        specs += pair(tmp_path / str(number), layout)[:: -1 if number % 2 else 1]
    line = ["shift", "--impl", ",".join(specs), *SMALL, "--offset", "0", "--jobs", "2", "-f", "csv"]
    assert main(line) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["implementation"] for row in rows] == specs
    assert all(("right" in row["implementation"]) == (float(row["drift_relative"]) < 1e-4) for row in rows)


LAZY = "import in a call"


@pytest.fixture
def lazy(tmp_path) -> tuple[str, str]:
    """Two checkouts whose helper is imported when they are called."""
    return pair(tmp_path, LAZY)


SIZE = ["--head-dim", "8", "--dtype", "fp32", "-q", "-f", "csv"]
COMMANDS = {
    "check": ["--up-to", "64", "--under", "none", *SIZE],
    "explain": ["--heads", "1", "--seq-len", "8", *SIZE],
    "limit": ["--up-to", "40", "--heads", "1", "--seq-len", "8", *SIZE],
}


@pytest.mark.parametrize("name", thinned(COMMANDS, 3))
def test_every_command_sees_each_checkout_as_if_it_were_alone(name, lazy, capsys) -> None:
    def run(*specs: str) -> list[list[str]]:
        named = ["--impl", ",".join(specs)] if name == "limit" else [",".join(specs)]
        assert main([name, *named, *COMMANDS[name]]) in (0, 1)
        rows = csv.reader(io.StringIO(capsys.readouterr().out))
        return [[value.replace("/wrong/", "/right/") for value in row] for row in list(rows)[1:]]

    right, wrong = lazy
    alone = run(right)
    both = run(wrong) + run(right) if name == "explain" else run(wrong, right)
    assert alone
    assert both[-len(alone) :] == alone != both[: len(alone)]


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
        assert judged("pack.rope:f")[0] == [name == "right"]
    assert "pack" not in sys.modules


def test_state_of_a_helper_does_not_outlive_an_audit(tmp_path) -> None:
    head = "import helper\nhelper.CALLS.append(1)\nBASE = 10000 * len(helper.CALLS)"
    write(tmp_path, {"rope.py": rope(head), "helper.py": "CALLS = []"}, RIGHT)
    spec = str(tmp_path / "rope.py:f")
    assert judged(spec)[0] == judged(spec)[0] == [True]


@pytest.mark.slow  # processes
@pytest.mark.parametrize("layout", ["helper of a helper", "import by name in a call"])
def test_resuming_measures_again_what_another_digest_gave(layout, tmp_path, monkeypatch, capsys) -> None:
    """The helper changed, not the file that is named; rows of the code as it is now are kept."""
    spec, files = LAYOUTS[layout]
    write(tmp_path, files, RIGHT)
    monkeypatch.chdir(tmp_path)
    line = ["shift", "--impl", spec, *SMALL[:-1], "-o", "rows.csv"]
    assert main([*line, "--offset", "0"]) == 0
    assert main([*line, "--offset", "0,1000", "--resume"]) == 0
    kept = Path("rows.csv").read_text()
    assert "another digest" not in capsys.readouterr().err
    write(tmp_path, files, WRONG)
    assert main([*line, "--offset", "0,1000", "--resume"]) == 0
    assert "code of another digest measured 2 rows there, such as" in capsys.readouterr().err
    resumed = Path("rows.csv").read_text()
    Path("rows.csv").unlink()
    assert main([*line, "--offset", "0,1000"]) == 0
    assert resumed == Path("rows.csv").read_text() != kept


def test_what_a_late_call_imports_counts(tmp_path, capsys) -> None:
    """By a name it is known when rows that were measured with it are written."""
    late = "import importlib; EXTRA = importlib.import_module('la' + 'te').EXTRA"
    line = f"base = 10000\n    if positions.max() == 1003: {late}"
    write(tmp_path, {"rope.py": rope("", line), "late.py": "EXTRA = 1"}, RIGHT)
    spec = str(tmp_path / "rope.py:f")

    def versions(jobs: str) -> list[str]:
        assert main(["shift", "--impl", spec, *SMALL, "--offset", "0,1000", "--jobs", jobs, "-f", "csv"]) == 0
        return [row["version"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]

    before = versions("1")
    assert len(set(before)) == 1
    assert versions("2")[1] == before[1]
    (tmp_path / "late.py").write_text("EXTRA = 2")
    assert versions("1")[1] != before[1]
