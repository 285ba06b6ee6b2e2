"""JSON Lines: an object a row, for streams; undefined is null, infinity "inf"."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ropeaudit.reports import Report, Row
from ropeaudit.reports.forms.json import loads, one_line, plain_row

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # it takes long to make


def render(report: Report) -> str:
    """Return one line of strict JSON per row."""
    return "".join(f"{one_line(_encode(plain_row(report, row)))}\n" for row in report.rows)


def decode(content: bytes) -> Iterator[Row]:
    """Yield the rows of a file. Raises: ValueError where it is damaged."""
    for line in content.decode("utf-8-sig").split("\n"):  # other line ends may stand in a name
        if line.strip():
            yield loads(line)
