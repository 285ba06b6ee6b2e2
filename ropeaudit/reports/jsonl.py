"""JSON Lines: an object a row, for streams and for `jq`; what is undefined is null."""

from __future__ import annotations

import json

from ropeaudit.reports import Report
from ropeaudit.reports.json import plain_row


def render(report: Report) -> str:
    """Return one line of strict JSON per row."""
    lines = (plain_row(report, row) for row in report.rows)
    return "".join(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n" for line in lines)
