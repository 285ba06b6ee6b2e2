"""Own code may write, close, fork, leave and set whatever it likes: the report and the other rows stand."""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Printed, ran

from ropeaudit.console.delivery import print_report
from ropeaudit.console.options import ScreenOptions
from ropeaudit.reports import Report
from ropeaudit.runtime import streams

KERNEL = """
import os, sys
import numpy as np
def turned(x, positions):
    d = x.shape[-1]
    a = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    c, s, x1, x2 = np.cos(a), np.sin(a), x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], -1).astype(x.dtype)
"""
CALLED = (
    "\ndef f(x: np.ndarray, positions: np.ndarray) -> np.ndarray:\n    {}\n    return turned(x, positions)\n"
)
SMALL = shlex.split(
    "--heads 1 --seq-len 3 --head-dim 4 --offset 100 --dtype fp32 -f csv --columns implementation,verdict"
)
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX")


def ropeaudit(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, whose streams and end are real."""
    return subprocess.run(
        [sys.executable, "-m", "ropeaudit", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def written(folder: Path, at_import: str = "", in_call: str = "pass") -> list[str]:
    """Write code that does something at import and in a call; return the command line that calls it."""
    folder.mkdir(exist_ok=True)
    (folder / "k.py").write_text(KERNEL + at_import + CALLED.format(in_call))
    return ["shift", "--impl", "k.py:f", *SMALL]


@pytest.fixture
def shifted(tmp_path, monkeypatch, capfd):
    """Call code that does something; return what this process prints meanwhile, to descriptors too."""

    def run(at_import: str = "", in_call: str = "pass", *more: str, folder: Path = tmp_path) -> Printed:
        line = written(folder, at_import, in_call)
        monkeypatch.chdir(folder)
        return ran(capfd, [*line, *more])

    return run


WRITES = """
import atexit, ctypes, subprocess
def loud():
    print("x")
    os.write(1, b"x")
    sys.__stdout__.write("x"); sys.__stdout__.flush()
    subprocess.run(["echo", "x"])
    ctypes.CDLL(None).puts(b"x"); ctypes.CDLL(None).fflush(None)
atexit.register(loud)
loud()
"""
HARMLESS = {
    "writes": (WRITES, "loud()"),
    "closes": ("", "sys.stdout.close(); sys.stderr.close(); os.closerange(1, 3)"),
    "closes Python's": ("sys.__stdout__.close(); sys.__stderr__.close()", "pass"),
    "replaces": ("sys.stdout = sys.stderr = open(os.devnull, 'w')", "pass"),
    "forks": ("", "os.fork()"),
    "forks and stays": ("if os.fork() == 0:\n    import time; time.sleep(8); os._exit(0)", "pass"),
    "moves": ("os.chdir('/')", "os.chdir('/')"),
}


def is_the_report(out: str, err: str, folder: Path) -> bool:
    right = out.startswith("implementation,verdict\nk.py:f,") and out.count("\n") == 2
    files = sorted(one.name for one in folder.iterdir() if one.is_file())
    return right and "Traceback" not in err and files == ["k.py", "x.json"]


@posix
def test_stdout_is_the_report(shifted, tmp_path) -> None:
    wrong = {}
    for how, code in HARMLESS.items():
        seen = shifted(*code, "-o", "x.json", folder=tmp_path / how)
        if not is_the_report(*seen, tmp_path / how):
            wrong[how] = seen
    assert wrong == {}


@posix
def test_stdout_is_the_report_when_the_process_has_ended(tmp_path) -> None:
    seen = ropeaudit(tmp_path, *written(tmp_path, *HARMLESS["writes"]), "-o", "x.json")
    assert seen.returncode == 0
    assert is_the_report(seen.stdout, seen.stderr, tmp_path), seen


@posix
def test_code_that_leaves_at_an_offset_gives_a_refused_row(shifted) -> None:
    seen = shifted("", "sys.exit(3) if positions.max() > 50 else 0")
    assert seen.out == "implementation,verdict\nk.py:f,refused\n"
    assert "SystemExit: 3" in seen.err


def test_a_stream_that_knows_ascii_alone_gets_ascii_and_no_question_marks(tmp_path) -> None:
    line = shlex.split("shift --heads 1 --seq-len 4 --head-dim 4 --recipe hf,uniform --offset 1000 --color")
    for arguments in (line, ["list", "columns"], ["explain", "--help"]):
        seen = ropeaudit(tmp_path, *arguments, PYTHONIOENCODING="ascii", TERM="xterm")
        assert seen.returncode == 0
        assert seen.stdout.isascii()
        assert "?" not in seen.stdout
        assert "\\u" not in seen.stdout
    seen = ropeaudit(tmp_path, "list", "columns", "-f", "html", PYTHONIOENCODING="ascii")
    assert seen.stdout.isascii()
    assert "&#" in seen.stdout


@pytest.mark.parametrize(("form", "seen"), [("csv", "-\n\\u2014\n"), ("table", "-\n-\n")])
def test_what_looks_alike_stands_in_tables_and_not_in_data(form, seen, monkeypatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=streams.PLAIN)
    monkeypatch.setattr("sys.stdout", out)
    print_report(Report([{"-": "\N{EM DASH}"}], ["-"], ["-"]), ScreenOptions(form, False, None))
    assert out.buffer.getvalue().decode("ascii") == seen


@posix
def test_only_what_writes_says_that_it_cannot_write(tmp_path, monkeypatch, capsys) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for arguments, code in ((["list", "formats"], 0), (["shift", "--impl", "nope:f"], 2)):
        assert "cannot write" not in ran(capsys, arguments, code).err


def test_tries_to_call_code_give_no_warnings(shifted) -> None:
    message = "warnings.warn('of a try' if len(positions) == 7 else 'of a call', stacklevel=1)"
    seen = shifted("import warnings", message, "-v")
    assert "UserWarning: of a call" in seen.err
    assert "UserWarning: of a try" not in seen.err


@posix
def test_workers_stand_code_that_closes_stdout(shifted) -> None:
    shifted("", "os.closerange(1, 2)", "--jobs", "2")


def test_random_numbers_of_torch_come_again(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import torch\ndef f(x, positions):\n    return x * (1 + 0.001 * torch.rand(x.shape))\n"
    Path("t.py").write_text(text)
    for spec in ("t:f", "t.py:f"):
        line = ["shift", "--impl", spec, *SMALL[:-1], "implementation,drift_max"]
        assert ran(capsys, line).out == ran(capsys, line).out


SHOUTS = """
def shout():
    for number in range(3, 20):
        try:
            os.write(number, b"x")
        except OSError:
            pass
shout()
"""


@posix
@pytest.mark.parametrize("output", ["-", "o.csv", "o.jsonl"])
def test_what_code_writes_to_every_descriptor_is_not_in_the_report(output, shifted, tmp_path) -> None:
    """Neither on stdout nor in a file, nor among the rows that are kept meanwhile."""
    results = []
    for name, *code in (("quiet", "def shout(): pass\n", "pass"), ("loud", SHOUTS, "shout()")):
        out = shifted(*code, *([] if output == "-" else ["-o", output]), folder=tmp_path / name).out
        results.append((out, "" if output == "-" else Path(output).read_text()))
    digest = re.compile("sha256:[0-9a-f]+")
    assert [digest.sub("", text) for text in results[0]] == [digest.sub("", text) for text in results[1]]
