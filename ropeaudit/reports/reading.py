"""Reports of `shift` that are read from files: CSV, JSON, JSON Lines and Parquet; `-` is stdin.

A column that a file lacks comes from its metadata, else from what the absence implies.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar, cast

from ropeaudit import reports
from ropeaudit.audits import records
from ropeaudit.audits.records import IMPLIED_VALUES, NOT_IN_CASE, UNKNOWN, ReadRecord, Record
from ropeaudit.errors import BadInput, parser_reason
from ropeaudit.reports import Row
from ropeaudit.runtime import digests, run_metadata
from ropeaudit.runtime.columns import Column
from ropeaudit.runtime.rows import ABSENT, Rows

T = TypeVar("T")
_SETTINGS = [name for name in records.IDENTITY if name not in records.CORE]
_DAMAGED: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError)
_DAMAGED += (AttributeError, ArithmeticError, csv.Error)
_DAMAGED += (RuntimeError,)  # recursion, and gaps of pyarrow
_VALUE_ERRORS = ValueError, KeyError, TypeError, ArithmeticError
_LARGEST = 2**128  # whole number; no file has a larger one


@functools.lru_cache(maxsize=1)
def _read_stdin(stdin: TextIO | None) -> bytes:
    """Read stdin, once. Raises: BadInput if it is empty."""
    content = stdin.buffer.read() if stdin is not None else b""
    if not content.strip():
        raise BadInput(
            "- is stdin, and nothing came through it; give a report, as `ropeaudit shift -f csv |`"
        )
    return content


def content_of(path: str) -> bytes:
    """Return the bytes of a file, or of stdin for `-`. Raises: BadInput."""
    try:
        return _read_stdin(sys.stdin) if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path!r} cannot be read: {error.strerror or error}") from None


def form_of(path: str) -> str:
    """Return the form of a report by suffix, on stdin by content. Raises: UnknownName, BadInput."""
    if path != "-":
        return reports.form_of(path)
    content = content_of(path)
    first, _, rest = content.strip().partition(b"\n")
    if not first.startswith(b"{"):
        return "parquet" if content.startswith(b"PAR1") else "csv"
    return "jsonl" if first.rstrip().endswith(b"}") and rest.lstrip()[:1] in (b"", b"{") else "json"


class Source(NamedTuple):
    """A report that was read: rows, and the metadata in it or in the file beside it."""

    path: str
    rows: Rows
    about: Mapping[str, Any]

    @property
    def processor(self) -> str:
        """The processor that computed it; empty if unknown."""
        return run_metadata.processor(self.about.get("environment"))


def load(path: str) -> Source:
    """Read a report: rows with the columns of `records.COLUMNS`, and metadata.

    Columns that rows lack come from the metadata, or from what their absence implies. Undefined values (nan,
    null, an empty cell) are nan in columns of floats that are not optional, else None.
    Raises: BadInput, MissingPackage.
    """
    form = form_of(path)
    if not reports.REGISTRY[form].reads:
        raise BadInput(f"{path!r} is for readers; give the .csv, .json or .jsonl of the same report")
    reports.check_installed(form)
    decode = reports.functions(form).decode

    def columns() -> tuple[Columns, Any]:
        rows, about = decode(content_of(path))  # no other reference: it may be large
        return _typed_columns(rows), about

    held, metadata = _parse_file(path, columns)
    within = reports.REGISTRY[form].metadata == "within"
    metadata = metadata if within else _metadata_beside(path)
    about = metadata if isinstance(metadata, dict) else {}
    _check_columns(path, held)
    parts = [about.get(part, {}) for part in ("constants", "stages", "by_case")]
    complete = bool(about) and all(isinstance(part, dict) for part in parts)
    if complete and (
        within or about.get(form) == digests.of_bytes(content_of(path))
    ):  # else they are of another file
        _fill_from_metadata(held, *parts)
    _add_implied_settings(held)
    return Source(path, Rows(held, len(held["offset"]), held.gaps), about)


def read(path: str) -> Rows:
    """Return the rows of a report, as `load` reads them. Raises: BadInput, MissingPackage."""
    return load(path).rows


class Columns(dict[str, list[Any]]):
    """The columns of a file that is being read. gaps: those that some row lacks."""

    def __init__(self) -> None:
        self.gaps = set[str]()

    def fill(self, name: str, others: list[Any]) -> None:
        """Fill the gaps of a column with other values."""
        values = self.get(name)
        if values is None or name in self.gaps:
            pairs = zip(values, others, strict=True) if values else ()
            self[name] = [other if value is ABSENT else value for value, other in pairs] or others
            (self.gaps.add if ABSENT in self[name] else self.gaps.discard)(name)


def _fill_from_metadata(held: Columns, constants: Row, stages: Row, by_case: Row) -> None:
    count = len(held["offset"])
    if by_case and "case" in held:
        cases = {case: _settings(values) for case, values in by_case.items()}
        for name in dict.fromkeys(chain.from_iterable(cases.values())):
            held.fill(name, [cases.get(case, {}).get(name, ABSENT) for case in held["case"]])
    for name, value in _settings(constants).items():
        held.fill(name, [value] * count)
    if stages:
        pairs = list(zip(held["implementation"], held.get("dtype", [None] * count), strict=True))
        texts = {pair: stages.get("{} {}".format(*pair)) for pair in set(pairs)}
        words = {
            pair: " ".join(f"{stage}={fmt}" for stage, fmt in formats.items())
            for pair, formats in texts.items()
            if isinstance(formats, dict)
        }
        held.fill("stages", [words.get(pair, ABSENT) for pair in pairs])


def _add_implied_settings(held: Columns) -> None:
    """Add the settings that absent columns imply, if the digest of the case confirms them."""
    own = [name for name in records.OWN if name in held]
    keys = list(zip(*(held[name] for name in own), strict=True))
    settings = {key: _implied_settings(dict(zip(own, key, strict=True))) for key in set(keys)}
    cases = held.get("case", [None] * len(keys))
    rows = []
    for key, offset, case in zip(keys, held["offset"], cases, strict=True):
        agreed, doubtful, case_at = settings[key]
        agrees = case_at is None or case is None or case is ABSENT or case_at(offset) == case
        rows.append(agreed if agrees else doubtful)
    unique = list({id(row): row for row in rows}.values())
    for name in dict.fromkeys(chain.from_iterable(unique)):
        values = {repr(row.get(name, ABSENT)) for row in unique}
        if len(values) == 1:
            held[name] = [unique[0][name]] * len(rows)
        else:
            before = held.get(name, rows)  # a complete setting has no value here
            held[name] = [row.get(name, value) for row, value in zip(rows, before, strict=True)]
        held.gaps.discard(name)


def _implied_settings(setting: Row) -> tuple[Row, Row, Callable[[Any], str] | None]:
    """Return implied settings, the same as unknown, and the function of the case digest."""
    present = {name: value for name, value in setting.items() if value is not ABSENT}
    missing = {
        name: records.implied_value(name, present)
        for name in _SETTINGS
        if present.get(name) is None and not (name in present and records.COLUMNS[name].optional)
    }
    setting = {**present, **missing}
    if not all(name in setting for name in records.IDENTITY if name not in (*NOT_IN_CASE, "offset")):
        return missing, missing, None
    implied = dict(missing)
    if records.implied_value("stages", setting):  # the version of a recipe is that of ropeaudit
        missing.pop("version", None)
    columns = {name: records.COLUMNS[name] for name in missing}
    is_text = {name: column.kind is str and not column.optional for name, column in columns.items()}
    unknown = {name: UNKNOWN if text else None for name, text in is_text.items()}
    return implied, {**implied, **unknown}, records.digest_at_offset(setting)


def _settings(values: Any) -> Row:
    """Return the settings in metadata; none if damaged."""
    try:
        return {name: typed[0] for name, typed in _typed_columns([Rows.of([values or {}])]).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def telling_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns whose values are not what their absence would imply."""
    held, implied = Rows.of(rows), ["stages"]
    settings = held.distinct(records.OWN)
    for name in _SETTINGS:
        if all(row[name] in (None, UNKNOWN, records.implied_value(name, row)) for row in settings):
            implied.append(name)
    return [name for name in records.ALL_COLUMNS if name not in implied and name in held.columns]


def _metadata_beside(path: str) -> Any:
    try:
        return json.loads(Path(reports.beside(path)).read_bytes())
    except _DAMAGED:
        return {}


def check_core(rows: Rows, origins: Sequence[str]) -> None:
    """Raise BadInput unless rows have the columns of the core. origins: the file of each row."""
    for name in (name for name in records.CORE if not records.COLUMNS[name].sentence):
        values = rows.column(name, ABSENT)
        if ABSENT in values:
            path = origins[values.index(ABSENT)]
            raise BadInput(f"{path!r} lacks the column {name!r}; write it again without --columns")
        if not records.COLUMNS[name].optional and None in values:
            raise BadInput(f"{origins[values.index(None)]!r} has a row without {name}; measure it again")


def records_of(path: str, rows: Rows) -> list[Record]:
    """Return rows as records. Raises: BadInput."""
    check_core(rows, [path] * len(rows))
    return [record(row) for row in rows]


def record_columns(rows: Rows) -> dict[str, Sequence[Any]]:
    """Return rows as the columns of records; what a file lacks is nan, 0 or empty."""
    unknown = {str: "", int: 0, float: math.nan}
    results: dict[str, Sequence[Any]] = {}
    for name, column in records.COLUMNS.items():
        values, empty = rows.column(name), None if column.optional else unknown[column.kind]
        if empty is not None and None in values:
            values = [empty if value is None else value for value in values]
        results[name] = values
    softmax = results["softmax"]  # with it attention was measured: what is undefined is a number
    for name in records.COLUMNS.having("attention") if any(softmax) else ():
        pairs = zip(results[name], softmax, strict=True)
        results[name] = [math.nan if value is None and way is not None else value for value, way in pairs]
    within = rows.column("within_tolerance", UNKNOWN)  # None says that it is undecided
    return {**results, "within_tolerance": within}


def as_records(rows: Rows) -> list[Record]:
    """Return rows as records in the form of tuples, which are created faster."""
    tuples = map(
        functools.partial(tuple.__new__, ReadRecord), zip(*record_columns(rows).values(), strict=True)
    )
    return cast("list[Record]", list(tuples))


def record(row: Row) -> Record:
    """Return a row as a record; what a file lacks is nan, 0 or empty."""
    return Record(**{name: values[0] for name, values in record_columns(Rows.of([row])).items()})


def whole(path: str) -> dict[str, Any]:
    """Return the object of a .json report, infinity as a number. Raises: BadInput."""

    def numbered(row: dict[str, Any]) -> dict[str, Any]:
        return {name: float(value) if value in ("inf", "-inf") else value for name, value in row.items()}

    def read_whole() -> dict[str, Any]:
        results: dict[str, Any] = json.loads(content_of(path), object_hook=numbered)
        if not isinstance(results["records"], list):
            raise TypeError("its records are no list")
        return results

    return _parse_file(path, read_whole)


def _parse_file(path: str, parse: Callable[[], T]) -> T:
    """Call a parser of a file. Raises: BadInput for any error."""
    try:
        return parse()
    except BadInput:
        raise
    except _DAMAGED as error:
        hint = "; give -f csv to the command before the pipe" if path == "-" else ""
        raise BadInput(f"{path!r} is not a report of ropeaudit: {parser_reason(error)}{hint}") from None


def _check_columns(path: str, held: Columns) -> None:
    for name in ("implementation", "offset"):
        if ABSENT in held.setdefault(name, []) or len(held[name]) < max(map(len, held.values())):
            raise BadInput(
                f"{path!r} has no implementation and offset: it is not a report of `ropeaudit shift`"
            )
    for schema in set(held.get("schema", ())) - {None, ABSENT, records.SCHEMA}:
        remedy = "use a newer ropeaudit" if schema > records.SCHEMA else "measure again"
        raise BadInput(f"{path!r} is of schema {schema} and this version knows {records.SCHEMA}; {remedy}")
    if None in held["offset"]:
        raise BadInput(f"{path!r} has a row without an offset")


def _typed_columns(blocks: Iterable[Rows]) -> Columns:
    """Return the declared columns of rows, with typed values. Raises: ValueError."""
    held, count = Columns(), 0
    known = {name: _ValueCache(column) for name, column in records.COLUMNS.items()}
    for block in blocks:
        try:
            typed = {name: known[name].all(one) for name, one in block.columns.items() if name in known}
        except _VALUE_ERRORS:
            raise _bad_value(block, count) from None
        for name in dict.fromkeys([*held, *typed]):
            before = held.setdefault(name, [ABSENT] * count)
            before += typed.get(name) or [ABSENT] * len(block)
            if name not in typed or name in block.gaps or before[0] is ABSENT:
                held.gaps.add(name)
        count += len(block)
    return held


def _bad_value(block: Rows, before: int) -> ValueError:
    """Return the error on a bad value. before: rows in front."""
    for number, row in enumerate(block, before + 1):
        for name, value in row.items():
            try:
                _typed_value(records.COLUMNS[name], value) if name in records.COLUMNS else None
            except _VALUE_ERRORS:
                kinds = {int: "whole number", bool: "True or False"}
                kind = kinds.get(records.COLUMNS[name].kind, "number")
                return ValueError(f"row {number} has {name} {repr(value)[:40]}, which is no {kind}")
    return ValueError(f"rows {before + 1} to {before + len(block)} are damaged")


class _ValueCache(dict[Any, Any]):
    """A mapping from text to the values of a column; measured numbers are not cached."""

    def __init__(self, column: Column) -> None:
        self.column, self[ABSENT] = column, ABSENT

    def __missing__(self, value: Any) -> Any:
        return self.setdefault(value, _typed_value(self.column, value))

    def all(self, values: Sequence[Any]) -> list[Any]:
        """Return typed values. Raises: ValueError and others of a parser."""
        kind, undefined, types = self.column.kind, self.column.undefined, set(map(type, values))
        if kind is float and self.column.name not in records.IDENTITY and type(ABSENT) not in types:
            with contextlib.suppress(ValueError, TypeError):  # an empty one
                if types <= {float, str} and not self.column.optional:
                    return list(map(float, values))
            return [undefined if v is None or v == "" or v != v else float(v) for v in values]
        if kind is int and types == {int} and -_LARGEST <= min(values) <= max(values) <= _LARGEST:
            return list(values)
        if kind is str and types == {str} and 2 * len(set(values)) > len(values) > 1:  # as cases are
            texts = [v for v in values if len(v) > len("nan")]
            return texts if len(texts) == len(values) else list(map(self.__getitem__, values))
        return list(map(self.__getitem__, values))


def _typed_value(column: Column, value: Any) -> Any:
    """Return a column's typed value. Raises: ValueError and others of a parser."""
    undefined = value is None or (isinstance(value, str) and value.lower() in ("", "nan")) or value != value
    if column.kind is str:
        implied = column.implied is not None or column.name in IMPLIED_VALUES
        return None if undefined and (column.optional or implied) else str(value)
    if undefined:
        is_nan = isinstance(value, str) and value and column.kind is float  # not an empty cell
        return math.nan if is_nan else column.undefined
    if column.kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if column.kind is float:
        return float(value)
    number = Decimal(str(value))  # 7.0 is whole
    if abs(number) > _LARGEST or number != int(number):
        raise ValueError("a fraction, or out of range")
    return int(number)
