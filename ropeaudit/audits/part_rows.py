"""The lines of a NAME.part as rows: each as it was written, with values of the right kind, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.records import Record
from ropeaudit.errors import BadInput

_LARGEST = 2**64  # whole number; seeds are below it
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)'  # of a column, in JSON


def line_of(row: Record) -> bytes:
    """Return a row as a line; NaN and Infinity are kept."""
    return (json.dumps(row.as_dict()) + "\n").encode()


def parsed(path: str, content: bytes) -> tuple[list[Record], int]:
    """Return the rows of the whole lines of a file and the bytes of these lines; what is behind is torn.

    Raises: BadInput if anything but rows stands there, a torn last one aside, or two rows of a cell differ.
    """
    length = content.rfind(b"\n") + 1
    if not torn(content[length:], bool(length)):
        raise BadInput(f"{path!r} does not hold rows of this version of ropeaudit; {_REMEDY}")
    lines = content[:length].split(b"\n")[:-1]
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1)]
    refuse_contradictions(path, rows)
    return rows, length


def torn(tail: bytes, behind_rows: bool = False) -> bool:
    """Return whether the end of a file is the beginning of a row, as a dying machine leaves it.

    behind_rows: rows stand before it, so that a few bytes of a row, or zero bytes, are enough.
    """
    text = tail.rstrip(b"\0").decode("utf-8", "replace")
    if not behind_rows and not text.startswith(_FIRST):
        return not tail
    for number, name in enumerate(records.COLUMNS):
        key = f'{", " if number else "{"}"{name}": '
        if len(text) <= len(key):
            return key.startswith(text)
        if not text.startswith(key):
            return False
        text = text[len(key) :]
        value = re.match(_VALUE, text)
        if value is None or value.end() == len(text):  # text without its end, or a word that may go on
            return value is not None or re.fullmatch(r'"(?:[^"\\]|\\.)*\\?', text) is not None
        text = text[value.end() :]
    return text == "}"


def refuse_contradictions(path: str, rows: Iterable[Record]) -> None:
    """Raise BadInput if two rows of one cell differ: which of them is right, nobody knows."""
    seen: dict[object, Record] = {}
    for row in rows:
        before = seen.setdefault(row.key(), row)
        if before is not row and repr(before) != repr(row):
            raise BadInput(
                f"{path!r} holds two different rows of {shown(row)}; remove them both, and give the same "
                "command with --resume"
            )


def shown(row: Record) -> str:
    """Name a row for a message."""
    requested = f"{row.implementation} {row.dtype} at offset {row.offset}"
    made = f"version {row.version}, on {row.device}"
    return f"{requested} ({row.seq_len} positions, schema {row.schema}, {made})"


_FIRST = f'{{"{next(iter(records.COLUMNS))}": '
_REMEDY = "move it away, or give another -o"


def _row(path: str, number: int, line: bytes) -> Record:
    try:
        results = json.loads(line)
        if not isinstance(results, dict) or list(results) != list(records.COLUMNS):
            raise ValueError
    except (ValueError, RecursionError):
        where = f"{path!r} does not hold rows of this version of ropeaudit"
        raise BadInput(f"{where} (line {number}); {_REMEDY}") from None
    for name, value in results.items():
        if wrong := _wrong(name, value):
            seen = repr(value)[:40]
            raise BadInput(f"{path!r} line {number}: {name} {seen} is {wrong}; remove the line and --resume")
    row = Record(**results)
    if line_of(row) != line + b"\n":
        raise BadInput(f"{path!r} line {number} is not as ropeaudit wrote it; remove the line and --resume")
    return row


def _wrong(name: str, value: Any) -> str:
    """Return what is wrong with a value of a column; nothing where nothing is."""
    column = records.COLUMNS[name]
    if value is None:
        return "" if column.optional else "no value"
    if column.kind is str:
        if not isinstance(value, str):
            return "no text"
        return (
            f"none of {', '.join(column.choices)}" if column.choices and value not in column.choices else ""
        )
    if column.kind is int and type(value) is not int:
        return "no whole number"
    if column.kind is float and type(value) is not float:
        return "no number"
    if value < 0 and column.nonnegative:
        return "below 0"
    return "out of range" if type(value) is int and abs(value) > _LARGEST else ""
