"""Reports read back: CSV, JSON and JSON Lines that carry the columns of `records.COLUMNS`.

Files of an older schema are read, and what they lack is None; a newer one is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ropeaudit import records, reports
from ropeaudit.errors import BadInput
from ropeaudit.records import Record
from ropeaudit.reports import Row


def read(path: str) -> list[Row]:
    """Return the rows of a report, each with the columns of `records.COLUMNS` that it has.

    What is undefined (nan, null, an empty cell) is nan in a column that always holds floats, None elsewhere.
    Raises: BadInput.
    """
    form = reports.form_of(path)
    if form not in ("csv", "json", "jsonl"):
        raise BadInput(f"{path!r} is for readers; give the .csv, .json or .jsonl of the same report")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{path!r} cannot be read: {reason}") from None
    return parse(path, form, text)


def whole(path: str, rows: Iterable[Row]) -> list[Record]:
    """Return rows as records. What JSON cannot hold (inf) is undefined in them. Raises: BadInput."""
    return [_record(path, row) for row in rows]


def _record(path: str, row: Row) -> Record:
    if missing := [name for name in records.COLUMNS if name not in row]:
        raise BadInput(f"{path!r} lacks the column {missing[0]!r}; write it again without --columns")
    found = dict(row)
    if found["anchor"] is not None:  # attention was measured: what is undefined is a number
        found |= {name: math.nan for name in records.ATTENTION if found[name] is None}
    return Record(**found)


def parse(path: str, form: str, text: str) -> list[Row]:
    """Return the rows that `text`, which stands in `path`, holds; see `read`. Raises: BadInput."""
    try:
        rows = [_typed(row) for row in {"csv": _csv, "json": _json, "jsonl": _lines}[form](text)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error) as error:
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
