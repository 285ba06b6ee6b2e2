"""NAME.part, which stores the rows of a running sweep until its output file NAME is complete.

Each row is one line of JSON (with NaN and Infinity, so that nothing is lost) and its checksum, appended by
one write. `--resume` drops a torn last line; a file with any other content is refused and not changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ropeaudit import reports
from ropeaudit.audits import records
from ropeaudit.audits.records import Record, row_label
from ropeaudit.audits.sweep import Sweep
from ropeaudit.console import delivery
from ropeaudit.console.output_files import part_of
from ropeaudit.errors import BadInput, BadOutput, UnknownName
from ropeaudit.reports import reading
from ropeaudit.runtime import atomic_files, paths

Columns: TypeAlias = Callable[[Sequence[Record]], Sequence[str]]
_ROW_START = json.dumps({"schema": records.SCHEMA, "implementation": ""}).encode()[:-2]  # of each row
_SYNC_SECONDS = 5.0  # of rows that a power failure can lose; a killed run loses none
_REMEDY = "move it away, or give another -o"


class SweepFile(contextlib.AbstractContextManager["SweepFile"]):
    """NAME.part, locked by this run. full: whether the disk is. note: on rows of an earlier run."""

    def __init__(
        self,
        name: str,
        sweep: Sweep,
        resume: bool,
        columns: Columns = lambda rows: (),
    ) -> None:
        """Open the file; with `resume`, take over the rows of NAME.part, or else those of NAME.

        columns: rows -> the columns that NAME must have. Raises, without changing anything: BadOutput if
        another run writes the file, or it has rows without `resume`; BadInput if its content is not rows of
        the sweep.
        """
        if not resume:
            refuse_another_shard(name, sweep)
        self.name, self.path, self.full, self.hinted = name, part_of(name), False, False
        self.sweep, self.before = sweep, _file_version(name)
        self.number, self.synced = _open_locked(self.path), time.monotonic()
        try:
            content = _read_bytes(self.number)
            rows, self.length = parsed(self.path, content)
            if rows and not resume:
                raise BadOutput(
                    f"{self.path!r} holds {len(rows)} rows of a run that was broken off; "
                    "go on with --resume, or remove it"
                )
            complete = rows_of_output(name, columns) if resume and not rows else []
            self.note = _take_rows(sweep, name if complete else self.path, [*rows, *complete])
            if complete:
                refuse_loss(name, columns([*complete, *sweep.results()]))
            if self.length < len(content):  # a torn line of ours
                os.ftruncate(self.number, self.length)
            for row in complete:
                self.append(row)
        except BaseException:
            self.close()
            raise

    def append(self, row: Record) -> None:
        """Append a row. Once the disk is full, warn and append no more."""
        if self.full:
            return
        line = rest = line_of(row)
        try:
            while rest:  # a full disk takes a part, and raises at the next byte
                rest = rest[os.write(self.number, rest) :]
            self.length += len(line)
            if time.monotonic() - self.synced > _SYNC_SECONDS:
                os.fsync(self.number)
                self.synced = time.monotonic()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.number, self.length)
            self.full = True
            stored = "the rows in it are whole" if self.length else "no row is stored"
            delivery.say(
                f"warning: {self.path!r} cannot be written: {error.strerror}; {stored}, and those that are "
                "measured from here on are in the report alone"
            )

    def hint(self) -> str:
        """Return where rows are that no report has yet, the first time; else nothing."""
        hinted, self.hinted = self.hinted, True
        if hinted or not (os.path.exists(self.path) and os.path.getsize(self.path)):
            return ""
        rows = "the rows that fitted" if self.full else "the rows"
        return f"{rows} are in {self.path!r}; the same command with --resume goes on"

    def __exit__(self, *_: object) -> None:
        """Remove the file if NAME has all rows, else print where they are; close it."""
        if not self.sweep.left() and _file_version(self.name) != self.before:
            self.remove()
        self.close()
        if hint := self.hint():
            delivery.say(hint)

    def close(self) -> None:
        """Close the file, and remove it if it has no rows."""
        with contextlib.suppress(OSError):
            if os.fstat(self.number).st_size == 0:
                self.remove()
        os.close(self.number)

    def remove(self) -> None:
        """Remove the file, unless another one has replaced it."""
        with contextlib.suppress(OSError):
            if paths.is_still_at(self.number, self.path):
                os.unlink(self.path)


def peek(name: str, sweep: Sweep) -> None:
    """Give a sweep the rows that --resume would take over. Raises: BadInput, BadOutput."""
    part, rows = part_of(name), list[Record]()
    if os.path.lexists(part):
        number = _open_regular_file(part, os.O_RDONLY)
        try:
            rows = parsed(part, _read_bytes(number))[0]
        finally:
            os.close(number)
    _take_rows(sweep, part if rows else name, rows or rows_of_output(name))


def _file_version(path: str) -> tuple[int, int] | None:
    """Return a value that changes when a file is rewritten; None where there is no file."""
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _open_locked(path: str) -> int:
    """Open a file to append to, and lock it. Raises: BadOutput."""
    while True:
        number = _open_regular_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        if atomic_files.lock(number) is False:  # without locks two runs into one file are not noticed
            os.close(number)
            raise BadOutput(f"{path!r} is being written by another run; give another -o")
        if paths.is_still_at(number, path):
            return number
        os.close(number)  # another run has removed or replaced it in the moment before it was locked


def _open_regular_file(path: str, flags: int) -> int:
    """Open a regular file that is not a link. Raises: BadOutput."""
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # a pipe would wait
        flags |= getattr(os, name, 0)
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise BadOutput(f"{path!r} is a link or no file, and rows go there until a run is over; {_REMEDY}")
    try:
        return os.open(path, flags, 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"{path!r} cannot be written: {reason}; give another place") from None


def _read_bytes(number: int) -> bytes:
    with os.fdopen(os.dup(number), "rb") as file:
        file.seek(0)
        return file.read()


def rows_of_output(name: str, columns: Columns = lambda rows: ()) -> list[Record]:
    """Return the rows of an output file of an earlier run; none where there is no file.

    columns: rows -> the columns that it must have. Raises: BadInput.
    """
    form = reports.form_of(name)
    if not os.path.exists(name) or not os.path.getsize(name):
        return []
    readable = {name: known for name, known in reports.REGISTRY.items() if known.reads and not known.binary}
    if form not in readable:
        *first, last = (known.suffixes[0] for known in readable.values())
        raise BadInput(f"--resume reads {', '.join(first)} and {last}, and {name!r} is there; remove it")
    read = reading.read(name)
    rows = reading.records_of(name, read)
    for column in columns(rows):
        if not records.COLUMNS[column].sentence and not read.all_have(column):
            raise BadInput(
                f"{name!r} has no column {column}, which is asked for now; leave it out, or give another -o"
            )
    return rows


def refuse_loss(name: str, wanted: Sequence[str]) -> None:
    """Raise BadInput if NAME has measured columns that would not be written again."""
    measured = [column for column in reading.read(name).columns if column not in records.IDENTITY]
    lost = [column for column in measured if not records.COLUMNS[column].sentence and column not in wanted]
    if wanted and lost:
        raise BadInput(
            f"{name!r} has columns that would be lost, such as {lost[0]}; give the --columns that it was "
            "written with, or another -o"
        )


def line_of(row: Record) -> bytes:
    """Return a row as a line of JSON with its checksum; NaN and Infinity are written."""
    text = json.dumps(row.as_dict())
    return f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n'.encode()


def parsed(path: str, content: bytes) -> tuple[list[Record], int]:
    """Return the rows of the complete lines of a file, and the length of these in bytes.

    Raises: BadInput if there is anything but rows and a torn last line.
    """
    length = content.rfind(b"\n") + 1
    tail = content[length:].rstrip(b"\0")  # the beginning of a row, or zeros
    if length < len(content) and not (
        tail.startswith(_ROW_START) or (length and _ROW_START.startswith(tail))
    ):
        raise BadInput(f"{path!r} does not hold rows of this version of ropeaudit; {_REMEDY}")
    lines = content[:length].split(b"\n")[:-1]
    return [_row(path, number, line) for number, line in enumerate(lines, 1)], length


def _take_rows(sweep: Sweep, path: str, rows: Sequence[Record]) -> str:
    """Give a sweep rows; return a note on them. Raises: BadInput, also if two rows differ."""
    by_key: dict[object, Record] = {}
    for row in rows:
        before = by_key.setdefault(row.key(), row)
        if before is not row and repr(before) != repr(row):
            raise BadInput(
                f"{path!r} holds two different rows of {row_label(row)}; remove them both, and give the same "
                "command with --resume"
            )
    return sweep.take(path, rows)


def _row(path: str, number: int, line: bytes) -> Record:
    """Return the row of a line. Raises: BadInput unless ropeaudit wrote it like this."""
    try:
        values = json.loads(line)
        del values["crc32"]
        row = Record(**values)
    except (ValueError, TypeError, KeyError, RecursionError):
        where = f"{path!r} does not hold rows of this version of ropeaudit"
        raise BadInput(f"{where} (line {number}); {_REMEDY}") from None
    if line_of(row) != line + b"\n":
        raise BadInput(f"{path!r} line {number} is not as ropeaudit wrote it; remove the line and --resume")
    return row


def refuse_another_shard(name: str, sweep: Sweep) -> None:
    """Raise BadOutput if NAME holds rows that another shard of the sweep measures."""
    earlier: list[Record] = []
    with contextlib.suppress(BadInput, UnknownName):  # any other file may be replaced
        earlier = rows_of_output(name) if sweep.shard != (1, 1) else []
    others = sweep.others() if earlier else set()
    if row := next((row for row in earlier if row.key() in others), None):
        raise BadOutput(
            f"{name!r} holds rows of another shard, such as {row_label(row)}; give each --shard an -o of its "
            "own, or remove it"
        )
