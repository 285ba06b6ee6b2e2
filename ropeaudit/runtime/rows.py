"""Rows held by column, since a file may hold many; a row is made when it is looked at."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

Row = Mapping[str, Any]
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()  # the row has no such column
BLOCK = 4096  # rows of a file that are held as they stand in it


class Rows(Sequence[Row]):
    """Rows of reports.

    columns: name -> a value a row, ABSENT where that row has no such column.
    gaps: the columns that some row has not.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        count: int,
        gaps: Collection[str] | None = None,
    ) -> None:
        """Hold columns that have `count` values each."""
        self.columns, self.length = columns, count
        found = (name for name, values in columns.items() if ABSENT in values)
        self.gaps = frozenset(found if gaps is None else gaps)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        """Return rows held by column."""
        if isinstance(rows, cls):
            return rows
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        try:
            columns = zip(*map(itemgetter(*names), rows), strict=True) if len(names) > 1 else ()
            return cls(dict(zip(names, columns, strict=True)), len(rows), ())
        except (KeyError, ValueError):
            held = {name: [row.get(name, ABSENT) for row in rows] for name in names}
            return cls(held, len(rows))

    def column(self, name: str, default: Any = None) -> Sequence[Any]:
        """Return the values of a column, the default where a row has none."""
        values = self.columns.get(name)
        if values is None:
            return [default] * self.length
        if name not in self.gaps:
            return values
        return [default if one is ABSENT else one for one in values]

    def all_have(self, name: str) -> bool:
        """Return whether all rows have a column."""
        return not self.length or (name in self.columns and name not in self.gaps)

    def distinct(self, names: Sequence[str]) -> list[Row]:
        """Return each combination of values of some columns once, as they come."""
        values = dict.fromkeys(zip(*(self.column(name) for name in names), strict=True))
        return [dict(zip(names, some, strict=True)) for some in values]

    def take(self, places: Sequence[int]) -> Rows:
        """Return some of the rows."""
        columns = {name: [one[i] for i in places] for name, one in self.columns.items()}
        return Rows(columns, len(places), None if self.gaps else ())

    def __add__(self, other: Rows) -> Rows:
        """Return these rows and behind them others."""
        names, count = dict.fromkeys([*self.columns, *other.columns]), self.length + other.length
        both = {name: [*self.column(name, ABSENT), *other.column(name, ABSENT)] for name in names}
        return Rows(both, count)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return repr(list(self))

    def __getitem__(self, place: Any) -> Any:
        """Return a row, or of a slice some rows."""
        if isinstance(place, slice):
            return self.take(range(self.length)[place])
        return _OneRow(self.columns, range(self.length)[place])

    def __iter__(self) -> Iterator[Row]:
        names = list(self.columns)
        for values in zip(*self.columns.values(), strict=True):
            row = dict(zip(names, values, strict=True))
            yield {name: row[name] for name in row if row[name] is not ABSENT} if self.gaps else row


class _OneRow(Mapping[str, Any]):
    """A row that is looked up in columns."""

    __slots__ = ("columns", "place")

    def __init__(self, columns: Mapping[str, Sequence[Any]], place: int) -> None:
        self.columns, self.place = columns, place

    def __getitem__(self, name: str) -> Any:
        value = self.columns[name][self.place]
        if value is ABSENT:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, values in self.columns.items() if values[self.place] is not ABSENT)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # a row says something; to count is slow

    def __repr__(self) -> str:
        return repr(dict(self))


def column(rows: Sequence[Row], name: str) -> Sequence[Any]:
    """Return a column of rows that all have it."""
    return rows.columns[name] if isinstance(rows, Rows) and rows else [row[name] for row in rows]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do without the collector of cycles, which looks at all rows again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
