"""Rows of a report stored by column; a row is made when it is accessed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

Row = Mapping[str, Any]
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()  # the row has no such column
BLOCK = 4096  # rows that are read from a file at once


class Rows(Sequence[Row]):
    """Rows of a report.

    columns: name -> a value per row, ABSENT where that row has no such column.
    gaps: the columns that some row lacks.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        count: int,
        gaps: Collection[str] | None = None,
    ) -> None:
        """Store columns of `count` values each. gaps: found by search if None."""
        self.columns, self.length = columns, count
        incomplete = (name for name, values in columns.items() if ABSENT in values)
        self.gaps = frozenset(incomplete if gaps is None else gaps)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        """Return rows stored by column."""
        if isinstance(rows, cls):
            return rows
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        try:
            columns = zip(*map(itemgetter(*names), rows), strict=True) if len(names) > 1 else ()
            return cls(dict(zip(names, columns, strict=True)), len(rows), ())
        except (KeyError, ValueError):
            return cls({name: [row.get(name, ABSENT) for row in rows] for name in names}, len(rows))

    def column(self, name: str, default: Any = None) -> Sequence[Any]:
        """Return the values of a column, the default where a row has none."""
        values = self.columns.get(name)
        if values is None:
            return [default] * self.length
        if name not in self.gaps:
            return values
        return [default if value is ABSENT else value for value in values]

    def all_have(self, name: str) -> bool:
        """Return whether all rows have a column."""
        return not self.length or (name in self.columns and name not in self.gaps)

    def distinct(self, names: Sequence[str]) -> list[Row]:
        """Return each combination of values of these columns once, in order of appearance."""
        values = dict.fromkeys(zip(*(self.column(name) for name in names), strict=True))
        return [dict(zip(names, combination, strict=True)) for combination in values]

    def take(self, places: Sequence[int]) -> Rows:
        """Return the rows at these places."""
        columns = {name: [values[i] for i in places] for name, values in self.columns.items()}
        return Rows(columns, len(places), None if self.gaps else ())

    def __add__(self, other: Rows) -> Rows:
        """Return these rows, followed by others."""
        names, count = dict.fromkeys([*self.columns, *other.columns]), self.length + other.length
        both = {name: [*self.column(name, ABSENT), *other.column(name, ABSENT)] for name in names}
        return Rows(both, count)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return repr(list(self))

    def __getitem__(self, place: Any) -> Any:
        """Return a row, or the rows of a slice."""
        if isinstance(place, slice):
            return self.take(range(self.length)[place])
        return _RowView(self.columns, range(self.length)[place])

    def __iter__(self) -> Iterator[Row]:
        names = list(self.columns)
        for values in zip(*self.columns.values(), strict=True):
            row = dict(zip(names, values, strict=True))
            yield {name: row[name] for name in row if row[name] is not ABSENT} if self.gaps else row


class _RowView(Mapping[str, Any]):
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
        return True  # without counting the columns, which is slow

    def __repr__(self) -> str:
        return repr(dict(self))


def column(rows: Sequence[Row], name: str) -> Sequence[Any]:
    """Return the values of a column that all rows have."""
    return rows.columns[name] if isinstance(rows, Rows) and rows else [row[name] for row in rows]


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection in the block, which would traverse all rows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
