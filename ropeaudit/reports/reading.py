"""Reports read back: CSV, JSON, JSON Lines and Parquet that carry the columns of `records.COLUMNS`.

A column that a file lacks is read in its metadata, or is what its absence implies. `-` is stdin.
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
_DAMAGED += (RuntimeError,)  # recursion, and what pyarrow has not implemented
_NO_VALUE = ValueError, KeyError, TypeError, ArithmeticError
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
    """Return the bytes of a file, of `-` those of stdin. Raises: BadInput."""
    try:
        return _through(sys.stdin) if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path!r} cannot be read: {error.strerror or error}") from None


def form_of(path: str) -> str:
    """Return a report's form. Raises: UnknownName, BadInput."""
    if path != "-":
        return reports.form_of(path)
    content = content_of(path)
    first, _, rest = content.strip().partition(b"\n")
    if not first.startswith(b"{"):
        return "parquet" if content.startswith(b"PAR1") else "csv"
    return "jsonl" if first.rstrip().endswith(b"}") and rest.lstrip()[:1] in (b"", b"{") else "json"


class Source(NamedTuple):
    """A report that was read: its rows, and the metadata that it or the file beside it holds."""

    path: str
    rows: Rows
    about: Mapping[str, Any]

    @property
    def processor(self) -> str:
        """What computed it; empty where nothing says."""
        return run_metadata.processor(self.about.get("environment"))


def load(path: str) -> Source:
    """Read a report, each row with the columns of `records.COLUMNS` that it has.

    What a row lacks is what the metadata of its file hold, or what the absence of a column implies.
    What is undefined (nan, null, an empty cell) is nan in a column that always holds floats, None elsewhere.
    Raises: BadInput, MissingPackage.
    """
    form = form_of(path)
    if not reports.REGISTRY[form].reads:
        raise BadInput(f"{path!r} is for readers; give the .csv, .json or .jsonl of the same report")
    reports.check_installed(form)
    decode = reports.functions(form).decode

    def columns() -> tuple[Columns, Any]:
        rows, about = decode(content_of(path))  # which nobody else holds: it may be large
        return _typed(rows), about

    held, told_of = _parsed(path, columns)
    within = reports.REGISTRY[form].metadata == "within"
    told_of = told_of if within else _beside(path)
    about = told_of if isinstance(told_of, dict) else {}
    _check(path, held)
    parts = [about.get(part, {}) for part in ("constants", "stages", "by_case")]
    whole = bool(about) and all(isinstance(part, dict) for part in parts)
    if whole and (within or about.get(form) == digests.of_bytes(content_of(path))):  # else of another file
        _fill(held, *parts)
    _complete(held)
    return Source(path, Rows(held, len(held["offset"]), held.gaps), about)


def read(path: str) -> Rows:
    """Return the rows of a report, as `load` reads them. Raises: BadInput, MissingPackage."""
    return load(path).rows


class Columns(dict[str, list[Any]]):
    """The columns of a file while it is read. gaps: those that some row has not."""

    def __init__(self) -> None:
        self.gaps = set[str]()

    def fill(self, name: str, others: list[Any]) -> None:
        """Put values where rows have none of a column."""
        values = self.get(name)
        if values is None or name in self.gaps:
            pairs = zip(values, others, strict=True) if values else ()
            self[name] = [other if one is ABSENT else one for one, other in pairs] or others
            (self.gaps.add if ABSENT in self[name] else self.gaps.discard)(name)


def _fill(held: Columns, constants: Row, stages: Row, by_case: Row) -> None:
    """Put what metadata say of settings where rows do not say it."""
    count = len(held["offset"])
    if by_case and "case" in held:
        cases = {case: _settings(said) for case, said in by_case.items()}
        for name in dict.fromkeys(chain.from_iterable(cases.values())):
            held.fill(name, [cases.get(case, {}).get(name, ABSENT) for case in held["case"]])
    for name, value in _settings(constants).items():
        held.fill(name, [value] * count)
    if stages:
        pairs = list(zip(held["implementation"], held.get("dtype", [None] * count), strict=True))
        texts = {pair: stages.get("{} {}".format(*pair)) for pair in set(pairs)}
        words = {
            pair: " ".join(f"{stage}={fmt}" for stage, fmt in some.items())
            for pair, some in texts.items()
            if isinstance(some, dict)
        }
        held.fill("stages", [words.get(pair, ABSENT) for pair in pairs])


def _complete(held: Columns) -> None:
    """Add the settings that absence implies, where a row's case agrees; once a distinct setting."""
    own = [name for name in records.OWN if name in held]
    keys = list(zip(*(held[name] for name in own), strict=True))
    settings = {key: _completed(dict(zip(own, key, strict=True))) for key in set(keys)}
    cases = held.get("case", [None] * len(keys))
    rows = []
    for key, offset, case in zip(keys, held["offset"], cases, strict=True):
        agreed, doubtful, case_at = settings[key]
        agrees = case_at is None or case is None or case is ABSENT or case_at(offset) == case
        rows.append(agreed if agrees else doubtful)
    some = list({id(row): row for row in rows}.values())
    for name in dict.fromkeys(chain.from_iterable(some)):
        values = {repr(row.get(name, ABSENT)) for row in some}
        if len(values) == 1:
            held[name] = [some[0][name]] * len(rows)
        else:
            before = held.get(name, rows)  # of a setting that lacks nothing
            held[name] = [row.get(name, one) for row, one in zip(rows, before, strict=True)]
        held.gaps.discard(name)


def _completed(setting: Row) -> tuple[Row, Row, Callable[[Any], str] | None]:
    """Return what the absence of columns implies, what is unknown if not, and the case if so."""
    said = {name: value for name, value in setting.items() if value is not ABSENT}
    missing = {
        name: records.implied_value(name, said)
        for name in _SETTINGS
        if said.get(name) is None and not (name in said and records.COLUMNS[name].optional)
    }
    whole = {**said, **missing}
    if not all(name in whole for name in records.IDENTITY if name not in (*NOT_IN_CASE, "offset")):
        return missing, missing, None
    implied = dict(missing)
    if records.implied_value("stages", whole):  # of a recipe the version is that of ropeaudit
        missing.pop("version", None)
    columns = {name: records.COLUMNS[name] for name in missing}
    is_text = {name: column.kind is str and not column.optional for name, column in columns.items()}
    unknown = {name: UNKNOWN if text else None for name, text in is_text.items()}
    return implied, {**implied, **unknown}, records.digest_at_offset(whole)


def _settings(values: Any) -> Row:
    """Return what metadata say of settings, if they are whole."""
    try:
        return {name: typed[0] for name, typed in _typed([Rows.of([values or {}])]).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def told(rows: Sequence[Row]) -> list[str]:
    """Return the columns in which rows say more than their absence implies."""
    held, implied = Rows.of(rows), ["stages"]
    settings = held.distinct(records.OWN)
    for name in _SETTINGS:
        if all(row[name] in (None, UNKNOWN, records.implied_value(name, row)) for row in settings):
            implied.append(name)
    return [name for name in records.ALL_COLUMNS if name not in implied and name in held.columns]


def _beside(path: str) -> Any:
    """Return the metadata beside a report, if any."""
    try:
        return json.loads(Path(reports.beside(path)).read_bytes())
    except _DAMAGED:
        return {}


def check_core(rows: Rows, origins: Sequence[str]) -> None:
    """Raise BadInput unless rows have all that records need. origins: the file of each."""
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
    """Return the same as records, as fast as that goes."""
    made = map(functools.partial(tuple.__new__, ReadRecord), zip(*record_columns(rows).values(), strict=True))
    return cast("list[Record]", list(made))


def record(row: Row) -> Record:
    """Return a row as a record; what a file lacks is nan, 0 or empty."""
    return Record(**{name: values[0] for name, values in record_columns(Rows.of([row])).items()})


def whole(path: str) -> dict[str, Any]:
    """Return a .json report whole, infinity as a number. Raises: BadInput."""

    def numbered(row: dict[str, Any]) -> dict[str, Any]:
        return {name: float(value) if value in ("inf", "-inf") else value for name, value in row.items()}

    def read_whole() -> dict[str, Any]:
        results: dict[str, Any] = json.loads(content_of(path), object_hook=numbered)
        if not isinstance(results["records"], list):
            raise TypeError("its records are no list")
        return results

    return _parsed(path, read_whole)


def _parsed(path: str, parse: Callable[[], T]) -> T:
    """Return what a parser makes of a file. Raises: BadInput."""
    try:
        return parse()
    except BadInput:
        raise
    except _DAMAGED as error:
        hint = "; give -f csv to the command before the pipe" if path == "-" else ""
        raise BadInput(f"{path!r} is not a report of ropeaudit: {parser_reason(error)}{hint}") from None


def _check(path: str, held: Columns) -> None:
    """Raise BadInput if rows are of no report of `shift`, or of another schema."""
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


def _typed(blocks: Iterable[Rows]) -> Columns:
    """Return the known columns of rows. Raises: ValueError."""
    held, count = Columns(), 0
    known = {name: _Known(column) for name, column in records.COLUMNS.items()}
    for block in blocks:
        try:
            typed = {name: known[name].all(one) for name, one in block.columns.items() if name in known}
        except _NO_VALUE:
            raise _fault(block, count) from None
        for name in dict.fromkeys([*held, *typed]):
            before = held.setdefault(name, [ABSENT] * count)
            before += typed.get(name) or [ABSENT] * len(block)
            if name not in typed or name in block.gaps or before[0] is ABSENT:
                held.gaps.add(name)
        count += len(block)
    return held


def _fault(block: Rows, before: int) -> ValueError:
    """Return which value is none of its column, and where. before: rows in front of these."""
    for number, row in enumerate(block, before + 1):
        for name, value in row.items():
            try:
                _value(records.COLUMNS[name], value) if name in records.COLUMNS else None
            except _NO_VALUE:
                kinds = {int: "whole number", bool: "True or False"}
                kind = kinds.get(records.COLUMNS[name].kind, "number")
                return ValueError(f"row {number} has {name} {repr(value)[:40]}, which is no {kind}")
    return ValueError(f"rows {before + 1} to {before + len(block)} are damaged")


class _Known(dict[Any, Any]):
    """The values of a column, and what each is; measured numbers, which differ, are not kept."""

    def __init__(self, column: Column) -> None:
        self.column, self[ABSENT] = column, ABSENT

    def __missing__(self, value: Any) -> Any:
        return self.setdefault(value, _value(self.column, value))

    def all(self, values: Sequence[Any]) -> list[Any]:
        """Return what values are. Raises: ValueError and others of a parser."""
        kind, undefined, types = self.column.kind, self.column.undefined, set(map(type, values))
        if kind is float and self.column.name not in records.IDENTITY and type(ABSENT) not in types:
            with contextlib.suppress(ValueError, TypeError):  # one is empty
                if types <= {float, str} and not self.column.optional:
                    return list(map(float, values))
            return [undefined if v is None or v == "" or v != v else float(v) for v in values]
        if kind is int and types == {int} and -_LARGEST <= min(values) <= max(values) <= _LARGEST:
            return list(values)
        if kind is str and types == {str} and 2 * len(set(values)) > len(values) > 1:  # as cases are
            said = [v for v in values if len(v) > len("nan")]
            return said if len(said) == len(values) else list(map(self.__getitem__, values))
        return list(map(self.__getitem__, values))


def _value(column: Column, value: Any) -> Any:
    """Return a column's typed value. Raises: ValueError and others of a parser."""
    undefined = value is None or (isinstance(value, str) and value.lower() in ("", "nan")) or value != value
    if column.kind is str:
        implied = column.implied is not None or column.name in IMPLIED_VALUES
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
