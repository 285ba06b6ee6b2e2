"""The record: the flat row of a measurement, its columns, and which of them files have."""

from __future__ import annotations

import hashlib
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import make_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from ropeaudit import __version__, recipes
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.judging import REFUSALS
from ropeaudit.audits.results import Result
from ropeaudit.errors import RopeAuditError
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import table

SCHEMA = 4  # earlier ones are refused: their rows are measured again
UNKNOWN = "unknown"  # a setting that a file lacks
# Columns that identify a row but not its case.
NOT_IN_CASE = ("schema", "version", "tolerance", "case")
_DIGITS = 12  # 48 bits: two of a million cases agree once in 500 sweeps

COLUMNS = table("shift")
_Fields: Any = make_dataclass(
    "_Fields",
    [(name, column.kind | None if column.optional else column.kind) for name, column in COLUMNS.items()],
    bases=(Result,),
    frozen=True,
    slots=True,
)


class _CaseRow:
    """What can be derived from a row, however it is stored."""

    __slots__ = ()
    report_module: ClassVar[str] = "ropeaudit.reports.drift"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # its fields are data

    def key(self) -> tuple[str, str, float]:
        """Return the key of a cell of a sweep."""
        return self.case, self.version, self.tolerance

    @property
    def why(self) -> str:
        """Why the subject was refused, in words; empty where it was measured."""
        return self.reason or (REFUSALS[self.refused] if self.refused else "")

    @property
    def setting(self) -> RopeSetting:
        """The RoPE setting."""
        return RopeSetting(
            self.head_dim,
            self.rotary_dim,
            self.base,
            "half" if self.layout == "half" else "interleaved",
            self.scale,
            scalings.parse(self.scaling),
            self.length or 0,
            math.inf if self.clip is None or math.isnan(self.clip) else self.clip,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return column -> value, in the order of `COLUMNS`."""
        return dict(zip(COLUMNS, _values(self), strict=True))


class Record(_CaseRow, _Fields):  # type: ignore[misc]  # its fields are data
    """One case: RoPE setting x inputs x subject x dtype x offset. `data/columns.toml` explains each field."""

    __slots__ = ()


class ReadRecord(_CaseRow, namedtuple("_Tuple", COLUMNS)):  # type: ignore[misc]
    """A record of a file, as a tuple: it is created ten times as fast."""

    __slots__ = ()


IDENTITY = COLUMNS.identity
OWN = tuple(name for name in IDENTITY if name not in ("case", "offset"))  # of a setting and its subject
_own_values: Callable[[Record], tuple[Any, ...]] = attrgetter(*OWN)
_NAMES = tuple(name for name in COLUMNS if name in IDENTITY and name not in (*NOT_IN_CASE, "offset"))
_values: Callable[[_CaseRow], tuple[Any, ...]] = attrgetter(*COLUMNS)

# Columns of every file (of CSV without sentences), in the order of a reader's questions.
FIRST = ("implementation", "dtype", "offset")
CORE = (
    *FIRST,
    "drift_relative",
    "drift_rms",
    "drift_max",
    "change_rms",
    "excess",
    "within_tolerance",
    "verdict",
    "diagnosis",
    "refused",
    "reason",
    "floor_rms",
    "reference_rms",
    "reference_error",
    "distinct_positions",
    "nonfinite",
    "scores",
    "seq_len",
    "heads",
    "head_dim",
    "base",
    "mask",
    "source",
    "seed",
    "tolerance",
    "case",
    "schema",
)
# the other columns by group -> whether what was requested of a row implies them
GROUPS: dict[str, Callable[[Record], bool]] = {
    "code": lambda row: row.environment is not None,
    "attention": lambda row: row.softmax is not None,
    "grids": lambda row: row.grid is not None,
    "samples": lambda row: row.sample is not None,
    "scalings": lambda row: row.scaling != "default",
    "structure": lambda row: row.length is not None or row.clip is not None,
    "keys": lambda row: row.rerotated is not None,
    "bounds": lambda row: False,
    "detail": lambda row: False,
}
ALL_COLUMNS = (*CORE, *(name for group in GROUPS for name in COLUMNS if COLUMNS[name].group == group))
CHOICES = (*COLUMNS, "all", "core", *GROUPS)  # what --columns takes
GROUP_HINTS = {
    "code": "--impl has it",
    "attention": "--attention measures it",
    "grids": "--grid has it",
    "samples": "--sample has it",
}


def group_columns(group: str) -> tuple[str, ...]:
    """Return the columns of "core", or of one of `GROUPS`."""
    return CORE if group == "core" else COLUMNS.names(lambda column: column.group == group)


def distinct(rows: Sequence[Record]) -> list[Record]:
    """Return one row for each setting and subject, in order."""
    return list(dict(zip(map(_own_values, rows), rows, strict=True)).values())


def file_columns(
    rows: Sequence[Record], named: Sequence[str] = (), needed: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the columns that files have of these rows, and those that were requested by name.

    named: columns, groups, "core", "all"; by default the core, unusual settings, and implied groups.
    needed: columns whose groups are written too.
    """
    if named:
        words = {"all": ALL_COLUMNS}
        words |= {group: group_columns(group) for group in ("core", *GROUPS)}
        names = [column for name in named for column in words.get(name, (name,))]
        return list(dict.fromkeys(names)), [name for name in named if name not in words]
    rows = [row for row in distinct(rows) if row.model != UNKNOWN]  # the other rows lack settings
    asked = {COLUMNS[name].group for name in needed} - {""}
    groups = asked | {group for group, about in GROUPS.items() if any(map(about, rows))}

    def is_written(name: str) -> bool:
        """Return whether files have a setting: requested, or not what its absence implies."""
        column = COLUMNS[name]
        if column.group in asked or (column.group in groups and not column.optional):
            return True
        if name == "stages":  # they are in the metadata
            return False
        sizes = ({"head_dim": row.head_dim, "heads": row.heads} for row in rows)
        pairs = zip(rows, sizes, strict=True)
        return any(getattr(row, name) != implied_value(name, size) for row, size in pairs)

    others = [name for name in COLUMNS if name not in CORE]
    settings = [name for name in others if name in IDENTITY and is_written(name)]
    measured = [name for name in others if name not in IDENTITY and COLUMNS[name].group in groups]
    return [*FIRST, *settings, *CORE[len(FIRST) :], *measured], []


def implied_value(name: str, row: Mapping[str, Any]) -> Any:
    """Return the value that a row has in a column which its file lacks."""
    return IMPLIED_VALUES[name](row) if name in IMPLIED_VALUES else COLUMNS[name].implied


def row_metadata(rows: Sequence[Record], columns: Sequence[str]) -> dict[str, Any]:
    """Return metadata for a file of rows: settings and sentences that its columns lack."""
    own = distinct(rows)
    complete = all(row.model != UNKNOWN for row in own)
    missing = [name for name in IDENTITY if complete and name not in (*columns, "stages")]
    constant = {name for name in missing if len({getattr(row, name) for row in own}) == 1}
    varying = [name for name in missing if name not in constant]
    sentences = [name for name in COLUMNS if COLUMNS[name].sentence]
    by_case = {
        row.case: {name: getattr(row, name) for name in varying}
        | {name: text for name in sentences if (text := getattr(row, name)) is not None}
        for row in rows
    }
    stages = {f"{row.implementation} {row.dtype}": row.stages for row in own if "=" in row.stages}
    return {
        "constants": {name: getattr(rows[0], name) for name in missing if name in constant},
        "stages": {
            name: dict(word.split("=", 1) for word in text.split() if "=" in word)
            for name, text in stages.items()
        },
        "by_case": {case: values for case, values in by_case.items() if values},
    }


def axes_moved_apart(record: Record) -> bool:
    """Return whether some axis of a grid moved by another number than `offset`."""
    moves = [move for move in (record.offset_t, record.offset_h, record.offset_w) if move is not None]
    return any(move != record.offset for move in moves)


def row_label(row: Record) -> str:
    """Return the name of a row for a message."""
    requested = f"{row.implementation} {row.dtype} at offset {row.offset}"
    made = f"version {row.version}, on {row.device}"
    return f"{requested} ({row.seq_len} positions, schema {row.schema}, {made})"


def case_digest(values: Mapping[str, Any]) -> str:
    """Return the digest of a case: of the columns of `IDENTITY` without `NOT_IN_CASE`."""
    return digest_at_offset(values)(values["offset"])


def digest_at_offset(values: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return a function from offsets to digests, for cases that differ in the offset alone."""
    words = "".join(f"{name}={_digest_text(values[name])}\n" for name in _NAMES)
    prefix = hashlib.sha256(words.encode("utf-8", "backslashreplace"))

    def case(offset: Any) -> str:
        digest = prefix.copy()
        digest.update(_digest_text(offset).encode())
        return digest.hexdigest()[:_DIGITS]

    return case


def _digest_text(value: Any) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


@lru_cache(maxsize=256)
def _stages(name: str, dtype: str) -> str:
    """Return the stages of a named recipe, else nothing."""
    bare, _, changes = name.rstrip("]").partition("[")
    try:
        recipe = recipes.named(bare).changed(recipes.parse_changes([changes]) if changes else {})
        resolved = recipe.resolve(parse(dtype), stores_keys=True)
    except RopeAuditError:
        return ""
    stages = resolved.stages() | resolved.switches()
    return " ".join(f"{stage}={fmt}" for stage, fmt in stages.items())


# column -> its value in a row whose file lacks it, where the other columns imply it
IMPLIED_VALUES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "version": lambda row: __version__,
    "rotary_dim": lambda row: row.get("head_dim"),
    # a file may say anything
    "scale": lambda row: 1 / math.sqrt(row["head_dim"]) if (row.get("head_dim") or 0) > 0 else None,
    "kv_heads": lambda row: row.get("heads"),
    "stages": lambda row: _stages(str(row.get("implementation")), str(row.get("dtype"))),
}
