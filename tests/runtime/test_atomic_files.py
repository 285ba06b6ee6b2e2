"""Files that a killed run left beside its report are cleared, and those of living runs are left alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.console import output_files, sweep_file
from ropeaudit.main import main
from ropeaudit.runtime import atomic_files

SMALL = ["shift", "--heads", "1", "--head-dim", "8", "--seq-len", "4", "--offset", "7", "-q", "-f", "csv"]
posix = pytest.mark.skipif(os.name != "posix", reason="locks")


def run(path: Path, *more: str) -> None:
    assert main([*SMALL, "-o", str(path), *more]) == 0


def hidden(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


@posix
@pytest.mark.parametrize("content", [b"", b"half a rep"])
def test_what_a_killed_run_left_is_cleared_by_the_next(content, tmp_path) -> None:
    path = tmp_path / "x.csv"
    for name in (".x.csv.abcdefgh.ropeaudit", ".x.csv.meta.json.abcdefgh.ropeaudit"):
        (tmp_path / name).write_bytes(content)
    run(path)
    assert hidden(tmp_path) == []


@pytest.mark.slow  # processes
@posix
def test_a_run_that_is_killed_leaves_nothing_to_later_ones(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    long = [*SMALL, "--offset", "0-99999+1", "-o", str(path)]
    with subprocess.Popen([sys.executable, "-m", "ropeaudit", *long], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "x.jsonl.part").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert hidden(tmp_path) == []
    (tmp_path / "x.jsonl.part").unlink(missing_ok=True)
    run(path)
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_files_of_others_are_left_alone(tmp_path) -> None:
    others = [
        ".x.csv.settings",
        ".x.csv.abcdefgh.ropeaudit.txt",
        ".y.csv.abcdefgh.ropeaudit",
        ".x.csv.abc.ropeaudit",
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".x.csv.abcdefgi.ropeaudit").mkdir()
    run(tmp_path / "x.csv")
    assert hidden(tmp_path) == sorted([*others, ".x.csv.abcdefgi.ropeaudit"])


@posix
def test_two_runs_at_once_write_the_same_name(tmp_path) -> None:
    path = tmp_path / "x.txt"
    with (
        output_files.opened([str(path)], lambda _: "table") as first,
        output_files.opened([str(path)], lambda _: "table") as second,
    ):
        first[0].fill([b"first"])
        assert path.read_bytes() == b"first"
        second[0].fill([b"second"])
        assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["x.txt"]


@posix
def test_a_file_that_was_taken_before_it_was_locked_is_made_again(tmp_path, monkeypatch) -> None:
    usual, seen = atomic_files.lock, []

    def late(number: int) -> bool | None:
        seen.append(number)
        if len(seen) == 1:
            monkeypatch.setattr(atomic_files, "lock", usual)
            atomic_files._remove_abandoned(tmp_path, ".x.")
            monkeypatch.setattr(atomic_files, "lock", late)
        return usual(number)

    monkeypatch.setattr(atomic_files, "lock", late)
    with atomic_files.temporary_file(tmp_path / "x") as file:
        assert [Path(file.name).name] == os.listdir(tmp_path)
    assert len(seen) == 2


@pytest.mark.parametrize("answer", [None, False])
def test_without_locks_nothing_is_cleared(answer, tmp_path, monkeypatch) -> None:
    (tmp_path / ".x.csv.abcdefgh.ropeaudit").touch()
    monkeypatch.setattr(atomic_files, "lock", lambda number: answer)
    atomic_files._remove_abandoned(tmp_path, ".x.csv.")
    assert hidden(tmp_path) == [".x.csv.abcdefgh.ropeaudit"]


@posix
def test_a_folder_that_cannot_be_listed_can_be_written(tmp_path, monkeypatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(atomic_files.os, "listdir", refuse)
    with atomic_files.temporary_file(tmp_path / "x") as file:
        assert re.search(r"/\.x\.\w{8}\.ropeaudit$", file.name)


def test_rows_that_are_taken_over_leave_no_file(tmp_path) -> None:
    run(tmp_path / "x.jsonl", "--recipe", "uniform")
    sweep = Sweep(Audit([Case(heads=1, head_dim=8, seq_len=4)], ["uniform"], offsets=[7], bounded=False))
    file = sweep_file.SweepFile(str(tmp_path / "x.jsonl"), sweep, True)
    assert len(sweep.done) == 4
    assert hidden(tmp_path) == []
    file.close()


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    path = tmp_path / "q.safetensors"
    atomic_files.write({path: b"before"})
    path.chmod(0o640)
    atomic_files.write({path: b"old"})
    assert path.stat().st_mode & 0o777 == 0o640

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_files.write({path: b"new"})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@posix
def test_a_file_is_replaced_where_nothing_can_be_locked(tmp_path, monkeypatch) -> None:
    import fcntl

    def without_locks(number: int, how: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with open(tmp_path / "x", "wb") as file:
        assert atomic_files.lock(file.fileno()) is None
        monkeypatch.setitem(sys.modules, "fcntl", None)
        assert atomic_files.lock(file.fileno()) is None


@posix
def test_a_folder_has_the_mode_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with atomic_files.new_folder(tmp_path / "whole") as beside:
        (beside / "file").write_text("text")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_signal_right_after_a_file_is_made_leaves_none(tmp_path, monkeypatch) -> None:
    usual = os.open

    def interrupted(*given):
        os.close(usual(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_files.temporary_file(tmp_path / "x"):
        pass
    assert list(tmp_path.iterdir()) == []
