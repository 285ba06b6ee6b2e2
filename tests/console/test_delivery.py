"""Nothing is lost where a file cannot be written: stdout and the other files are whole, and the exit code."""

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import first_fast
from command_line import ran

from ropeaudit.console.delivery import worst
from ropeaudit.main import main
from ropeaudit.reports import numbers
from ropeaudit.reports.answers import Fault
from ropeaudit.reports.forms import csv as csv_form
from ropeaudit.reports.forms.sarif import annotation
from ropeaudit.runtime import atomic_files

SMALL = "--heads 1 --seq-len 8 --head-dim 8"
LINES = {
    "shift": f"shift --offset 0,1000 --dtype fp16 {SMALL}",
    "check": "check llama-3.1-8b --dtype bf16 --up-to 64",
    "limit": f"limit --recipe hf --dtype fp16 --up-to 64 {SMALL}",
    "explain": f"explain --recipe uniform --dtype bf16 --offset 1000 {SMALL}",
    "parity": f"parity hf uniform --dtype bf16 --offset 1000 {SMALL}",
    "decay": "decay --distance 0-64 --head-dim 8",
    "module": "module table.npz --base 10000",
    "report": "report rows.jsonl -f csv",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str, bytes]]]:
    """A folder with what commands read; of each command the exit code, stdout and file when all is well."""
    place, results = tmp_path_factory.mktemp("whole"), {}
    with contextlib.chdir(place):
        np.savez("table.npz", inv_freq=1e4 ** -(np.arange(4) / 4))
        for name, line in LINES.items():
            more = ["-o", "rows.jsonl"] if name == "shift" else []
            with contextlib.redirect_stdout(io.StringIO()) as out:
                code = main([*line.split(), "-q", "-o", "file.csv", *more])
            results[name] = code, out.getvalue(), Path("file.csv").read_bytes()
    return place, results


@pytest.fixture
def folder(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("table.npz", "rows.jsonl"):
        shutil.copy(whole[0] / name, name)
    return tmp_path


def raising(number: int, only: Callable[..., bool], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fails for some arguments, as the system does."""

    def function(*arguments, **more):
        if only(*arguments):
            raise OSError(number, os.strerror(number))
        return usual(*arguments, **more)

    return function


def full(patch: pytest.MonkeyPatch) -> None:
    only = raising(errno.ENOSPC, lambda *given: given[2].name == "bad.json", atomic_files.fill)
    patch.setattr(atomic_files, "fill", only)


def busy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "replace", raising(errno.EBUSY, lambda *given: str(given[1]) == "bad.json", os.replace))


def mounted(patch: pytest.MonkeyPatch) -> None:
    Path("bad.json").write_text("old " * 100_000)
    busy(patch)


def neither(patch: pytest.MonkeyPatch) -> None:
    busy(patch)
    into = raising(errno.EPERM, lambda *given: str(given[0]) == "bad.json" and given[1:] != ("rb",), open)
    patch.setattr("builtins.open", into)


def read_only(patch: pytest.MonkeyPatch) -> None:
    only = raising(errno.EROFS, lambda path, *_: os.path.basename(path).startswith(".bad.json"), os.open)
    patch.setattr("os.open", only)


class Closed(io.StringIO):
    """A reader that went away, as `head` does."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


# what is wrong with bad.json -> what makes it so, and whether the run refuses it before any work, says it at
# its end, or writes it all the same
FAILS: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], str]] = {
    "the disk is full": (full, "said"),
    "it leads to a device that is full": (lambda patch: os.symlink("/dev/full", "bad.json"), "said"),
    "it can neither be replaced nor written into": (neither, "said"),
    "it cannot be replaced": (mounted, "written"),
    "stdout is closed": (lambda patch: patch.setattr("sys.stdout", Closed()), "written"),
    "it is a link to itself": (lambda patch: os.symlink("bad.json", "bad.json"), "refused"),
    "it is a folder": (lambda patch: os.mkdir("bad.json"), "refused"),
    "its folder is missing": (lambda patch: os.symlink("missing/file", "bad.json"), "refused"),
    "its folder is read-only": (read_only, "refused"),
}


@pytest.mark.parametrize("fails", FAILS)
def test_a_file_that_cannot_be_written_stops_no_other(fails, whole, folder, capsys, monkeypatch) -> None:
    (prepare, outcome), wrong = FAILS[fails], []
    there = set(os.listdir())
    for name, line in LINES.items():
        usual, expected, content = whole[1][name]
        with monkeypatch.context() as patch:
            prepare(patch)
            code = main([*line.split(), "-q", "-o", "first.csv", "-o", "bad.json", "-o", "last.csv"])
        seen = capsys.readouterr()
        files = [Path(one).read_bytes() for one in ("first.csv", "last.csv") if Path(one).exists()]
        wanted = {
            "refused": (2, "", []),
            "said": (worst(usual, 2), expected, [content, content]),
            "written": (usual, "" if "stdout" in fails else expected, [content, content]),
        }[outcome]
        if (code, seen.out, files) != wanted:
            wrong.append(f"{name}: {code} for {usual}, {seen}")
        if outcome == "written":
            assert json.loads(Path("bad.json").read_text())["records"]
        if fails == "it can neither be replaced nor written into":
            assert "all of it is in 'bad.json.new'" in seen.err
            assert Path("bad.json.new").read_bytes()
        for one in set(os.listdir()) - there:
            wrong += [f"{name} leaves {one}"] * one.startswith(".")
            shutil.rmtree(one) if os.path.isdir(one) else os.unlink(one)
    assert wrong == []


# a command, a gate that is broken, and one that is not
GATED = {
    "shift": (LINES["shift"], "drift_rms>0", "drift_rms>9"),
    "limit": (LINES["limit"], "proved_position<1000", "proved_position<0"),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes")
@pytest.mark.parametrize(
    ("name", "reader", "broken"),
    first_fast(
        [
            ("shift", "head -c 1", True),
            ("shift", "true", False),
            ("limit", "head -c 1", False),
            ("limit", "true", True),
            ("limit", "cat", True),
        ],
        2,
    ),
)
def test_a_gate_decides_whatever_becomes_of_stdout(name, reader, broken, folder) -> None:
    line, gate, never = GATED[name]
    run = f"{sys.executable} -m ropeaudit {line} -q -f csv --fail-if '{gate if broken else never}' -o x.csv"
    script = f"{run} | {reader} >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == broken, done.stderr
    assert Path("x.csv").exists()


ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.mark.slow  # a process each
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("name", "number"),
    [*(("shift", number) for number in ENDS), *((name, ENDS[-1]) for name in ("check", "vectors", "report"))],
)
def test_no_moment_of_a_signal_leaves_a_hidden_file(name, number, folder) -> None:
    line = LINES.get(name, f"{name} --offset 0") + (" -q -o out.json" if name in LINES else " -o out")
    command = [sys.executable, "-m", "ropeaudit", *line.split()]
    began = time.monotonic()
    usual = subprocess.run(command, capture_output=True, timeout=300, check=False).returncode
    whole = time.monotonic() - began
    for share in (0.1, 0.5, 0.9, 0.97):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            time.sleep(share * whole)
            process.send_signal(number)
            process.communicate(timeout=300)
        # before Python hears it, it is the end that the system gives
        assert process.returncode in (130, usual, -number), (share, process.returncode)
        hidden = [one.name for one in folder.iterdir() if one.name.startswith(".")]
        assert hidden == [], (share, hidden)
        for one in folder.glob("out*"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()


def rendered(line: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys) -> tuple[int, str, str]:
    """Run a command line that reads stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    code = main(line.split())
    return code, *capsys.readouterr()


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_report_is_read_from_stdin_and_written_to_stdout(form, folder, monkeypatch, capsys) -> None:
    text = ran(capsys, [*LINES["shift"].split(), "-q", "-f", form, "-o", "-"]).out
    expected = ran(capsys, ["report", "rows.jsonl", "--by", "dtype"]).out
    assert rendered("report - --by dtype", text, monkeypatch, capsys)[:2] == (0, expected)
    code, picture, _ = rendered("plot - -o - -q", text, monkeypatch, capsys)
    assert (code, picture) == (0, "") or picture.startswith("<?xml")  # of a terminal that is no descriptor
    code, _, said = rendered("report -", "", monkeypatch, capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert not Path("-").exists()


def test_what_stands_twice_in_a_report_is_refused(folder, capsys) -> None:
    assert main([*LINES["shift"].split(), "-q", "-o", "whole.csv", "-o", "whole.json"]) == 0
    header, *rows = Path("whole.csv").read_text().splitlines()
    lines = [f"{header},offset", *(f"{row},0" for row in rows)]
    Path("twice.csv").write_text("\n".join(lines))
    text = Path("whole.json").read_text()
    Path("twice.json").write_text(text.replace('"offset": 0', '"offset": 0, "offset": 7', 1))
    capsys.readouterr()
    for name in ("twice.csv", "twice.json"):
        assert "'offset' twice" in ran(capsys, ["report", name], 2).err


HOSTILE = [
    *("::error::x", "::set-output name=a::b", "  ::warning::x", "a ##[error]b", "a\n::error::x"),
    *("\r::error::", "\x1b[31mred", "\x9b31m", "\x07", "a\x00b", "\u202ecod.exe", "\u2066a", "\u200b"),
    *("\x85line", "\u2028", "=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\uff1d1+1", "  =1", "\uff20x"),
    *("'=1", '"', "<script>", "|a|"),
]


def test_names_neither_steer_a_terminal_nor_a_runner() -> None:
    for name in HOSTILE:
        shown = numbers.printable(name)
        assert not any(unicodedata.category(c)[0] == "C" for c in shown), name
        assert not shown.lstrip().startswith("::")
        assert "##[" not in shown
        fault = Fault("wrong-base", name, name, "rotation", name, 3)
        line = annotation(fault)
        assert "\n" not in line
        assert not any(unicodedata.category(c)[0] == "C" for c in line)
        cell = csv_form.cell(name)
        assert csv_form.restored(cell) == name
        quoted = numbers.printable_json(json.dumps(name, ensure_ascii=False))
        assert json.loads(quoted) == name
        assert quoted.isprintable()
        assert not re.search(r"(^|[\r\n])\s*::", cell), name
        assert cell[:1] == "'" or cell.lstrip()[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20")
