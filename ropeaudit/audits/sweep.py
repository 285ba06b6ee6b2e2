"""A sweep: the cells of an audit planned before anything is measured, and cut into tasks.

A cell is a case x factory x offset, known by what was requested (`Record.key`), not by its place: rows
of an earlier run fill their cells wherever they stand. The bits of a row do not depend on what is measured
with it: cells may be measured in any order and company. They share q, k and the reference within a task.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

from ropeaudit.audits import records
from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case, Outline
from ropeaudit.audits.guessing import cell_seconds
from ropeaudit.audits.identity import case_of
from ropeaudit.audits.recording import CellResult, identity, record
from ropeaudit.audits.records import Record
from ropeaudit.errors import UsageError
from ropeaudit.inputs import masks
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import digests
from ropeaudit.subjects import Raised

_TASK_SECONDS, _TASK_CELLS = 0.25, 8  # a task holds no more than the larger of them: what a kill can lose
_MOST_CELLS = 1_000_000  # of a run: their rows take some GiB
_UNIT_SECONDS, _UNITS_PER_JOB = 0.25, 8  # small tasks go to a worker together

_ALWAYS = tuple(name for name in records.CORE if name in records.IDENTITY)
Key: TypeAlias = tuple[str, str, float]  # of a row: its case, version and tolerance


class Cell(NamedTuple):
    """A case, a factory and an offset.

    case, factory: places in `Audit.parts` and `Audit.factories`; identity: values of `records.IDENTITY`; key:
    that of its row; scores: how many it forms; seconds: a guess of one core's time.
    """

    case: int
    factory: int
    offset: int
    identity: tuple[Any, ...]
    key: Key
    scores: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """Some factories at some offsets of a case, measured together. cells: their places in the plan.

    alone: the implementation that has a process of its own; empty where none has.
    """

    case: Case
    factories: tuple[int, ...]
    offsets: tuple[int, ...]
    cells: tuple[int, ...]
    seconds: float
    alone: str = ""


class Sweep:
    """The cells of an audit, or of one shard of it, in the order of the rows."""

    def __init__(self, audit: Audit, shard: tuple[int, int] = (1, 1), jobs: int = 1) -> None:
        """Plan; captured files are read, synthetic q and k are not made.

        shard: which of how many, from 1. jobs: how many cases are in memory together.
        Raises: what `Audit.check` and `Case.outline` raise.
        """
        self.audit = audit
        _not_too_many(audit, shard)
        offsets, self._parts = audit.check(jobs), audit.parts()
        self._offsets, self._shard = offsets, shard
        self.cells = list(_cells(audit, self._parts, offsets, shard))

    def others(self) -> set[Key]:
        """Return the keys of the cells that other shards measure."""
        if self._shard[1] == 1:
            return set()
        whole = _cells(self.audit, self._parts, self._offsets, (1, 1))
        return {cell.key for cell in whole} - {cell.key for cell in self.cells}

    def placed(self, rows: Iterable[Record]) -> tuple[dict[int, Record], list[Record]]:
        """Return cell -> row, and the rows of no cell; equal cells take one each, one too many is dropped.

        Rows of a cell that another state of its code gave are neither.
        """
        known = {_without_version(cell.key) for cell in self.cells if _of_files(cell.key)}
        open_cells: dict[Key, list[int]] = {}
        for number in range(len(self.cells) - 1, -1, -1):
            open_cells.setdefault(self.cells[number].key, []).append(number)
        result, foreign = {}, []
        for row in rows:
            key = row.key()
            places = open_cells.get(key)
            if places and not _agrees(row, self.cells[places[-1]]):  # changed by hand
                places = None
            if places:
                cell = places.pop()
                planned = dict(zip(records.IDENTITY, self.cells[cell].identity, strict=True))
                result[cell] = replace(row, **planned)  # a file may not say all settings
            elif places is None and not (_of_files(key) and _without_version(key) in known):
                foreign.append(row)
        return result, foreign

    def outdated(self, rows: Iterable[Record], done: Mapping[int, Any]) -> str:
        """Return what to say of rows whose code had another digest, and that are measured again."""
        wanted = {_without_version(cell.key): cell for n, cell in enumerate(self.cells) if n not in done}
        known = {cell.key for cell in self.cells}
        again = {_without_version(row.key()): row for row in rows if row.key() not in known}
        again = {key: row for key, row in again.items() if key in wanted}
        if not again:
            return ""
        key, row = next(iter(again.items()))
        more = "" if len(again) == 1 else f", such as {row.implementation} {row.dtype} at offset {row.offset}"
        return (
            f"{len(again)} row{'s' * (len(again) > 1)} there {'were' if len(again) > 1 else 'was'} measured "
            f"with code of another digest{more} ({row.version}, now {wanted[key].key[1]}): "
            "measured again"
        )

    def tasks(self, done: Mapping[int, Any], whole: bool = False, apart: Collection[str] = ()) -> list[Task]:
        """Return what is to be measured, in order: all cells but those in `done`.

        whole: a case's factories and offsets stay together, which is fastest and hands over its rows late.
        apart: implementations whose tasks hold nothing else.
        """
        by_case: dict[int, dict[int, list[int]]] = {}
        for number, cell in enumerate(self.cells):
            if number not in done:
                by_case.setdefault(cell.case, {}).setdefault(cell.factory, []).append(number)
        return [task for factories in by_case.values() for task in self._case_tasks(factories, whole, apart)]

    def _case_tasks(
        self, factories: Mapping[int, list[int]], whole: bool, apart: Collection[str]
    ) -> Iterator[Task]:
        """Cut the cells of a case, factory -> cells, into rectangles of factories x offsets."""
        alike: dict[tuple[str, tuple[int, ...]], list[list[int]]] = {}
        for index, cells in factories.items():
            name = self.audit.factories()[index].name
            offsets = tuple(self.cells[number].offset for number in cells)
            alike.setdefault((name if name in apart else "", offsets), []).append(cells)
        for (name, offsets), lines in alike.items():
            most = len(lines) * len(offsets)
            if not whole:
                most = max(_TASK_CELLS, int(_TASK_SECONDS / self.cells[lines[0][0]].seconds))
            together, wide = max(1, most // len(offsets)), min(most, len(offsets))
            for first in range(0, len(lines), together):
                for start in range(0, len(offsets), wide):
                    some = [line[start : start + wide] for line in lines[first : first + together]]
                    yield self._task(some, name)

    def _task(self, lines: Sequence[Sequence[int]], alone: str) -> Task:
        cells = [self.cells[number] for line in lines for number in line]
        return Task(
            self._parts[cells[0].case][0],
            tuple(self.cells[line[0]].factory for line in lines),
            tuple(self.cells[number].offset for number in lines[0]),
            tuple(number for line in lines for number in line),
            sum(cell.seconds for cell in cells),
            alone,
        )


def _agrees(row: Record, cell: Cell) -> bool:
    """Return whether a row says what its case stands for, as far as every file says it."""
    planned = dict(zip(records.IDENTITY, cell.identity, strict=True))
    return all(getattr(row, name) == planned[name] for name in _ALWAYS)


def belongs(row: Record, planned: Key) -> bool:
    """Return whether a row is that of a planned cell; a call of own code may have imported more files."""
    key = row.key()
    if _of_files(key) and _of_files(planned):
        return _without_version(key) == _without_version(planned)
    return key == planned


def _of_files(key: Key) -> bool:
    return key[1].startswith(digests.MARK)


def _without_version(key: Key) -> tuple[str, float]:
    return key[0], key[2]


def measured(
    audit: Audit,
    tasks: Iterable[Task],
    threads: int,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Iterator[tuple[int, Record]]:
    """Yield the cells of the tasks and their rows. progress gets how much of the guessed seconds is done."""
    factories, before = audit.factories(), 0.0
    for task in tasks:

        def on_progress(share: float, start: float = before, size: float = task.seconds) -> None:
            progress(start + share * size)

        some = [factories[number] for number in task.factories]
        rows = audit.measure(task.case, some, task.offsets, threads, on_progress)
        yield from zip(task.cells, rows, strict=True)
        before += task.seconds


def by_implementation(tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return the tasks of each implementation that has a process of its own, together."""
    together: dict[str, list[Task]] = {}
    for task in tasks:
        if task.alone:
            together.setdefault(task.alone, []).append(task)
    return [tuple(some) for some in together.values()]


def units(tasks: Sequence[Task], jobs: int) -> list[tuple[Task, ...]]:
    """Return the tasks in order, small ones together: what is handed to a worker at once."""
    whole = sum(task.seconds for task in tasks)
    enough = min(_UNIT_SECONDS, whole / (_UNITS_PER_JOB * jobs))
    results: list[tuple[Task, ...]] = []
    open_unit: list[Task] = []
    for task in tasks:
        open_unit.append(task)
        if sum(one.seconds for one in open_unit) >= enough:
            results.append(tuple(open_unit))
            open_unit = []
    return [*results, tuple(open_unit)] if open_unit else results


def refused(audit: Audit, tasks: Iterable[Task], reason: str) -> Iterator[tuple[int, Record]]:
    """Yield the cells of the tasks, and rows that say why none was measured."""
    factories, engine = audit.factories(), audit.measured_by().name
    for task in tasks:
        sizes, setting = task.case.outline()
        axes, cells = task.case.position_axes(setting), iter(task.cells)
        for index in task.factories:
            for offset in task.offsets:
                at = task.case.setting_at(setting, sizes.seq_len, offset)
                result = CellResult(factories[index].make(at, axes), offset, at, refused=Raised(reason))
                row = record(task.case, sizes, result, audit.attention, audit.tolerance, engine)
                yield next(cells), row


def _not_too_many(audit: Audit, shard: tuple[int, int]) -> None:
    """Raise UsageError for more cells than one run holds, or for a shard that there is not."""
    number, count = shard
    if not 1 <= number <= count:
        raise UsageError(f"--shard {number}/{count} is not one of {count}; try --shard 1/{max(count, 1)}")
    lists = {
        "settings": len(audit.cases),
        "implementations": len(audit.factories()),
        "offsets": len(audit.offsets),
    }
    whole = prod(lists.values())
    if whole > _MOST_CELLS * count:
        sizes = " x ".join(f"{size:,} {name}" for name, size in lists.items())
        raise UsageError(
            f"{sizes} are {whole:,} rows, and a run holds {_MOST_CELLS:,}; shorten a list, or share them "
            f"out: --shard 1/{-(-whole // _MOST_CELLS)}"
        )


def _cells(
    audit: Audit, parts: Sequence[tuple[Case, list[int]]], offsets: Sequence[int], shard: tuple[int, int]
) -> Iterator[Cell]:
    """Yield the cells of a shard, in the order in which `Audit.run` yields their rows.

    A shard holds neighbours, as much work as every other so far as can be guessed; shards in order hold the
    cells in order, each of them once. The cells of other shards are not made.
    """
    factories, engine = audit.factories(), audit.measured_by().name
    outlines = [case.outline() for case, _ in parts]
    scores = [
        case.sample or masks.count(case.mask, sizes.seq_len) * sizes.heads
        for (case, _), (sizes, _) in zip(parts, outlines, strict=True)
    ]
    seconds = [_guessed(audit, *part, *outline) for part, outline in zip(parts, outlines, strict=True)]
    whole = sum(sum(one.values()) for one in seconds) * len(offsets)
    before = 0.0
    for number, (case, some) in enumerate(parts):
        sizes, setting = outlines[number]
        axes = case.position_axes(setting)
        for index in some:
            first, last = (
                _first(len(offsets), before, seconds[number][index], whole, one, shard[1])
                for one in (shard[0], shard[0] + 1)
            )
            before += seconds[number][index] * len(offsets)
            known: dict[Any, dict[str, Any]] = {}
            for offset in offsets[first:last]:
                at = case.setting_at(setting, sizes.seq_len, offset)
                if at not in known or at.grid is not None:  # on a grid other columns depend on it too
                    subject = factories[index].make(at, axes)
                    chosen = audit.attention, audit.tolerance, engine
                    requested = identity(case, sizes, at, subject, offset, *chosen)
                    known[at] = {name: requested[name] for name in records.IDENTITY}
                values = {**known[at], "offset": offset}
                values["case"] = case_of(values)
                identified = tuple(values.values())
                key = values["case"], values["version"], values["tolerance"]
                yield Cell(number, index, offset, identified, key, scores[number], seconds[number][index])


def _guessed(
    audit: Audit, case: Case, some: Sequence[int], sizes: Outline, setting: RopeSetting
) -> dict[int, float]:
    """Return factory -> the guessed seconds of each of its cells in a case."""
    rest = case.sample, audit.attention is not None, len(some) * len(audit.offsets), case.rerotate or 0
    stages = {index: audit.factories()[index].stages for index in some}
    return {one: cell_seconds(sizes, setting.head_dim, case.mask, by, *rest) for one, by in stages.items()}


def _first(cells: int, before: float, seconds: float, whole: float, number: int, count: int) -> int:
    """Return the first of some equal cells whose shard is `number` or a later one. before: seconds."""

    def shard(cell: int) -> int:
        return min(count, int((before + seconds * (cell + 0.5)) / whole * count) + 1)

    return bisect.bisect_left(range(cells), number, key=shard) if number <= count else cells
