"""Reports read back: CSV, JSON, JSON Lines and Parquet that carry the columns of `records.COLUMNS`.

A column that a file lacks is read in its metadata, or is what its absence implies. `-` is stdin.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ropeaudit import reports
from ropeaudit.audits import records
from ropeaudit.audits.records import APART, FOLLOWING, UNKNOWN, Record, case_of
from ropeaudit.errors import BadInput, parser_reason
from ropeaudit.reports import Row
from ropeaudit.runtime import digests, run_metadata
from ropeaudit.runtime.columns import Column

T = TypeVar("T")
_SETTINGS = [name for name in records.IDENTITY if name not in records.CORE]
_DAMAGED: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError)
_DAMAGED += (AttributeError, ArithmeticError, csv.Error)
_DAMAGED += (RuntimeError,)  # recursion, and what pyarrow has not implemented
_LARGEST = 2**128  # whole number; beyond any that is written


@functools.lru_cache(maxsize=1)
def _through(stdin: TextIO | None) -> bytes:
    """Return all that comes through a pipe, read once. Raises: BadInput."""
    content = stdin.buffer.read() if stdin is not None else b""
    if not content.strip():
        raise BadInput(
            "- is stdin, and nothing came through it; give a report, as `ropeaudit shift -f csv |`"
        )
    return content


def content_of(path: str) -> bytes:
    """Return the bytes of a file, of `-` those of stdin. Raises: OSError, BadInput."""
    return _through(sys.stdin) if path == "-" else Path(path).read_bytes()


def form_of(path: str) -> str:
    """Return a report's form. Raises: UnknownName, BadInput."""
    if path != "-":
        return reports.form_of(path)
    content = content_of(path)
    first, _, rest = content.strip().partition(b"\n")
    if not first.startswith(b"{"):
        return "parquet" if content.startswith(b"PAR1") else "csv"
    return "jsonl" if first.rstrip().endswith(b"}") and rest.lstrip()[:1] in (b"", b"{") else "json"


def read(path: str) -> list[Row]:
    """Return the rows of a report, each with the columns of `records.COLUMNS` that it has.

    What a row lacks is what the metadata of its file hold, or what the absence of a column implies.
    What is undefined (nan, null, an empty cell) is nan in a column that always holds floats, None elsewhere.
    Raises: BadInput, MissingPackage.
    """
    form = form_of(path)
    if not reports.REGISTRY[form].reads:
        raise BadInput(f"{path!r} is for readers; give the .csv, .json or .jsonl of the same report")
    reports.check_installed(form)
    decode = reports.functions(form).decode
    rows = _parsed(path, lambda content: [_typed(*one) for one in enumerate(decode(content), 1)])
    told_of = about(path)
    beside = reports.REGISTRY[form].metadata != "within"
    parts = [told_of.get(part, {}) for part in ("constants", "stages", "by_case")]
    if not all(isinstance(part, dict) for part in parts) or (
        beside and told_of.get(form) != digests.of_bytes(content_of(path))  # they are of another file
    ):
        told_of = {}
    constants = _settings(told_of.get("constants"))
    results: list[Row] = []
    for row in rows:
        check(path, row)
        whole = {**constants, **_settings(told_of.get("by_case", {}).get(row.get("case"))), **row}
        stages = told_of.get("stages", {}).get(f"{row['implementation']} {row.get('dtype')}")
        if isinstance(stages, dict) and "stages" not in whole:
            whole["stages"] = " ".join(f"{stage}={fmt}" for stage, fmt in stages.items())
        results.append(_completed(whole))
    return results


def _completed(row: Row) -> Row:
    """Return a row with the settings that absence implies, if its case agrees."""
    columns = {name: records.COLUMNS[name] for name in _SETTINGS}
    missing = {
        name: records.implied(name, row)
        for name, column in columns.items()
        if row.get(name) is None and not (name in row and column.optional)
    }
    whole = {**row, **missing}
    named = all(name in whole for name in records.IDENTITY if name not in APART)
    if whole.get("case") is None or not named or case_of(whole) == whole["case"]:
        return whole
    if records.implied("stages", whole):  # of a recipe the version is that of ropeaudit
        missing.pop("version", None)
    text = {name: columns[name].kind is str and not columns[name].optional for name in missing}
    return whole | {name: UNKNOWN if is_text else None for name, is_text in text.items()}


def _settings(values: Any) -> Row:
    """Return what metadata say of settings, if they are whole."""
    try:
        return _typed(0, values or {})
    except (ValueError, AttributeError):
        return {}


def told(rows: Sequence[Row]) -> list[str]:
    """Return the columns in which rows say more than their absence implies."""
    implied = ["stages"]
    for name in _SETTINGS:
        if all(row.get(name) in (None, UNKNOWN, records.implied(name, row)) for row in rows):
            implied.append(name)
    return [name for name in records.EVERY if name not in implied and any(name in row for row in rows)]


def about(path: str) -> dict[str, Any]:
    """Return the metadata in a report or beside it, if any."""
    form = form_of(path)
    try:
        if reports.REGISTRY[form].metadata == "within":
            whole = reports.functions(form).about(content_of(path))
        else:
            whole = json.loads(Path(reports.beside(path)).read_bytes())
    except _DAMAGED:
        return {}
    return whole if isinstance(whole, dict) else {}


def processor(path: str) -> str:
    """Return what computed a report; empty where nothing says."""
    return run_metadata.processor(about(path).get("environment"))


def records_of(path: str, rows: Iterable[Row]) -> list[Record]:
    """Return rows as records. Raises: BadInput."""
    core = [name for name in records.CORE if not records.COLUMNS[name].sentence]
    results = []
    for row in rows:
        if missing := [name for name in core if name not in row]:
            raise BadInput(f"{path!r} lacks the column {missing[0]!r}; write it again without --columns")
        needed = (name for name in core if not records.COLUMNS[name].optional and row[name] is None)
        if unknown := next(needed, None):
            raise BadInput(f"{path!r} has a row without {unknown}; measure it again")
        results.append(record(row))
    return results


def record(row: Row) -> Record:
    """Return a row as a record; what a file lacks is nan, 0 or empty."""
    unknown = {str: "", int: 0, float: math.nan}
    results: dict[str, Any] = {name: row.get(name) for name in records.COLUMNS}
    for name, column in records.COLUMNS.items():
        if results[name] is None and not column.optional:
            results[name] = unknown[column.kind]
    if results["softmax"] is not None:  # attention was measured: what is undefined is a number
        results |= {name: math.nan for name in records.COLUMNS.having("attention") if results[name] is None}
    results["within_tolerance"] = row.get("within_tolerance", UNKNOWN)  # None says that it is undecided
    return Record(**results)


def whole(path: str) -> dict[str, Any]:
    """Return a .json report whole, infinity as a number. Raises: BadInput."""

    def numbered(row: dict[str, Any]) -> dict[str, Any]:
        return {name: float(value) if value in ("inf", "-inf") else value for name, value in row.items()}

    def read_whole(content: bytes) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(content, object_hook=numbered)
        if not isinstance(results["records"], list):
            raise TypeError("its records are no list")
        return results

    return _parsed(path, read_whole)


def _parsed(path: str, parse: Callable[[bytes], T]) -> T:
    """Read a file and parse it. Raises: BadInput."""
    try:
        content = content_of(path)
    except OSError as error:
        raise BadInput(f"{path!r} cannot be read: {error.strerror or error}") from None
    try:
        return parse(content)
    except _DAMAGED as error:
        hint = "; give -f csv to the command before the pipe" if path == "-" else ""
        raise BadInput(f"{path!r} is not a report of ropeaudit: {parser_reason(error)}{hint}") from None


def check(path: str, row: Mapping[str, Any]) -> None:
    """Raise BadInput if a row is of no report of `shift`, or of another schema."""
    if "implementation" not in row or "offset" not in row:
        raise BadInput(f"{path!r} has no implementation and offset: it is not a report of `ropeaudit shift`")
    if (schema := row.get("schema")) not in (None, records.SCHEMA):
        remedy = "use a newer ropeaudit" if schema > records.SCHEMA else "measure again"
        raise BadInput(f"{path!r} is of schema {schema} and this version knows {records.SCHEMA}; {remedy}")
    if row["offset"] is None:
        raise BadInput(f"{path!r} has a row without an offset")


def _typed(number: int, row: Mapping[str, Any]) -> Row:
    """Return the known columns of row `number`, from 1. Raises: ValueError."""
    results = {}
    for name, value in row.items():
        if name in records.COLUMNS:
            try:
                results[name] = _value(records.COLUMNS[name], value)
            except (ValueError, KeyError, TypeError, ArithmeticError):
                kind = {int: "whole number", bool: "True or False"}.get(records.COLUMNS[name].kind, "number")
                raise ValueError(f"row {number} has {name} {repr(value)[:40]}, which is no {kind}") from None
    return results


def _value(column: Column, value: Any) -> Any:
    """Return a column's typed value. Raises: ValueError and others of a parser."""
    undefined = value is None or (isinstance(value, str) and value.lower() in ("", "nan")) or value != value
    if column.kind is str:
        implied = column.implied is not None or column.name in FOLLOWING
        return None if undefined and (column.optional or implied) else str(value)
    if undefined:
        said = isinstance(value, str) and value and column.kind is float  # nan, where empty would say nothing
        return math.nan if said else column.undefined
    if column.kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if column.kind is float:
        return float(value)
    number = Decimal(str(value))  # 7.0 is one too
    if abs(number) > _LARGEST or number != int(number):
        raise ValueError("a fraction, or out of range")
    return int(number)
