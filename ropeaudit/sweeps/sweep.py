"""A sweep: the cells of an audit planned before anything is measured, and cut into tasks.

A cell is a case x maker x offset, known by what was asked for (`records.IDENTITY`), not by its place: rows of
an earlier run fill their cells wherever they stand. The bits of a row do not depend on what is measured with
it: cells may be measured in any order and company. They share q, k and the reference within a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ropeaudit import masks, records
from ropeaudit.audit import Audit
from ropeaudit.cases import Case
from ropeaudit.errors import UsageError
from ropeaudit.recording import identity
from ropeaudit.records import Record

# A rough cell: seconds of one core, by which work is shared out and guessed; they change no result.
CELL_SECONDS, SCORE_SECONDS = 2e-3, 2e-8
_TASK_SECONDS, _TASK_CELLS = 0.25, 8  # a task holds no more than the larger of them: what a kill can lose
_UNIT_SECONDS, _UNITS_PER_JOB = 0.25, 8  # small tasks go to a worker together


class Cell(NamedTuple):
    """A case, a maker and an offset.

    case, maker: places in `Audit.parts` and `Audit.makers`; scores: how many it forms.
    """

    case: int
    maker: int
    offset: int
    identity: tuple[Any, ...]
    scores: int

    @property
    def seconds(self) -> float:
        """A rough guess of one core's time."""
        return CELL_SECONDS + SCORE_SECONDS * self.scores


@dataclass(frozen=True, slots=True)
class Task:
    """Some makers at some offsets of a case, measured together. cells: their places in the plan, in order."""

    case: Case
    makers: tuple[int, ...]
    offsets: tuple[int, ...]
    cells: tuple[int, ...]
    seconds: float


class Sweep:
    """The cells of an audit, or of one shard of it, in the order of the rows."""

    def __init__(self, audit: Audit, shard: tuple[int, int] = (1, 1), jobs: int = 1) -> None:
        """Plan; captured files are read, synthetic q and k are not made.

        shard: which of how many, from 1. jobs: how many cases are in memory together.
        Raises: what `Audit.check` and `Case.outline` raise.
        """
        self.audit = audit
        offsets, self._parts = audit.check(jobs), audit.parts()
        every = list(_cells(audit, self._parts, offsets))
        self.cells = _shard(every, *shard)
        self.others: set[tuple[Any, ...]] = set()  # the identities of other shards' cells
        if shard[1] > 1:
            self.others = {cell.identity for cell in every} - {cell.identity for cell in self.cells}

    def placed(self, rows: Iterable[Record]) -> tuple[dict[int, Record], list[Record]]:
        """Return cell -> row, and the rows of no cell; equal cells take one each, one too many is dropped."""
        open_cells: dict[tuple[Any, ...], list[int]] = {}
        for number in range(len(self.cells) - 1, -1, -1):
            open_cells.setdefault(self.cells[number].identity, []).append(number)
        found, foreign = {}, []
        for row in rows:
            places = open_cells.get(row.identity())
            if places:
                found[places.pop()] = row
            elif places is None:
                foreign.append(row)
        return found, foreign

    def tasks(self, done: Mapping[int, Any], whole: bool = False) -> list[Task]:
        """Return what is to be measured, in order: all cells but those in `done`.

        whole: a case's makers and offsets stay together, which is fastest and hands over its rows late.
        """
        by_case: dict[int, dict[int, list[int]]] = {}
        for number, cell in enumerate(self.cells):
            if number not in done:
                by_case.setdefault(cell.case, {}).setdefault(cell.maker, []).append(number)
        return [task for makers in by_case.values() for task in self._case_tasks(makers, whole)]

    def _case_tasks(self, makers: Mapping[int, list[int]], whole: bool) -> Iterator[Task]:
        """Cut the cells of a case, maker -> cells, into rectangles of makers x offsets."""
        alike: dict[tuple[int, ...], list[list[int]]] = {}
        for cells in makers.values():
            alike.setdefault(tuple(self.cells[number].offset for number in cells), []).append(cells)
        for offsets, lines in alike.items():
            most = len(lines) * len(offsets)
            if not whole:
                most = max(_TASK_CELLS, int(_TASK_SECONDS / self.cells[lines[0][0]].seconds))
            together, wide = max(1, most // len(offsets)), min(most, len(offsets))
            for first in range(0, len(lines), together):
                for start in range(0, len(offsets), wide):
                    yield self._task([line[start : start + wide] for line in lines[first : first + together]])

    def _task(self, lines: Sequence[Sequence[int]]) -> Task:
        cells = [self.cells[number] for line in lines for number in line]
        return Task(
            self._parts[cells[0].case][0],
            tuple(self.cells[line[0]].maker for line in lines),
            tuple(self.cells[number].offset for number in lines[0]),
            tuple(number for line in lines for number in line),
            sum(cell.seconds for cell in cells),
        )


def measured(
    audit: Audit,
    tasks: Iterable[Task],
    threads: int,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Iterator[tuple[int, Record]]:
    """Yield the cells of the tasks and their rows. progress hears how much of the guessed seconds is done."""
    makers, before = audit.makers(), 0.0
    for task in tasks:

        def hear(share: float, start: float = before, size: float = task.seconds) -> None:
            progress(start + share * size)

        some = [makers[number] for number in task.makers]
        rows = audit.measure(task.case, some, task.offsets, threads, hear)
        yield from zip(task.cells, rows, strict=True)
        before += task.seconds


def units(tasks: Sequence[Task], jobs: int) -> list[tuple[Task, ...]]:
    """Return the tasks in order, small ones together: what is handed to a worker at once."""
    whole = sum(task.seconds for task in tasks)
    enough = min(_UNIT_SECONDS, whole / (_UNITS_PER_JOB * jobs))
    found: list[tuple[Task, ...]] = []
    open_unit: list[Task] = []
    for task in tasks:
        open_unit.append(task)
        if sum(one.seconds for one in open_unit) >= enough:
            found.append(tuple(open_unit))
            open_unit = []
    return [*found, tuple(open_unit)] if open_unit else found


def _cells(audit: Audit, parts: Sequence[tuple[Case, list[int]]], offsets: Sequence[int]) -> Iterator[Cell]:
    """Yield all cells, in the order in which `Audit.run` yields their rows."""
    makers, place = audit.makers(), records.IDENTITY.index("offset")
    for number, (case, some) in enumerate(parts):
        sizes, setting = case.outline()
        scores = case.sample or masks.count(case.mask, sizes.seq_len) * sizes.heads
        axes = case.position_axes(setting)
        at = {offset: case.setting_at(setting, sizes.seq_len, offset) for offset in offsets}
        for index in some:
            maker = makers[index]
            known: dict[Any, tuple[Any, ...]] = {}
            for offset in offsets:
                if at[offset] not in known:
                    subject = maker.make(at[offset], axes)
                    asked = identity(case, sizes, at[offset], subject, 0, audit.attention, audit.tolerance)
                    known[at[offset]] = tuple(asked[name] for name in records.IDENTITY)
                base = known[at[offset]]
                yield Cell(number, index, offset, (*base[:place], offset, *base[place + 1 :]), scores)


def _shard(cells: list[Cell], number: int, count: int) -> list[Cell]:
    """Return shard `number` of `count`: neighbours, as much work as in every other, so far as can be guessed.

    Shards in order hold the cells in order, each of them once.
    """
    if not 1 <= number <= count:
        raise UsageError(f"--shard {number}/{count} is not one of {count}; try --shard 1/{max(count, 1)}")
    whole, before, found = sum(cell.seconds for cell in cells), 0.0, []
    for cell in cells:
        middle = before + cell.seconds / 2
        if min(count, int(middle / whole * count) + 1) == number:
            found.append(cell)
        before += cell.seconds
    return found
