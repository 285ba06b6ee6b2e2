"""Reports read back: CSV, JSON, JSON Lines and Parquet that carry the columns of `records.COLUMNS`.

Files of an older schema are read, and what they lack is None; a newer one is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ropeaudit import records, reports
from ropeaudit.errors import BadInput
from ropeaudit.reports import Row


def read(path: str) -> list[Row]:
    """Return the rows of a report, each with the columns of `records.COLUMNS` that it has.

    What is undefined (nan, null, an empty cell) is nan in a column that always holds floats, None elsewhere.
    Raises: BadInput, MissingPackage.
    """
    form = reports.form_of(path)
    if form not in _READERS:
        raise BadInput(f"{path!r} is for readers; give the .csv, .json or .jsonl of the same report")
    reports.check_installed(form)
    try:
        content = Path(path).read_bytes()
        text = content if form == "parquet" else content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{path!r} cannot be read: {reason}") from None
    try:
        rows = [_typed(row) for row in _READERS[form](text)]
    except _DAMAGED as error:
        raise BadInput(f"{path!r} is not a report of ropeaudit: {error}") from None
    for row in rows:
        check(path, row)
    return rows


def check(path: str, row: Mapping[str, Any]) -> None:
    """Raise BadInput if a row is of a newer schema, or of none."""
    schema = row.get("schema")
    if "subject" not in row or "offset" not in row:
        raise BadInput(f"{path!r} has no subject and offset: it is not a report of `ropeaudit shift`")
    if schema is not None and schema > records.SCHEMA:
        raise BadInput(
            f"{path!r} has schema {schema} and this version knows {records.SCHEMA}; use a newer ropeaudit"
        )


def _csv(text: str) -> Iterator[Mapping[str, Any]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"line {reader.line_num} has another number of cells than the header")
        yield row


def _json(text: str) -> Iterable[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = json.loads(text)["records"]
    return found


def _lines(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _parquet(content: bytes) -> Iterable[Mapping[str, Any]]:
    from ropeaudit.reports import parquet

    return parquet.decode(content)


_READERS: Mapping[str, Callable[[Any], Iterable[Mapping[str, Any]]]] = {
    "csv": _csv,
    "json": _json,
    "jsonl": _lines,
    "parquet": _parquet,
}
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error)


def _typed(row: Mapping[str, Any]) -> Row:
    return {name: _value(name, value) for name, value in row.items() if name in records.COLUMNS}


def _value(name: str, value: Any) -> Any:
    """A value of a column; text that CSV made of it is turned back."""
    undefined = value is None or value in ("", "nan")
    if name in records.TEXT_COLUMNS:
        return None if undefined and name in records.OPTIONAL_COLUMNS else str(value)
    if name in records.WHOLE_COLUMNS:
        return None if undefined else int(value)
    if undefined:
        return None if name in records.OPTIONAL_COLUMNS else math.nan
    return float(value)
