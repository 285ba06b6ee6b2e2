"""The rows of a run that is not over, in NAME.part beside the file NAME that it is to write.

Each row is one line of JSON (with NaN and Infinity: nothing is lost) and its
checksum, appended by one write. The file goes away when NAME is complete. A
line torn by a dying machine or a full disk is dropped when the file is taken
over; a file with anything else in it is refused and left as it is.
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
from ropeaudit.audits.records import Record, shown
from ropeaudit.audits.sweep import Sweep
from ropeaudit.console import delivery
from ropeaudit.console.output_files import part_of
from ropeaudit.errors import BadInput, BadOutput, UnknownName
from ropeaudit.reports import reading
from ropeaudit.runtime import atomic_files, paths

Columns: TypeAlias = Callable[[Sequence[Record]], Sequence[str]]
_FIRST = json.dumps({"schema": records.SCHEMA, "implementation": ""}).encode()[:-2]  # of each row
_SYNC_SECONDS = 5.0  # what a power failure can lose; a killed run loses no line that was written
_REMEDY = "move it away, or give another -o"


class SweepFile(contextlib.AbstractContextManager["SweepFile"]):
    """NAME.part, locked by this run. full: no more fits. note: on rows found there."""

    def __init__(
        self,
        name: str,
        sweep: Sweep,
        resume: bool,
        columns: Columns = lambda rows: (),
    ) -> None:
        """Open it; with `resume` it holds the rows of NAME.part, or those of NAME; so does the sweep.

        columns: from rows, those that NAME must have of them. Raises:
        BadOutput if another run writes it, or if rows are there and
        `resume` is not given; BadInput if what is there are no rows, or not
        those of the sweep. Then nothing is changed.
        """
        if not resume:
            refuse_another_shard(name, sweep)
        self.name, self.path, self.full, self.told = name, part_of(name), False, False
        self.sweep, self.before = sweep, _state(name)
        self.number, self.synced = _locked(self.path), time.monotonic()
        try:
            content = _content(self.number)
            rows, self.length = parsed(self.path, content)
            if rows and not resume:
                raise BadOutput(
                    f"{self.path!r} holds {len(rows)} rows of a run that was broken off; "
                    "go on with --resume, or remove it"
                )
            there = finished(name, columns) if resume and not rows else []
            self.note = _taken(sweep, name if there else self.path, [*rows, *there])
            if there:
                refuse_loss(name, columns([*there, *sweep.results()]))
            if self.length < len(content):  # a torn line of ours
                os.ftruncate(self.number, self.length)
            for row in there:
                self.append(row)
        except BaseException:
            self.close()
            raise

    def append(self, row: Record) -> None:
        """Write a row. Once one does not fit, say so and write no more."""
        if self.full:
            return
        line = rest = line_of(row)
        try:
            while rest:  # a disk that is full takes a part, and says so of the next byte
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
        """Return where the rows are that are in no report yet, to be said once; else nothing."""
        told, self.told = self.told, True
        if told or not (os.path.exists(self.path) and os.path.getsize(self.path)):
            return ""
        rows = "the rows that fitted" if self.full else "the rows"
        return f"{rows} are in {self.path!r}; the same command with --resume goes on"

    def __exit__(self, *_: object) -> None:
        """Close it; remove it once NAME has all rows, else say where they are."""
        if not self.sweep.left() and _state(self.name) != self.before:
            self.remove()
        self.close()
        if hint := self.hint():
            delivery.say(hint)

    def close(self) -> None:
        """Close it; without rows it goes away."""
        with contextlib.suppress(OSError):
            if os.fstat(self.number).st_size == 0:
                self.remove()
        os.close(self.number)

    def remove(self) -> None:
        """Remove it, unless another file was put in its place."""
        with contextlib.suppress(OSError):
            if paths.is_still_at(self.number, self.path):
                os.unlink(self.path)


def peek(name: str, sweep: Sweep) -> None:
    """Give a sweep the rows that --resume begins with. Raises: BadInput, BadOutput."""
    part, rows = part_of(name), list[Record]()
    if os.path.lexists(part):
        number = _opened(part, os.O_RDONLY)
        try:
            rows = parsed(part, _content(number))[0]
        finally:
            os.close(number)
    _taken(sweep, part if rows else name, rows or finished(name))


def _state(path: str) -> tuple[int, int] | None:
    """Return what is another one once a file was written anew; None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        there = os.stat(path)
        return there.st_ino, there.st_mtime_ns
    return None


def _locked(path: str) -> int:
    """Open a file to append to, for this process alone. Raises: BadOutput."""
    while True:
        number = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        if atomic_files.lock(number) is False:  # without locks two runs into one file are not noticed
            os.close(number)
            raise BadOutput(f"{path!r} is being written by another run; give another -o")
        if paths.is_still_at(number, path):
            return number
        os.close(number)  # another run has removed or replaced it in the moment before it was locked


def _opened(path: str, flags: int) -> int:
    """Open a file, nothing but a file and no link to one. Raises: BadOutput."""
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # a pipe would wait
        flags |= getattr(os, name, 0)
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise BadOutput(f"{path!r} is a link or no file, and rows go there until a run is over; {_REMEDY}")
    try:
        return os.open(path, flags, 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"{path!r} cannot be written: {reason}; give another place") from None


def _content(number: int) -> bytes:
    """Return all bytes of an open file."""
    with os.fdopen(os.dup(number), "rb") as file:
        file.seek(0)
        return file.read()


def finished(name: str, columns: Columns = lambda rows: ()) -> list[Record]:
    """Return the rows of NAME, which is there already.

    columns: from its rows, those that it must have. Raises: BadInput.
    """
    form = reports.form_of(name)
    if not os.path.exists(name) or not os.path.getsize(name):
        return []
    readable = {name: one for name, one in reports.REGISTRY.items() if one.reads and not one.binary}
    if form not in readable:
        *some, last = (one.suffixes[0] for one in readable.values())
        raise BadInput(f"--resume reads {', '.join(some)} and {last}, and {name!r} is there; remove it")
    read = reading.read(name)
    rows = reading.records_of(name, read)
    for column in columns(rows):
        if not records.COLUMNS[column].sentence and not read.all_have(column):
            raise BadInput(
                f"{name!r} has no column {column}, which is asked for now; leave it out, or give another -o"
            )
    return rows


def refuse_loss(name: str, wanted: Sequence[str]) -> None:
    """Raise BadInput if NAME has measured columns that a new one would not have."""
    measured = [column for column in reading.read(name).columns if column not in records.IDENTITY]
    lost = [column for column in measured if not records.COLUMNS[column].sentence and column not in wanted]
    if wanted and lost:
        raise BadInput(
            f"{name!r} has columns that would be lost, such as {lost[0]}; give the --columns that it was "
            "written with, or another -o"
        )


def line_of(row: Record) -> bytes:
    """Return a row as a line, its checksum last; NaN and Infinity are kept."""
    text = json.dumps(row.as_dict())
    return f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n'.encode()


def parsed(path: str, content: bytes) -> tuple[list[Record], int]:
    """Return the rows of a file's whole lines and their bytes; the rest is torn.

    Raises: BadInput if anything but rows stands there, a torn last one aside.
    """
    length = content.rfind(b"\n") + 1
    tail = content[length:].rstrip(b"\0")  # of a row, or behind rows a few bytes of one, or zeros
    if length < len(content) and not (tail.startswith(_FIRST) or (length and _FIRST.startswith(tail))):
        raise BadInput(f"{path!r} does not hold rows of this version of ropeaudit; {_REMEDY}")
    lines = content[:length].split(b"\n")[:-1]
    return [_row(path, number, line) for number, line in enumerate(lines, 1)], length


def _taken(sweep: Sweep, path: str, rows: Sequence[Record]) -> str:
    """Give a sweep rows; return a note. Raises: BadInput, also if two rows differ."""
    seen: dict[object, Record] = {}
    for row in rows:
        before = seen.setdefault(row.key(), row)
        if before is not row and repr(before) != repr(row):
            raise BadInput(
                f"{path!r} holds two different rows of {shown(row)}; remove them both, and give the same "
                "command with --resume"
            )
    return sweep.take(path, rows)


def _row(path: str, number: int, line: bytes) -> Record:
    """Return the row of a line, which is as ropeaudit wrote it. Raises: BadInput."""
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
    with contextlib.suppress(BadInput, UnknownName):  # whatever else is there may be replaced
        earlier = finished(name) if sweep.shard != (1, 1) else []
    others = sweep.others() if earlier else set()
    if row := next((row for row in earlier if row.key() in others), None):
        raise BadOutput(
            f"{name!r} holds rows of another shard, such as {shown(row)}; give each --shard an -o of its "
            "own, or remove it"
        )
