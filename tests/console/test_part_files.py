"""NAME.part: nobody's file is taken for one, no row in it is believed that was not written so."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from dataclasses import replace

import pytest
from command_line import ran

from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.console import sweep_file
from ropeaudit.console.sweep_file import SweepFile
from ropeaudit.errors import BadInput, BadOutput
from ropeaudit.main import main
from ropeaudit.runtime import atomic_files

SMALL = ["shift", "--heads", "1", "--head-dim", "8", "--seq-len", "4", "--recipe", "hf", "--dtype", "fp16"]
REQUESTED = [*SMALL, "--offset", "0,7,100000", "-q", "-f", "csv"]
SWEEP = Sweep(Audit([Case(heads=1, seq_len=4, head_dim=8)], ["hf"], ["fp16"], [0, 7, 100000]))
ROWS = list(SWEEP.audit.run(1))
LINES = [sweep_file.line_of(row) for row in ROWS]
posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes, locks")
FOREIGN = [
    b"my only copy",
    b"my only copy\n",
    b"{",
    b'{"schema": 2, "name": "mine"}',
    b'{"schema": 2, "implementation": "a", "other": 1',
    b"\0\0\0\0",
    b"\xff\xfe\n",
    b"[1, 2]\n",
    b"null\n",
    b"3\n",
    b"\n",
    b"[" * 100_000,
    b"[" * 100_000 + b"\n",
    LINES[0] + b"my only copy",
    LINES[0] + b"\n" + LINES[1],
    LINES[0].replace(b"\n", b"\r\n"),
]


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_foreign_part_file_is_refused_and_left_alone(more, tmp_path, capsys) -> None:
    part, wrong = tmp_path / "x.jsonl.part", []
    for content in FOREIGN:
        part.write_bytes(content)
        code = main([*REQUESTED, "-o", str(tmp_path / "x.jsonl"), *more])
        message = capsys.readouterr().err
        known = (
            "does not hold rows of this version of ropeaudit" in message
            or "is not as ropeaudit wrote it" in message
        ) and ("or give another -o" in message or "remove the line" in message)
        left = part.read_bytes() == content and os.listdir(tmp_path) == [part.name]
        if (code, message.count("\n")) != (2, 1) or not (known and left):
            wrong.append((content[:12], code, message))
    assert wrong == []


@posix
@pytest.mark.parametrize("more", [(), ("--resume", "--dry-run")])
@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_part_that_is_no_file_is_refused(kind, more, tmp_path, capsys) -> None:
    part, target = tmp_path / "x.jsonl.part", tmp_path / "precious"
    if kind == "link":
        target.write_bytes(LINES[0])
    if kind.startswith("link"):
        part.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    message = ran(capsys, [*REQUESTED, "-o", str(tmp_path / "x.jsonl"), *more], 2).err
    assert message.count("\n") == 1
    assert "give another" in message
    assert os.path.lexists(part)
    assert target.exists() == (kind == "link")
    assert kind != "link" or target.read_bytes() == LINES[0]
    assert not (tmp_path / "x.jsonl").exists()


def test_every_beginning_of_a_row_is_a_torn_row() -> None:
    first = len(sweep_file._ROW_START)
    for length, zeros in itertools.product(range(len(LINES[0])), (b"", b"\0", b"\0" * 512)):
        torn = LINES[0][:length] + zeros
        contents = {LINES[1] + torn: True, LINES[1] + b"x" + torn: False, b"x" + torn: False}
        contents[torn] = length >= first or not torn
        for content, known in contents.items():
            with contextlib.nullcontext() if known else pytest.raises(BadInput, match="does not hold rows"):
                assert sweep_file.parsed("x", content)[1] == (len(LINES[1]) if LINES[1] in content else 0)


def test_rows_are_checked_before_they_are_believed(tmp_path, capsys) -> None:
    part = tmp_path / "x.csv.part"
    for old, new in ((b'"offset": 0', b'"offset": 7'), (b'"offset": 0', b'"offset": "0"'), (b"hf", b"HF")):
        content = LINES[1] + LINES[0].replace(old, new, 1)
        part.write_bytes(content)
        seen = ran(capsys, [*REQUESTED, "-o", str(tmp_path / "x.csv"), "--resume"], 2).err
        assert "line 2 is not as ropeaudit wrote it; remove the line and --resume" in seen
        assert part.read_bytes() == content


def test_two_different_rows_of_a_cell_are_refused(tmp_path, capsys) -> None:
    part = tmp_path / "x.jsonl.part"
    other = replace(ROWS[0], drift_rms=0.125)
    part.write_bytes(LINES[0] + sweep_file.line_of(other))
    before = part.read_bytes()
    for more in ([], ["--dry-run"]):
        assert main([*REQUESTED, "-o", str(tmp_path / "x.jsonl"), "--resume", *more]) == 2
        assert "two different rows of hf float16 at offset 0" in capsys.readouterr().err
    assert part.read_bytes() == before
    part.unlink()
    report = tmp_path / "x.jsonl"
    report.write_text("".join(json.dumps(row.as_dict()) + "\n" for row in (ROWS[0], other)))
    assert main([*REQUESTED, "-o", str(report), "--resume", "--columns", "all"]) == 2
    assert "two different rows of hf float16 at offset 0" in capsys.readouterr().err


def test_rows_without_bounds_are_not_taken_for_rows_with_them(tmp_path, capsys) -> None:
    unbounded = replace(ROWS[0], predicted_rms=None, bound_max=None)
    for name, row in {"with": ROWS[0], "without": unbounded}.items():
        report = tmp_path / f"{name}.jsonl"
        report.with_name(f"{name}.jsonl.part").write_bytes(sweep_file.line_of(row))
        run = [*REQUESTED, "-o", str(report), "--resume"]
        assert main([*run, "--columns", "bounds"]) == (2 if name == "without" else 0)
        assert ("1 rows without bounds" in capsys.readouterr().err) == (name == "without")
    assert main(run) == 0


def test_a_report_loses_no_column_to_a_resumed_run(tmp_path, capsys) -> None:
    run = [*REQUESTED, "-o", str(tmp_path / "x.jsonl"), "--columns"]
    assert main([*run, "core,bounds"]) == 0
    before = (tmp_path / "x.jsonl").read_bytes()
    assert main([*run, "core", "--resume", "--offset", "0,7,100000,9"]) == 2
    assert "such as attainable_rms" in capsys.readouterr().err
    assert (tmp_path / "x.jsonl").read_bytes() == before
    assert main([*run, "core,bounds", "--resume", "--offset", "0,7,100000,9"]) == 0


def test_a_row_that_stands_there_twice_counts_once(tmp_path) -> None:
    (tmp_path / "x.jsonl.part").write_bytes(LINES[1] + LINES[1] + LINES[0])
    assert main([*REQUESTED, "-o", str(tmp_path / "x.jsonl"), "--resume"]) == 0
    assert main([*REQUESTED, "-o", str(tmp_path / "y.jsonl")]) == 0
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "y.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
@pytest.mark.parametrize("content", [b"my notes, without a line's end", b"{1", b"implementation;dtype"])
def test_resume_does_not_take_a_foreign_file_for_a_torn_report(name, content, tmp_path, capsys) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert "is not a report of ropeaudit" in ran(capsys, [*REQUESTED, "-o", str(path), "--resume"], 2).err
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == [name]


# ---------------------------------------------------------------------------- locks


@posix
@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_part_that_goes_between_open_and_lock_is_opened_again(how, tmp_path, monkeypatch) -> None:
    """The first holder ends, and removes or replaces the part, after the second has opened it."""
    name, part = str(tmp_path / "x.jsonl"), tmp_path / "x.jsonl.part"
    first, usual, steps = SweepFile(name, SWEEP, False), atomic_files.lock, []

    def late(number: int) -> bool | None:
        steps.append(number)
        if len(steps) == 1:
            part.unlink()
            if how == "replaced":
                part.write_bytes(b"")
            first.close()
        return usual(number)

    monkeypatch.setattr(atomic_files, "lock", late)
    second = SweepFile(name, SWEEP, False)
    monkeypatch.undo()
    assert len(steps) == 2
    assert os.path.samestat(os.fstat(second.number), os.stat(part))
    with pytest.raises(BadOutput, match="is being written by another run"):
        SweepFile(name, SWEEP, False)
    second.append(ROWS[0])
    assert part.read_bytes() == LINES[0]
    second.close()


@posix
def test_a_run_does_not_remove_the_part_of_another(tmp_path) -> None:
    name, part = str(tmp_path / "x.jsonl"), tmp_path / "x.jsonl.part"
    first = SweepFile(name, SWEEP, False)
    part.unlink()  # by hand
    second = SweepFile(name, SWEEP, False)
    first.close()  # it is empty and would go
    assert part.exists()
    second.append(ROWS[0])
    second.close()
    assert part.read_bytes() == LINES[0]


def test_rows_are_on_the_disk_every_five_seconds(tmp_path, monkeypatch) -> None:
    clock, synced = [100.0], []
    monkeypatch.setattr(sweep_file.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sweep_file.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    file = SweepFile(str(tmp_path / "x.jsonl"), SWEEP, False)
    for row, seconds in zip(ROWS, (4.0, 2.0, 4.0), strict=True):
        clock[0] += seconds
        file.append(row)
    file.close()
    assert synced == [len(LINES[0]) + len(LINES[1])]
