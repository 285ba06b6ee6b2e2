"""JSON Lines: an object a row, for streams; undefined is null, infinity "inf"."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ropeaudit.reports import Report
from ropeaudit.reports.forms.json import loads, one_line, plain_row
from ropeaudit.runtime.rows import BLOCK, Row, Rows

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # it takes long to make


def render(report: Report) -> str:
    """Return one line of strict JSON per row."""
    return "".join(f"{one_line(_encode(plain_row(report, row)))}\n" for row in report.rows)


def decode(content: bytes) -> tuple[Iterator[Rows], dict[str, Any]]:
    """Return the rows of a file, and no metadata. Raises: ValueError where it is damaged."""
    return _blocks(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="\n")), {}


def _blocks(lines: Iterable[str]) -> Iterator[Rows]:
    """Yield the rows of lines, many at a time; each by itself where that fails, to say which."""
    source = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while some := list(islice(source, BLOCK)):
        try:
            rows = loads(f"[{','.join(line for _, line in some)}]")
        except ValueError:
            rows = []
        yield Rows.of(rows if len(rows) == len(some) else [_row(*one) for one in some])


def _row(number: int, line: str) -> Row:
    """Return the row of a line. Raises: ValueError where it is damaged."""
    try:
        row: Row = loads(line.rstrip("\n"))
    except ValueError as error:
        raise ValueError(f"in line {number}: {error}") from None
    return row
