"""CSV: a header, a row a case, full precision, no comments; see RFC 4180, with line feeds."""

from __future__ import annotations

import csv
import io

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import exact


def render(report: Report) -> str:
    """Return the data columns of every row; what is undefined is nan."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if report.header:
        writer.writerow(report.columns)
    for row in report.rows:
        writer.writerow([exact(row[name]) for name in report.columns])
    return text.getvalue()
