"""The columns of every report, read from `data/columns.toml`: one table per report, one line per column.

Values are computed by the features; a row is a mapping from the names of a table to values.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any, Literal

from ropeaudit import data
from ropeaudit.runtime.rows import Row
from ropeaudit.runtime.rows import column as values_of

# case, setting: what was requested, which identifies a row. drift: what a fault that shifts q and k alike
# does not show in. attention, place: undefined unless those were measured.
Role = Literal["case", "setting", "drift", "attention", "place", "measured"]
# how a screen shows a value; see `reports.numbers`
Style = Literal["short", "setting", "times", "percent", "part", "short or empty", "part or empty", "format"]
_KINDS: dict[str, type[Any]] = {"text": str, "integer": int, "number": float, "boolean": bool}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: what it is called, what it holds, and how it is shown.

    kind: str, int, float or bool.
    meaning: one sentence for whoever reads the rows.
    unit: of its numbers, empty where they have none.
    words: of text, where no others occur.
    optional: whether None stands for an undefined value.
    style: how a screen shows it.
    screen: whether it is on the screen, where a report has no order of its own: true; any: where some row has
        a value; "not cpu": where some row has another; "with NAME": where some row has a value of NAME.
    after: the column behind which it stands there.
    leaves: its turn to leave a screen that is too narrow, 0 for never.
    least_is_worst: whether small values are the bad ones.
    compared: its place among the columns that a comparison of reports looks at, 0 for none.
    group: with which other columns it is asked for; empty for those that are always there.
    implied: what a row holds whose file has no such column.
    sentence: whether it holds sentences, which CSV leaves out.
    title: its heading, where that is not its name.
    """

    name: str
    kind: type[Any]
    meaning: str
    unit: str = ""
    words: Sequence[str] = ()
    optional: bool = False
    role: Role = "measured"
    style: Style = "short"
    screen: bool | str = False
    after: str = ""
    leaves: int = 0
    least_is_worst: bool = False
    compared: int = 0
    group: str = ""
    implied: Any = None
    sentence: bool = False
    title: str = ""

    @property
    def undefined(self) -> float | None:
        """The undefined value: nan in a column of floats that is not optional, else None."""
        return math.nan if self.kind is float and not self.optional else None

    def shown(self, rows: Sequence[Row]) -> bool:
        """Return whether a screen shows this column for these rows."""
        if isinstance(self.screen, bool):
            return self.screen
        if self.screen == "not cpu":
            return not set(values_of(rows, self.name)) <= {"cpu", "none", None}
        name = self.screen.removeprefix("with ") if self.screen != "any" else self.name
        values = set(values_of(rows, name))  # None, nan, nothing and "none" say nothing
        return any(value is not None and value == value and value not in ("", "none") for value in values)


class Columns(dict[str, Column]):
    """The columns of a report by name, in the order in which files have them."""

    def __init__(self, columns: Iterable[Column]) -> None:
        """Raise ValueError if two columns have one name."""
        listed = list(columns)
        super().__init__((column.name, column) for column in listed)
        if len(self) < len(listed):
            raise ValueError(f"a column is declared twice: {[column.name for column in listed]}")

    def names(self, test: Callable[[Column], bool]) -> tuple[str, ...]:
        """Return the names of the columns that pass a test."""
        return tuple(name for name, column in self.items() if test(column))

    def having(self, *roles: Role) -> tuple[str, ...]:
        """Return the names of the columns that have one of these roles."""
        return self.names(lambda column: column.role in roles)

    @cached_property
    def numeric(self) -> tuple[str, ...]:
        """The columns that hold numbers: gates, summaries and baselines take these."""
        return self.names(lambda column: column.kind in (int, float))

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The columns that say what was requested: equal for the same cell of a sweep."""
        return self.having("case", "setting")

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The columns that a comparison of reports looks at, in its order."""
        names = self.names(lambda column: column.compared > 0)
        return tuple(sorted(names, key=lambda name: self[name].compared))

    @cached_property
    def dispensable(self) -> tuple[str, ...]:
        """The columns that may leave a narrow screen, the first to leave first."""
        names = self.names(lambda column: column.leaves > 0)
        return tuple(sorted(names, key=lambda name: self[name].leaves))

    def unset(self, names: Iterable[str]) -> dict[str, None]:
        """Return the optional columns among these, each with the value None."""
        return dict.fromkeys(name for name in names if self[name].optional)

    def screen(self, rows: Sequence[Row]) -> list[str]:
        """Return the columns that a screen shows for these rows, in its order."""
        shown = [column for column in self.values() if column.shown(rows)]
        names = [column.name for column in shown if not column.after]
        for column in shown:
            if column.after in names:
                names.insert(names.index(column.after) + 1, column.name)
        return names


def tables() -> Sequence[str]:
    """Return the names of all tables."""
    return tuple(_sections())


def table(*names: str) -> Columns:
    """Return the columns of one or more tables of `data/columns.toml`."""
    return Columns(column for name in names for column in _section(name))


@cache
def _section(name: str) -> tuple[Column, ...]:
    """Return the columns of a table; `like` copies another."""
    columns = []
    for column, fields in tomllib.loads(_sections()[name]).items():
        if like := fields.pop("like", ""):
            original = next(other for other in _section(like) if other.name == column)
            own = {"screen": False, "after": "", "leaves": 0, **fields}
            columns.append(dataclasses.replace(original, **own))
        else:
            kind = _KINDS[fields.pop("kind", "text")]
            columns.append(Column(column, kind, **fields))
    return tuple(columns)


@cache
def _sections() -> dict[str, str]:
    """Return the text of each table by its name: parsing all of them is slow."""
    parts = re.split(r"^\[([\w-]+)\].*\n", data.text("columns.toml"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
