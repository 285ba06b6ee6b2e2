"""A column of a report, declared once: every file, table, reader, gate and list goes by the declaration.

Two ways to declare columns. The fields of a class under `row_class` are columns whose values are given when
a row is made (`Record`). What `Declare` declares computes its value from a result: no row is spelt again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import NoneType
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

R = TypeVar("R")
C = TypeVar("C")
In = TypeVar("In", contravariant=True)
# case, setting: what was requested, which identifies a row. drift: what a fault that shifts q and k alike
# does not show in. attention, place: undefined unless those were measured.
Role = Literal["case", "setting", "drift", "attention", "place", "measured"]
Style = Literal[
    "short", "setting", "percent", "part", "short or empty", "part or empty"
]  # how a screen shows a value; see `reports.numbers`
Shown = Callable[[Any], bool] | bool  # whether a row puts a column on the screen; True: it is always there
_KEY = "column"  # of a field's metadata


class Options(TypedDict, total=False):
    """What a declaration may say of a column; see `Column`."""

    unit: str
    role: Role
    style: Style
    shown: Shown
    shown_after: str
    leaves: int
    nonnegative: bool
    least_is_worst: bool
    compared: int
    group: str
    implied: Any
    sentence: bool
    users: bool
    choices: Sequence[str]


class Part(Protocol[In]):
    """One column or several, whose values come from a result."""

    @property
    def declared(self) -> Sequence[Column[Any]]:
        """The columns."""

    def row(self, result: In) -> dict[str, Any]:
        """Return column -> value."""


@dataclasses.dataclass(frozen=True)
class Column(Generic[R]):
    """A column: what it is called, what it holds, and how it is shown.

    kind: str, int or float. meaning: one sentence for whoever reads the rows. value: computes it from a
    result, by default the attribute of that name. unit: of its numbers, empty where they have none.
    optional: whether None stands for an undefined value. style: how a screen shows it. shown: whether
    it is on the screen, where a report has no order of its own. shown_after: the column behind which it
    stands there. leaves: its turn to leave a screen that is too narrow, 0 for never. nonnegative: whether a
    value below 0 is an error. least_is_worst: whether small values are the bad ones. compared: its place
    among the columns that a comparison of reports looks at, 0 for none. group: with which other columns it is
    asked for; empty for those that are always there. implied: what a row holds whose file has no such column,
    or a function of the row. sentence: whether it holds sentences, which CSV leaves out. users: whether it
    holds text that somebody else chose, such as a path. choices: its words, where no others occur.
    """

    name: str
    kind: type[str] | type[int] | type[float]
    meaning: str
    value: Callable[[R], Any] | None = None
    unit: str = ""
    optional: bool = False
    role: Role = "measured"
    style: Style = "short"
    shown: Shown = False
    shown_after: str = ""
    leaves: int = 0
    nonnegative: bool = False
    least_is_worst: bool = False
    compared: int = 0
    group: str = ""
    implied: Any = None
    sentence: bool = False
    users: bool = False
    choices: Sequence[str] = ()

    @property
    def declared(self) -> Sequence[Column[Any]]:
        """The column itself."""
        return (self,)

    @property
    def undefined(self) -> float | None:
        """What stands for an undefined value: nan in a column that always holds floats, else None."""
        return math.nan if self.kind is float and not self.optional else None

    def row(self, result: R) -> dict[str, Any]:
        """Return column -> value."""
        return {self.name: (self.value or attrgetter(self.name))(result)}


@dataclasses.dataclass(frozen=True)
class Together(Generic[R]):
    """Columns whose values one function computes together, by name."""

    declared: Sequence[Column[Any]]
    values: Callable[[R], Mapping[str, Any]]

    def row(self, result: R) -> dict[str, Any]:
        """Return column -> value."""
        values = self.values(result)
        return {column.name: values[column.name] for column in self.declared}


class Columns(Mapping[str, Column[Any]], Generic[R]):
    """The columns of a report by name, in the order in which files have them."""

    def __init__(self, *parts: Part[R]) -> None:
        """Raise ValueError if two columns have one name."""
        self.parts = parts
        columns = [column for part in parts for column in part.declared]
        self._columns = {column.name: column for column in columns}
        if len(self._columns) < len(columns):
            raise ValueError(f"a column is declared twice: {[column.name for column in columns]}")

    def __getitem__(self, name: str) -> Column[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def row(self, result: R) -> dict[str, Any]:
        """Return the row of a result: column -> value."""
        row: dict[str, Any] = {}
        for part in self.parts:
            row |= part.row(result)
        return row

    def names(self, test: Callable[[Column[Any]], bool]) -> tuple[str, ...]:
        """Return the columns of which something holds."""
        return tuple(name for name, column in self.items() if test(column))

    def having(self, *roles: Role) -> tuple[str, ...]:
        """Return the columns of some roles."""
        return self.names(lambda column: column.role in roles)

    @cached_property
    def numeric(self) -> tuple[str, ...]:
        """The columns that hold numbers: gates, summaries and baselines take these."""
        return self.names(lambda column: column.kind is not str)

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The columns that say what was requested: equal for the same cell of a sweep."""
        return self.having("case", "setting")

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The columns that a comparison of reports looks at, in its order."""
        names = self.names(lambda column: column.compared > 0)
        return tuple(sorted(names, key=lambda name: self[name].compared))

    def unset(self, names: Iterable[str]) -> dict[str, None]:
        """Return the optional ones of some columns, undefined."""
        return dict.fromkeys(name for name in names if self[name].optional)

    def screen(self, rows: Sequence[Any]) -> list[str]:
        """Return the columns that are on the screen of some rows, in its order."""
        shown = [column for column in self.values() if _is_shown(column.shown, rows)]
        names = [column.name for column in shown if not column.shown_after]
        for column in shown:
            if column.shown_after in names:
                names.insert(names.index(column.shown_after) + 1, column.name)
        return names

    @cached_property
    def dispensable(self) -> tuple[str, ...]:
        """The columns that may leave a narrow screen, the first to leave first."""
        names = self.names(lambda column: column.leaves > 0)
        return tuple(sorted(names, key=lambda name: self[name].leaves))


def _is_shown(shown: Shown, rows: Sequence[Any]) -> bool:
    return any(map(shown, rows)) if callable(shown) else shown


class Declare(Generic[R]):
    """What declares the columns of a report, each in a line of a class: `drift: float = of("...", ...)`.

    The class is a list and has no instances; name and type of a column are those of the attribute.
    """

    def __call__(
        self, meaning: str, value: Callable[[R], Any] | None = None, **options: Unpack[Options]
    ) -> Any:
        """Declare a column; value computes it, by default it is the result's attribute of that name."""
        return Column("", str, meaning, value, **options)

    def like(
        self,
        column: Column[Any],
        value: Callable[[R], Any] | None = None,
        meaning: str = "",
        *,
        shown: Callable[[R], bool] | bool = False,
        leaves: int = 0,
    ) -> Any:
        """Declare a column that another report has too, here perhaps with a meaning of its own."""
        meaning = meaning or column.meaning
        screen = Options(shown=shown, shown_after="", leaves=leaves)
        return dataclasses.replace(column, value=value, meaning=meaning, **screen)

    def columns(self, cls: type[Any]) -> Columns[R]:
        """Return the columns that a class lists, each declared here or `Together`, in its order."""
        kinds = get_type_hints(cls)
        parts: list[Part[R]] = []
        for name, part in vars(cls).items():
            if isinstance(part, Together):
                parts.append(part)
            elif isinstance(part, Column):
                parts.append(_completed(part, name, kinds[name]) if name in kinds else part)
        return Columns(*parts)


def column(meaning: str, *, default: Any = dataclasses.MISSING, **options: Unpack[Options]) -> Any:
    """Declare a field of a `row_class` as a column; its name and type are the field's. See `Column`."""
    declared: Column[Any] = Column("", str, meaning, **options)
    return dataclasses.field(default=default, metadata={_KEY: declared})


@dataclass_transform(frozen_default=True, field_specifiers=(column,))
def row_class(cls: type[C]) -> type[C]:
    """Return a class whose fields are columns as a frozen dataclass."""
    return dataclasses.dataclass(frozen=True, slots=True)(cls)


def columns_of(cls: type[R]) -> Columns[R]:
    """Return the columns that the fields of a `row_class` declare."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    few = {str(field.type): field.type for field in fields}  # each is resolved once: it takes long
    holder = type(cls.__name__, (), {"__module__": cls.__module__, "__annotations__": few})
    kinds = get_type_hints(holder)
    return Columns(
        *(_completed(field.metadata[_KEY], field.name, kinds[str(field.type)]) for field in fields)
    )


def _completed(column: Column[R], name: str, kind: Any) -> Column[R]:
    """Return a column with its name, and with the type and optionality that an annotation says."""
    types = (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,)
    [only] = (one for one in types if one is not NoneType)
    choices = get_args(only) if get_origin(only) is Literal else column.choices
    only = str if get_origin(only) is Literal else only
    return dataclasses.replace(column, name=name, kind=only, optional=NoneType in types, choices=choices)
