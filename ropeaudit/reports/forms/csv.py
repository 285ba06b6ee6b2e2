"""CSV: a header, a row a case, full precision, no comments; see RFC 4180, with line feeds.

Text that a spreadsheet would take for a formula begins with an apostrophe, which `restored` takes off again.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import exact

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def render(report: Report) -> str:
    """Return the data columns of every row; what is undefined is nan."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\r\n")  # so that either of them in a cell is quoted
    if report.header:
        writer.writerow(report.columns)
    for row in report.rows:
        writer.writerow([_cell(row[name]) for name in report.columns])
    return lines.text.getvalue()


def restored(text: str) -> str:
    """Return the text that stands in a cell.

    >>> restored("'=f"), restored("''=f"), restored("it's"), restored("-1")
    ('=f', "'=f", "it's", '-1')
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _cell(value: Any) -> str:
    text = exact(value)
    return f"'{text}" if isinstance(value, str) and _FORMULA.match(text) else text


class _Lines:
    """Takes lines from a `csv.writer` and ends them with a line feed."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def write(self, line: str) -> None:
        self.text.write(line[:-2] + "\n")
