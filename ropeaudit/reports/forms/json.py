"""JSON: one object with the metadata and the records; what is undefined is null, infinity the text "inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ropeaudit.reports import Report
from ropeaudit.runtime.rows import BLOCK, Rows

_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def render(report: Report) -> str:
    """Return one indented JSON object; strict JSON, without NaN and Infinity."""
    whole: dict[str, Any] = dict(report.metadata)
    if report.headline:
        whole["headline"] = report.headline
    if report.answers:
        whole["answers"] = [asdict(one) for one in report.answers]
    if report.notes:
        whole["notes"] = list(report.notes)
    whole["records"] = [plain_row(report, row) for row in report.rows]
    for name, other in report.further.items():
        whole[name] = [plain_row(other, row) for row in other.rows]
    return one_line(json.dumps(whole, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"


def decode(content: bytes) -> tuple[Iterator[Rows], dict[str, Any]]:
    """Return the rows of a file, and its metadata.

    Raises: ValueError, KeyError, TypeError where it is damaged.
    """
    text = content.decode(json.detect_encoding(content), "surrogatepass")
    del content  # it may be large
    whole = loads(text)
    rows = list(whole.pop("records"))
    return (Rows.of(rows[at : at + BLOCK]) for at in range(0, len(rows), BLOCK)), whole


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises: ValueError where it has a key twice."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return result


loads = json.JSONDecoder(object_pairs_hook=_once).decode


def one_line(text: str) -> str:
    """Return JSON with what other readers take for line ends escaped."""
    return text.translate(_LINE_ENDS)


def plain_row(report: Report, row: Any) -> dict[str, Any]:
    """Return a row's columns as strict JSON: nan as None, infinity as text."""
    return {name: _plain(row[name]) for name in report.columns}


def _plain(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)
