"""Nothing is lost where a file cannot be written: stdout and the other files are whole, and the exit code."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from cases import first_fast

from ropeaudit.console.delivery import worst
from ropeaudit.main import main
from ropeaudit.reports import numbers
from ropeaudit.reports.faults import Fault, annotation
from ropeaudit.reports.forms import csv as csv_form
from ropeaudit.runtime import atomic_files

SMALL = "--heads 1 --seq-len 8 --head-dim 8"
LINES = {
    "shift": f"shift --offset 0,1000 --dtype fp16 {SMALL}",
    "check": "check llama-3.1-8b --dtype bf16 --up-to 2k",
    "limit": f"limit --recipe hf --dtype fp16 --up-to 2k {SMALL}",
    "explain": f"explain --recipe uniform --dtype bf16 --offset 1000 {SMALL}",
    "parity": f"parity hf uniform --dtype bf16 --offset 1000 {SMALL}",
    "decay": "decay --distance 0-64 --head-dim 8",
    "module": "module table.npz --base 10000",
    "report": "report rows.jsonl -f csv",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("table.npz", inv_freq=1e4 ** -(np.arange(4) / 4))
    assert main([*LINES["shift"].split(), "-q", "-o", "rows.jsonl"]) == 0
    capsys.readouterr()
    return tmp_path


def full(path: str, patch: pytest.MonkeyPatch) -> None:
    """The disk is full once the file's bytes are to be stored."""
    whole = atomic_files.fill

    def fill(file, content, target):
        if target.name == path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(file, content, target)

    patch.setattr(atomic_files, "fill", fill)


def neither(path: str, patch: pytest.MonkeyPatch) -> None:
    """The file can neither be replaced nor written into."""
    replace, opened = os.replace, open

    def refused(source, target):
        if str(target) == path:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        replace(source, target)

    def closed(file, mode="r", *rest, **more):
        if str(file) == path and "b" in mode and mode != "rb":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return opened(file, mode, *rest, **more)

    patch.setattr(os, "replace", refused)
    patch.setattr("builtins.open", closed)


def device(path: str, patch: pytest.MonkeyPatch) -> None:
    """It leads to a device that takes nothing."""
    os.symlink("/dev/full", path)


@pytest.mark.parametrize("fails", first_fast([neither, full, device]))
def test_a_file_that_cannot_be_written_stops_no_other(fails, folder, capsys, monkeypatch) -> None:
    wrong = []
    for name, line in LINES.items():
        whole = main([*line.split(), "-q", "-o", "whole.csv"])
        expected = capsys.readouterr().out
        with monkeypatch.context() as patch:
            fails("bad.json", patch)
            code = main([*line.split(), "-q", "-o", "first.csv", "-o", "bad.json", "-o", "last.csv"])
        seen = capsys.readouterr()
        files = [Path(one).read_bytes() for one in ("whole.csv", "first.csv", "last.csv")]
        if (code, seen.out) != (worst(whole, 2), expected) or len(set(files)) > 1:
            wrong.append(f"{name}: {code} for {whole}, {seen}")
        if fails is neither:
            assert "all of it is in 'bad.json.new'" in seen.err
            assert Path("bad.json.new").read_bytes()
            Path("bad.json.new").unlink()
        for one in (*folder.glob("first*"), *folder.glob("last*"), *folder.glob("bad*")):
            one.unlink()
        wrong += [f"{name} leaves {one.name}" for one in folder.iterdir() if one.name.startswith(".")]
    assert wrong == []


@pytest.mark.parametrize("place", ["folder", "missing/file.json"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(place, folder, capsys) -> None:
    (folder / "folder").mkdir()
    for line in LINES.values():
        assert main([*line.split(), "-q", "-o", "good.csv", "-o", place]) == 2
        assert capsys.readouterr().out == ""
        assert not (folder / "good.csv").exists()


def test_what_cannot_be_replaced_is_written_into(folder, monkeypatch) -> None:
    """As a file that is mounted by itself is."""
    Path("there.json").write_text("old " * 10_000)
    number = Path("there.json").stat().st_ino

    def refused(source, target):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        assert main([*LINES["decay"].split(), "-q", "-o", "there.json"]) == 0
    assert main([*LINES["decay"].split(), "-q", "-o", "usual.json"]) == 0
    there, usual = (Path(name).read_text().splitlines() for name in ("there.json", "usual.json"))
    assert len(there) == len(usual)
    assert Path("there.json").stat().st_ino == number
    assert not list(folder.glob(".*"))


@pytest.mark.skipif(os.name != "posix", reason="pipes and /dev/full")
@pytest.mark.parametrize("gate", ["drift_rms>9", "drift_rms>0"])
@pytest.mark.parametrize("reader", ["head -c 1", "cat", "true"])
def test_a_gate_decides_whatever_becomes_of_stdout(gate, reader, tmp_path) -> None:
    run = f"{sys.executable} -m ropeaudit {LINES['shift']} -q -f csv --fail-if '{gate}' -o x.csv"
    script = f"{run} | {reader} >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == (gate == "drift_rms>0"), done.stderr
    assert (tmp_path / "x.csv").exists()


ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.mark.slow  # a process each
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("name", ["shift", "check", "limit", "explain", "decay", "report"])
def test_no_moment_of_a_signal_leaves_a_hidden_file(name, number, folder) -> None:
    command = [sys.executable, "-m", "ropeaudit", *LINES[name].split(), "-q", "-o", "out.json"]
    began = time.monotonic()
    usual = subprocess.run(command, capture_output=True, timeout=300, check=False).returncode
    whole = time.monotonic() - began
    for share in (0.1, 0.4, 0.7, 0.9, 0.97):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            time.sleep(share * whole)
            process.send_signal(number)
            process.communicate(timeout=300)
        # before Python hears it, it is the end that the system gives
        assert process.returncode in (130, usual, -number), (share, process.returncode)
        hidden = [one.name for one in folder.iterdir() if one.name.startswith(".")]
        assert hidden == [], (share, hidden)
        for one in folder.glob("out.json*"):
            one.unlink()


def rendered(line: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys) -> tuple[int, str, str]:
    """Run a command line that reads stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    code = main(line.split())
    return code, *capsys.readouterr()


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_report_is_read_from_stdin_and_written_to_stdout(form, folder, monkeypatch, capsys) -> None:
    assert main([*LINES["shift"].split(), "-q", "-f", form, "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert main(["report", "rows.jsonl", "--by", "dtype"]) == 0
    expected = capsys.readouterr().out
    assert rendered("report - --by dtype", text, monkeypatch, capsys)[:2] == (0, expected)
    code, picture, _ = rendered("plot - -o - -q", text, monkeypatch, capsys)
    assert (code, picture) == (0, "") or picture.startswith("<?xml")  # of a terminal that is no descriptor
    code, _, said = rendered("report -", "", monkeypatch, capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert not Path("-").exists()


GUESSES = {
    "shift --theta 5": "type --base",
    "check x --rope-theta 5": "type --base",
    "shift --json": "type -f json",
    "version": "type `ropeaudit --version`",
    "diff a b": "type `ropeaudit report FILE --against FILE`",
}


@pytest.mark.parametrize("line", GUESSES)
def test_a_guess_is_told_what_it_is_called_here(line, capsys) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.endswith(f"; {GUESSES[line]}\n")


def test_what_stands_twice_in_a_report_is_refused(folder, capsys) -> None:
    assert main([*LINES["shift"].split(), "-q", "-o", "whole.csv", "-o", "whole.json"]) == 0
    header, *rows = Path("whole.csv").read_text().splitlines()
    lines = [f"{header},offset", *(f"{row},0" for row in rows)]
    Path("twice.csv").write_text("\n".join(lines))
    text = Path("whole.json").read_text()
    Path("twice.json").write_text(text.replace('"offset": 0', '"offset": 0, "offset": 7', 1))
    capsys.readouterr()
    for name in ("twice.csv", "twice.json"):
        assert main(["report", name]) == 2
        assert "'offset' twice" in capsys.readouterr().err


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
        assert cell[:1] == "'" or cell.lstrip()[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20")
