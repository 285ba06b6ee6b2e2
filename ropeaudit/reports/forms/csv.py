"""CSV: a header, a row a case, full precision, no comments; see RFC 4180, with line feeds.

A cell is empty where its column does not apply, and nan where a number is none. An apostrophe guards text
that a spreadsheet takes for a formula, and lines that GitHub takes for a command (::); `restored` removes it.
Sentences are in JSON.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import exact
from ropeaudit.runtime.rows import BLOCK, Rows

_FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠\t\r]")  # full-width signs too
_COMMAND = r"'*[^\S\r\n]*::"
_BEFORE_COMMAND = re.compile(rf"(?:\A|(?<=[\r\n]))(?={_COMMAND})")
_GUARDED_COMMAND = re.compile(rf"(?:\A|(?<=[\r\n]))'(?={_COMMAND})")


def render(report: Report) -> str:
    """Return the data columns of every row, but those that hold sentences."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\r\n")  # so that either of them in a cell is quoted
    names = written(report)
    if report.header:
        writer.writerow(names)
    for row in report.rows:
        writer.writerow([cell(row[name]) for name in names])
    return lines.getvalue()


def written(report: Report) -> list[str]:
    """Return the columns that a file has: those of the report without sentences."""
    declared = {name: report.declared.get(name) for name in report.columns}
    return [name for name, column in declared.items() if column is None or not column.sentence]


def decode(content: bytes) -> tuple[Iterator[Rows], dict[str, Any]]:
    """Return the rows of a file, and no metadata. Raises: ValueError, csv.Error: it is damaged."""
    return _blocks(content), {}


def _blocks(content: bytes) -> Iterator[Rows]:
    text = content.decode("utf-8-sig")  # spreadsheets add a mark
    guarded = "'" in text
    reader = csv.reader(io.StringIO(text), strict=True)
    names = next(reader, [])
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ValueError(f"its first line has {', '.join(map(repr, dict.fromkeys(twice)))} twice")
    if "implementation" not in names or "offset" not in names:
        for mark in ";\t":
            if "offset" in " ".join(names).split(mark):
                raise ValueError(f"its cells are parted by {mark!r}; save it with commas and decimal points")
        raise ValueError("its first line has no implementation and offset" if names else "it is empty")
    lines = (map(restored, cells) if guarded else cells for cells in _lines(reader, len(names)))
    while block := list(islice(lines, BLOCK)):
        yield Rows(dict(zip(names, zip(*block, strict=True), strict=True)), len(block), ())


def _lines(reader: Any, width: int) -> Iterator[list[str]]:
    """Yield the cells of each line that has some. Raises: ValueError where they are more or fewer."""
    for cells in reader:
        if len(cells) != width and cells:
            raise ValueError(f"line {reader.line_num} has another number of cells than the header")
        if cells and (cells[0] or any(cells)):  # spreadsheets write lines of empty cells
            yield cells


def restored(text: str) -> str:
    r"""Return the text that stands in a cell.

    >>> restored("'=f"), restored("''=f"), restored("it's"), restored("-1"), restored("a\n'::error::")
    ('=f', "'=f", "it's", '-1', 'a\n::error::')
    """
    text = _GUARDED_COMMAND.sub("", text)
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def cell(value: Any) -> str:
    """Return a value as it stands between commas, before it is quoted."""
    text = exact(value)
    if not isinstance(value, str):
        return text
    return _BEFORE_COMMAND.sub("'", f"'{text}" if _FORMULA.match(text) else text)


class _Lines(io.StringIO):
    """Takes lines from a `csv.writer` and ends them with a line feed."""

    def write(self, line: str) -> int:
        return super().write(line[:-2] + "\n")
