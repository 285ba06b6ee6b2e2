"""The record: the flat row that a case yields, and its columns."""

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
UNKNOWN = "unknown"  # a setting that a file does not say
# What identifies a row beside its case: a later schema, version or tolerance measures the same case.
APART = ("schema", "version", "tolerance", "case")
_DIGITS = 12  # 48 bits: two of a million cases agree once in 500 sweeps

COLUMNS = table("shift")
_Fields: Any = make_dataclass(
    "_Fields",
    [(name, column.kind | None if column.optional else column.kind) for name, column in COLUMNS.items()],
    bases=(Result,),
    frozen=True,
    slots=True,
)


class _Case:
    """What a case says of itself, whatever holds its fields."""

    __slots__ = ()
    report_module: ClassVar[str] = "ropeaudit.reports.drift"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # its fields are data

    def key(self) -> tuple[str, str, float]:
        """Return what tells cells of a sweep apart."""
        return self.case, self.version, self.tolerance

    @property
    def why(self) -> str:
        """Why nothing was measured, in words; empty where it was."""
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


class Record(_Case, _Fields):  # type: ignore[misc]  # its fields are data
    """One case: RoPE setting x inputs x subject x dtype x offset. `data/columns.toml` explains each field."""

    __slots__ = ()


class ReadRecord(_Case, namedtuple("_Tuple", COLUMNS)):  # type: ignore[misc]
    """The same of a row that was read: a tuple, made ten times as fast."""

    __slots__ = ()


IDENTITY = COLUMNS.identity
OWN = tuple(name for name in IDENTITY if name not in ("case", "offset"))  # of a setting and its subject
_own: Callable[[Record], tuple[Any, ...]] = attrgetter(*OWN)
_NAMES = tuple(name for name in COLUMNS if name in IDENTITY and name not in (*APART, "offset"))
_values: Callable[[_Case], tuple[Any, ...]] = attrgetter(*COLUMNS)

# What every file has, CSV without sentences, in the order in which a reader asks.
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
# the others by group -> whether a row says, before anything is measured, that they are asked for
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
EVERY = (*CORE, *(name for group in GROUPS for name in COLUMNS if COLUMNS[name].group == group))
CHOICES = (*COLUMNS, "all", "core", *GROUPS)  # what may be asked for by name
GROUP_HINTS = {
    "code": "--impl has it",
    "attention": "--attention measures it",
    "grids": "--grid has it",
    "samples": "--sample has it",
}


def of_group(group: str) -> tuple[str, ...]:
    """Return the columns of "core", or of one of `GROUPS`."""
    return CORE if group == "core" else COLUMNS.names(lambda column: column.group == group)


def distinct(rows: Sequence[Record]) -> list[Record]:
    """Return a row of each setting and subject, in the order in which they come."""
    return list(dict(zip(map(_own, rows), rows, strict=True)).values())


def written(
    rows: Sequence[Record], named: Sequence[str] = (), needed: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the columns that files have of some rows, and those of them that were asked for by name.

    named: columns, groups, "core", "all"; by default the core, unusual settings, and what rows are about.
    """
    if named:
        words = {"all": EVERY}
        words |= {group: of_group(group) for group in ("core", *GROUPS)}
        names = [one for name in named for one in words.get(name, (name,))]
        return list(dict.fromkeys(names)), [name for name in named if name not in words]
    rows = [row for row in distinct(rows) if row.model != UNKNOWN]  # a file said too little of the others
    asked = {COLUMNS[name].group for name in needed} - {""}
    groups = asked | {group for group, about in GROUPS.items() if any(map(about, rows))}

    def is_told(name: str) -> bool:
        """Return whether files have a setting: asked for, or not what its absence implies."""
        column = COLUMNS[name]
        if column.group in asked or (column.group in groups and not column.optional):
            return True
        if name == "stages":  # metadata hold them
            return False
        sizes = ({"head_dim": row.head_dim, "heads": row.heads} for row in rows)
        return any(getattr(row, name) != implied(name, one) for row, one in zip(rows, sizes, strict=True))

    others = [name for name in COLUMNS if name not in CORE]
    settings = [name for name in others if name in IDENTITY and is_told(name)]
    measured = [name for name in others if name not in IDENTITY and COLUMNS[name].group in groups]
    return [*FIRST, *settings, *CORE[len(FIRST) :], *measured], []


def implied(name: str, row: Mapping[str, Any]) -> Any:
    """Return what a row of a file holds of a column that the file lacks."""
    return FOLLOWING[name](row) if name in FOLLOWING else COLUMNS[name].implied


def beside(rows: Sequence[Record], columns: Sequence[str]) -> dict[str, Any]:
    """Return what was requested of rows, and their sentences, where columns do not say it."""
    own = distinct(rows)
    known = all(row.model != UNKNOWN for row in own)
    left = [name for name in IDENTITY if known and name not in (*columns, "stages")]
    constant = {name for name in left if len({getattr(row, name) for row in own}) == 1}
    varying = [name for name in left if name not in constant]
    told = [name for name in COLUMNS if COLUMNS[name].sentence]
    by_case = {
        row.case: {name: getattr(row, name) for name in varying}
        | {name: text for name in told if (text := getattr(row, name)) is not None}
        for row in rows
    }
    stages = {f"{row.implementation} {row.dtype}": row.stages for row in own if "=" in row.stages}
    return {
        "constants": {name: getattr(rows[0], name) for name in left if name in constant},
        "stages": {
            name: dict(word.split("=", 1) for word in text.split() if "=" in word)
            for name, text in stages.items()
        },
        "by_case": {case: values for case, values in by_case.items() if values},
    }


def moved_apart(record: Record) -> bool:
    """Return whether `offset` does not say by how much the axes of a grid moved."""
    moved = [value for value in (record.offset_t, record.offset_h, record.offset_w) if value is not None]
    return any(value != record.offset for value in moved)


def shown(row: Record) -> str:
    """Name a row for a message."""
    requested = f"{row.implementation} {row.dtype} at offset {row.offset}"
    made = f"version {row.version}, on {row.device}"
    return f"{requested} ({row.seq_len} positions, schema {row.schema}, {made})"


def case_of(values: Mapping[str, Any]) -> str:
    """Return the digest of a request: columns of `IDENTITY` less `APART`."""
    return cases_of(values)(values["offset"])


def cases_of(values: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return what gives the same from an offset, of requests that differ in it alone."""
    words = "".join(f"{name}={_word(values[name])}\n" for name in _NAMES)
    begun = hashlib.sha256(words.encode("utf-8", "backslashreplace"))

    def case(offset: Any) -> str:
        digest = begun.copy()
        digest.update(_word(offset).encode())
        return digest.hexdigest()[:_DIGITS]

    return case


def _word(value: Any) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


@lru_cache(maxsize=256)
def _stages(name: str, dtype: str) -> str:
    """Return the stages of a recipe that has a name; nothing of own recipes and of code."""
    bare, _, changes = name.rstrip("]").partition("[")
    try:
        recipe = recipes.named(bare).changed(recipes.parse_changes([changes]) if changes else {})
        resolved = recipe.resolve(parse(dtype), stores_keys=True)
    except RopeAuditError:
        return ""
    stages = resolved.stages() | resolved.switches()
    return " ".join(f"{stage}={fmt}" for stage, fmt in stages.items())


# what a row of a file holds of a column that the file lacks, where that follows from the others
FOLLOWING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "version": lambda row: __version__,
    "rotary_dim": lambda row: row.get("head_dim"),
    # a file may say anything
    "scale": lambda row: 1 / math.sqrt(row["head_dim"]) if (row.get("head_dim") or 0) > 0 else None,
    "kv_heads": lambda row: row.get("heads"),
    "stages": lambda row: _stages(str(row.get("implementation")), str(row.get("dtype"))),
}
