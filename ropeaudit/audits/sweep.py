"""A sweep: the cells of an audit, those of them that are done, and where the rest are measured.

Rows of an earlier run fill their cells wherever they stand. Each row is kept before it is handed on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ropeaudit.audits import cells, records
from ropeaudit.audits.cells import Key, Task
from ropeaudit.audits.records import Record
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.runtime import digests, run_metadata

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.workers import Result

_TASK_SECONDS, _TASK_CELLS = 0.25, 8  # a task holds no more than the larger of them: what a kill can lose
_MOST_CELLS = 1_000_000  # of a run: their rows take some GiB

_ALWAYS = tuple(name for name in records.CORE if name in records.IDENTITY)  # every file says these


class Sweep:
    """The cells of an audit, or of one shard of it, in the order of the rows. done: cell -> row."""

    def __init__(self, audit: Audit, shard: tuple[int, int] = (1, 1), jobs: int = 1) -> None:
        """Plan; captured files are read, synthetic q and k are not made.

        shard: which of how many, from 1. jobs: how many cases are in memory together.
        Raises: what `Audit.check` and `Case.outline` raise.
        """
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
        audit.check(jobs)
        self.audit, self.parts, self._shard = audit, audit.parts(), shard
        self.cells = list(cells.planned(audit, self.parts, shard))
        self.done: dict[int, Record] = {}
        self._reported: dict[int, Sequence[Sequence[str]]] = {}  # first cell of a unit -> findings

    def others(self) -> set[Key]:
        """Return the keys of the cells that other shards measure."""
        if self._shard[1] == 1:
            return set()
        whole = cells.planned(self.audit, self.parts)
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
            if places:
                planned = dict(zip(records.IDENTITY, self.cells[places[-1]].identity, strict=True))
                if any(getattr(row, name) != planned[name] for name in _ALWAYS):  # changed by hand
                    places = None
            if places:
                result[places.pop()] = replace(row, **planned)  # a file may not say all settings
            elif places is None and not (_of_files(key) and _without_version(key) in known):
                foreign.append(row)
        return result, foreign

    def take(self, rows: Sequence[Record]) -> str:
        """Take the rows of an earlier run; return what to say of those whose code had another digest."""
        self.done = self.placed(rows)[0]
        wanted = {_without_version(cell.key): cell for n, cell in enumerate(self.cells) if n not in self.done}
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

    def tasks(self, whole: bool = False) -> list[Task]:
        """Return what is to be measured, in order: all cells but those that are done, as factories x offsets.

        whole: a case's factories and offsets stay together, which is fastest and hands over its rows late.
        """
        lines: dict[tuple[int, int], list[int]] = {}  # what is left of a factory in a case
        for number, cell in enumerate(self.cells):
            if number not in self.done:
                lines.setdefault((cell.case, cell.factory), []).append(number)
        alike: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
        for (case, _), line in lines.items():
            offsets = tuple(self.cells[number].offset for number in line)
            alike.setdefault((case, offsets), []).append(line)
        results = []
        for (case, offsets), some in alike.items():
            most = len(some) * len(offsets)
            if not whole:
                most = max(_TASK_CELLS, int(_TASK_SECONDS / self.cells[some[0][0]].seconds))
            together, wide = max(1, most // len(offsets)), min(most, len(offsets))
            for first in range(0, len(some), together):
                for start in range(0, len(offsets), wide):
                    block = [line[start : start + wide] for line in some[first : first + together]]
                    numbers = tuple(number for line in block for number in line)
                    factories = tuple(self.cells[line[0]].factory for line in block)
                    seconds = sum(self.cells[number].seconds for number in numbers)
                    at = offsets[start : start + wide]
                    results.append(Task(self.parts[case][0], factories, at, numbers, seconds))
        return results

    def run(
        self,
        on_progress: Callable[[float], None] = lambda share: None,
        *,
        keep: Callable[[Record], None] | None = None,
        jobs: int = 1,
        scheduler: str | None = None,
        threads: int | None = None,
        on_plan: Callable[[Sequence[Task]], None] = lambda tasks: None,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> Iterator[Record]:
        """Measure what is left, in tasks; yield each row once it is kept.

        keep: keeps a row; without it, and in one process, a case is one task. scheduler: an address of Dask,
        or "local" for one of its own. threads: of this process, all processors by default. on_plan: gets the
        tasks before the first of them. on_note: gets what is worth a note while it runs.
        """
        away = jobs > 1 or scheduler is not None
        tasks = self.tasks(keep is None and not away)
        on_plan(tasks)
        here, there = ([], tasks) if away else (tasks, [])
        before, total = _seconds(here), _seconds([*here, *there])
        measured = cells.measured(
            self.audit, here, threads or run_metadata.threads(), lambda seconds: on_progress(seconds / total)
        )
        others = self._elsewhere(
            there, jobs, scheduler, lambda seconds: on_progress((before + seconds) / total), on_note
        )
        for cell, row in itertools.chain(measured, others):
            if not _belongs(row, self.cells[cell].key):
                raise _otherwise(f"{row.implementation} {row.dtype}", row.version)
            if keep is not None:
                keep(row)
            self.done[cell] = row
            yield row

    def results(self) -> list[Record]:
        """Return all rows that are done, in the planned order."""
        return [self.done[cell] for cell in sorted(self.done)]

    def findings(self) -> list[str]:
        """Return what was found out about the code that was called; the order is not that of finishing."""
        return self.audit.findings(self._reported[cell] for cell in sorted(self._reported))

    def _elsewhere(
        self,
        tasks: Sequence[Task],
        jobs: int,
        scheduler: str | None,
        on_seconds: Callable[[float], None],
        on_note: Callable[[str], None],
    ) -> Iterator[tuple[int, Record]]:
        """Measure tasks in other processes."""
        if not tasks:
            return
        from ropeaudit.audits import workers

        audit, seconds = self.audit, 0.0
        loaded = workers.loaded_versions(audit)
        units = cells.units(tasks, jobs)

        def listen() -> None:
            on_seconds(seconds)

        if scheduler is not None:
            road = workers.on_dask(audit, units, scheduler, jobs, listen, on_note)
        else:
            road = workers.processes(audit, units, jobs, listen)
        with contextlib.closing(road) as finished:  # type: ignore[type-var]
            for unit, result in finished:
                if isinstance(result, workers.Problem):
                    result.raised()
                numbers = [cell for task in unit for cell in task.cells]
                self._remember(unit, result, loaded)
                yield from zip(numbers, result.rows, strict=True)
                seconds += _seconds(unit)

    def _remember(self, unit: Sequence[Task], result: Result, loaded: Sequence[str]) -> None:
        """Take what a worker found out about code. Raises: BadInput where it has `loaded` another version."""
        for factory, here, there in zip(self.audit.factories(), loaded, result.loaded, strict=True):
            if here != there:
                raise _otherwise(factory.name, there)
        self._reported[unit[0].cells[0]] = [*result.findings]


def _belongs(row: Record, planned: Key) -> bool:
    """Return whether a row is that of a planned cell; a call of own code may have imported more files."""
    key = row.key()
    if _of_files(key) and _of_files(planned):
        return _without_version(key) == _without_version(planned)
    return key == planned


def _of_files(key: Key) -> bool:
    return key[1].startswith(digests.MARK)


def _without_version(key: Key) -> tuple[str, float]:
    return key[0], key[2]


def _otherwise(name: str, version: str) -> BadInput:
    return BadInput(
        f"a worker did {name} with version {version}, other than planned; "
        "it must have this version of ropeaudit and see the same files"
    )


def _seconds(tasks: Iterable[Task]) -> float:
    return sum(task.seconds for task in tasks)
