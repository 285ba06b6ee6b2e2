"""The rows of a run that is not over, in NAME.part beside the file NAME that it is to write.

Each row is one line of JSON (with NaN and Infinity: nothing is lost), appended by one write. The file goes
away when NAME is complete. A line torn by a dying machine or a full disk is dropped when the file is read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from pathlib import Path

from ropeaudit import beside, reports
from ropeaudit.errors import BadInput, BadOutput
from ropeaudit.records import Record
from ropeaudit.reports import reading

_SYNC_SECONDS = 5.0  # what a power failure can lose; a killed run loses no line that was written


class SweepFile:
    """NAME.part, open and locked by this run alone. rows: those that it held."""

    def __init__(
        self, name: str, resume: bool, check: Callable[[str, list[Record]], None] = lambda path, rows: None
    ) -> None:
        """Open it; with `resume` it holds the rows of NAME.part, or else those of NAME.

        check: takes a path and its rows, and raises if they are not wanted; then nothing is changed.
        Raises: BadOutput if another run writes it, or if it holds rows and `resume` is not given; BadInput if
        what is there are no rows.
        """
        self.name, self.path = name, name + ".part"
        self.number, self.synced = _open(self.path), time.monotonic()
        try:
            self.rows, self.length = self._read()
            if self.rows and not resume:
                raise BadOutput(
                    f"{self.path!r} holds {len(self.rows)} rows of a run that was broken off; "
                    "go on with --resume, or remove it"
                )
            check(self.path, self.rows)
            if resume and not self.rows:
                check(name, finished := _finished(name))
                self._adopt(finished)
        except BaseException:
            self.close()
            raise

    def append(self, row: Record) -> None:
        """Write a row. Raises: BadOutput where it does not fit; what was written before stays whole."""
        line = _line(row)
        try:
            written = os.write(self.number, line)
            if written < len(line):  # the disk is full: the next byte would say so
                os.write(self.number, line[written:])
                written = os.lseek(self.number, 0, os.SEEK_END) - self.length
            self.length += written
            if time.monotonic() - self.synced > _SYNC_SECONDS:
                os.fsync(self.number)
                self.synced = time.monotonic()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.number, self.length)
            raise BadOutput(
                f"{self.path!r} cannot be written: {error.strerror}; the rows in it are whole: make room, "
                "then give the same command with --resume"
            ) from None

    def close(self) -> None:
        """Close it; without rows it goes away."""
        if self.number < 0:
            return
        with contextlib.suppress(OSError):
            if os.fstat(self.number).st_size == 0:
                os.unlink(self.path)
        os.close(self.number)
        self.number = -1

    def told_by(self, columns: Sequence[str], rows: Sequence[Record]) -> bool:
        """Tell whether NAME, with these columns of the rows, can be read back in the place of NAME.part."""
        form = reports.form_of(self.name)
        if columns or form not in ("csv", "json", "jsonl"):
            return False
        return form == "csv" or not any(
            value in (math.inf, -math.inf) for row in rows for value in astuple(row)
        )

    def remove(self) -> None:
        """Remove it: its rows stand in NAME."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _read(self) -> tuple[list[Record], int]:
        """Return the whole rows and their bytes; what follows them is cut off."""
        rows, length = _rows(self.path)
        if length < os.fstat(self.number).st_size:
            os.ftruncate(self.number, length)
        return rows, length

    def _adopt(self, rows: Sequence[Record]) -> None:
        """Begin with the rows of NAME: all of them or, if this run dies here, none."""
        if not rows:
            return
        with beside.opened(Path(self.path)) as file:
            try:
                file.write(b"".join(map(_line, rows)))
                file.flush()
                os.fsync(file.fileno())
                beside.put(file, Path(self.path))
            except OSError as error:
                os.unlink(file.name)
                raise BadOutput(f"{self.path!r} cannot be written: {error.strerror}") from None
        os.close(self.number)
        self.number = _open(self.path)
        self.rows, self.length = self._read()


def peek(name: str) -> list[Record]:
    """Return the rows that a run with --resume would begin with. Raises: BadInput."""
    part = name + ".part"
    return (_rows(part)[0] if os.path.exists(part) else []) or _finished(name)


def _rows(path: str) -> tuple[list[Record], int]:
    """Return the whole lines of a NAME.part as rows, and their bytes. Raises: BadInput."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path!r} cannot be read: {error.strerror}") from None
    length = content.rfind(b"\n") + 1
    try:
        return [Record(**json.loads(line)) for line in content[:length].splitlines()], length
    except (ValueError, TypeError):
        raise BadInput(
            f"{path!r} does not hold rows of this version of ropeaudit; remove it, or give another -o"
        ) from None


def _open(path: str) -> int:
    """Open a file to append to, for this process alone. Raises: BadOutput."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"{path!r} cannot be written: {reason}; give another place") from None
    if beside.locked(number) is False:  # where there are no locks two runs into one file are not noticed
        os.close(number)
        raise BadOutput(f"{path!r} is being written by another run; give another -o")
    return number


def _finished(name: str) -> list[Record]:
    """Return the rows of NAME, which is there already; a torn last line is dropped. Raises: BadInput."""
    form = reports.form_of(name)
    if not os.path.exists(name):
        return []
    if form not in ("csv", "json", "jsonl"):
        raise BadInput(f"--resume reads .csv, .json and .jsonl, and {name!r} is there; remove it")
    if form == "json":
        return reading.records_of(name, reading.read(name))
    try:
        text = Path(name).read_bytes().rpartition(b"\n")
        rows = reading.parse(name, form, (text[0] + text[1]).decode()) if text[1] else []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return reading.records_of(name, rows)


def _line(row: Record) -> bytes:
    return (json.dumps(row.as_dict()) + "\n").encode()


def shown(row: Record) -> str:
    """Name a row for a message."""
    asked = f"{row.subject} {row.dtype} at offset {row.offset}"
    return f"{asked} ({row.seq_len} positions, schema {row.schema}, version {row.version})"


def refuse_foreign(path: str, rows: Sequence[Record]) -> None:
    """Raise BadInput if there are rows that the sweep has no cells for."""
    if rows:
        raise BadInput(
            f"{path!r} holds {len(rows)} rows of another sweep, such as {shown(rows[0])}; ask for them too, "
            "or give another -o"
        )


def in_order(rows: Iterable[Record]) -> list[Record]:
    """Return rows, each cell once, as the file tells it that says most. Raises: BadInput if two rows differ.

    What is not finite is null in JSON and is no difference.
    """
    found: dict[tuple[object, ...], Record] = {}
    for row in rows:
        before = found.setdefault(row.identity(), row)
        if _finite(before) != _finite(row):
            raise BadInput(f"two different rows of the same cell: {shown(row)}; leave out one of the files")
        if math.inf in map(_size, astuple(row)):
            found[row.identity()] = row
    return list(found.values())


def _size(value: object) -> object:
    return abs(value) if isinstance(value, float) else value


def _finite(row: Record) -> list[object]:
    """The values of a row, as far as every kind of file can hold them."""
    return [
        None if isinstance(value, float) and not math.isfinite(value) else value for value in astuple(row)
    ]
