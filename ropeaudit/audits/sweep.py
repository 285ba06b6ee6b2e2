"""A sweep: the cells of an audit, those of them that are done, and where the rest are measured.

A cell is a case x factory x offset, known by what was requested (`Record.key`), not by its place. The bits of
a row do not depend on what is measured with it: cells may be measured in any order and company. They share q,
k and the reference within a task. Rows of an earlier run fill their cells wherever they stand. Each row is
kept before it is handed on.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits import records
from ropeaudit.audits.case_run import CaseRun, identity
from ropeaudit.audits.cases import Case, Outline, positions_fit
from ropeaudit.audits.records import Record, case_of
from ropeaudit.engine.plan import TILE_COLUMNS
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.inputs import masks
from ropeaudit.runtime import digests, doing, run_metadata

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit

_TASK_SECONDS, _TASK_CELLS = 0.25, 8  # a task holds no more than the larger of them: what a kill can lose
_MOST_CELLS = 1_000_000  # of a run: their rows take some GiB

_ALWAYS = tuple(name for name in records.CORE if name in records.IDENTITY)  # every file says these

Part: TypeAlias = tuple[Case, list[int]]  # a case, and the places of factories that are measured in it
Key: TypeAlias = tuple[str, str, float]  # of a row: its case, version and tolerance


class Cell(NamedTuple):
    """A case, a factory and an offset: what a row is of.

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


class Task(NamedTuple):
    """Neighbouring cells of a case, which are measured together: they share q, k and the reference.

    wanted: the factory and the offset of each. cells: of the plan.
    """

    case: Case
    wanted: tuple[tuple[int, int], ...]
    cells: tuple[int, ...]
    seconds: float


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
        self.cells = list(planned(audit, self.parts, shard))
        self.done: dict[int, Record] = {}
        self._reported: dict[int, Sequence[Sequence[str]]] = {}  # first cell of a task -> findings

    def others(self) -> set[Key]:
        """Return the keys of the cells that other shards measure."""
        if self._shard[1] == 1:
            return set()
        return {cell.key for cell in planned(self.audit, self.parts)} - {cell.key for cell in self.cells}

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
                wanted = dict(zip(records.IDENTITY, self.cells[places[-1]].identity, strict=True))
                if any(getattr(row, name) != wanted[name] for name in _ALWAYS):  # changed by hand
                    places = None
            if places:
                result[places.pop()] = replace(row, **wanted)  # a file may not say all settings
            elif places is None and not (_of_files(key) and _without_version(key) in known):
                foreign.append(row)
        return result, foreign

    def take(self, rows: Sequence[Record]) -> str:
        """Take the rows of an earlier run; return what to say of changed code."""
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
        """Return what is to be measured, in order: all cells but those that are done.

        whole: those of a case stay together, which is fastest and hands over its rows late.
        """
        left = [number for number in range(len(self.cells)) if number not in self.done]
        results = []
        for case, some in itertools.groupby(left, key=lambda number: self.cells[number].case):
            of_case = tuple(some)
            few = max(_TASK_CELLS, int(_TASK_SECONDS / self.cells[of_case[0]].seconds))
            most = len(of_case) if whole else few
            for start in range(0, len(of_case), most):
                numbers = of_case[start : start + most]
                cells = [self.cells[number] for number in numbers]
                wanted = tuple((cell.factory, cell.offset) for cell in cells)
                seconds = sum(cell.seconds for cell in cells)
                results.append(Task(self.parts[case][0], wanted, numbers, seconds))
        return results

    def run(
        self,
        on_progress: doing.Listener = lambda share: None,
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
        if away:
            rows = self._elsewhere(tasks, jobs, scheduler, on_note)
        else:
            rows = measured(self.audit, tasks, threads or run_metadata.threads())
        for cell, row in doing.each(rows, lambda: doing.told(on_progress)):
            key, wanted = row.key(), self.cells[cell].key
            if _of_files(key) and _of_files(wanted):  # a call of own code may have imported more files
                key, wanted = (key[0], "", key[2]), (wanted[0], "", wanted[2])
            if key != wanted:
                raise _otherwise(f"{row.implementation} {row.dtype}", row.version)
            if keep is not None:
                keep(row)
            self.done[cell] = row
            yield row

    def _elsewhere(
        self,
        tasks: Sequence[Task],
        jobs: int,
        scheduler: str | None,
        on_note: Callable[[str], None],
    ) -> Iterator[tuple[int, Record]]:
        """Measure tasks in other processes. Raises: BadInput if versions differ."""
        from ropeaudit.audits import workers

        audit, loaded = self.audit, workers.loaded_versions(self.audit)
        spec = replace(audit, cases=(Case(),), offsets=(0,))  # what a worker needs to know besides its task

        def crew(count: int) -> workers.Crew:
            if scheduler is None:
                return workers.Processes(jobs, count)
            return workers.Dask(scheduler, jobs, on_note)

        with contextlib.closing(workers.finished(spec, tasks, crew)) as results:
            for task, result in results:
                rows = result.checked().rows
                for factory, here, there in zip(audit.factories(), loaded, result.loaded, strict=True):
                    if here != there:
                        raise _otherwise(factory.name, there)
                self._reported[task.cells[0]] = result.findings
                yield from zip(task.cells, rows, strict=True)

    def results(self) -> list[Record]:
        """Return all rows that are done, in the planned order."""
        return [self.done[cell] for cell in sorted(self.done)]

    def findings(self) -> list[str]:
        """Return what was found out about called code, in the order of cells."""
        return self.audit.findings(self._reported[cell] for cell in sorted(self._reported))


def _of_files(key: Key) -> bool:
    return key[1].startswith(digests.MARK)


def _without_version(key: Key) -> tuple[str, float]:
    return key[0], key[2]


def _otherwise(name: str, version: str) -> BadInput:
    return BadInput(
        f"a worker did {name} with version {version}, other than planned; "
        "it must have this version of ropeaudit and see the same files"
    )


def planned(audit: Audit, parts: Sequence[Part], shard: tuple[int, int] = (1, 1)) -> Iterator[Cell]:
    """Yield the cells of a shard, in the order of the rows. parts: `Audit.parts`.

    A shard holds neighbours, as much work as every other so far as can be guessed; shards in order hold the
    cells in order, each of them once. The cells of other shards are not made.
    """
    factories, offsets, requested = audit.factories(), audit.offsets, (audit.attention, audit.tolerance)
    outlines, guesses = [case.outline() for case, _ in parts], list[dict[int, float]]()
    for (case, some), (sizes, setting) in zip(parts, outlines, strict=True):
        rest = case.sample, audit.attention is not None, len(some) * len(offsets), case.rerotate or 0
        by_stages = functools.partial(cell_seconds, sizes, setting.head_dim, case.mask)
        guesses.append({index: by_stages(factories[index].stages, *rest) for index in some})
    whole, before = sum(sum(one.values()) for one in guesses) * len(offsets), 0.0
    for number, (case, some) in enumerate(parts):
        sizes, setting = outlines[number]
        scores = case.sample or masks.count(case.mask, sizes.seq_len) * sizes.heads
        axes = case.position_axes(setting)
        for index in some:
            seconds, known = guesses[number][index], dict[Any, dict[str, Any]]()
            for offset in offsets[_of_shard(len(offsets), before, seconds, whole, shard)]:
                at = case.setting_at(setting, sizes.seq_len, offset)
                if at not in known or at.grid is not None:  # on a grid other columns depend on it too
                    known[at] = identity(case, sizes, at, factories[index].make(at, axes), offset, *requested)
                values = known[at] | {"offset": offset}
                values["case"] = case_of(values)
                key = values["case"], values["version"], values["tolerance"]
                yield Cell(number, index, offset, tuple(values.values()), key, scores, seconds)
            before += seconds * len(offsets)


def _of_shard(cells: int, before: float, seconds: float, whole: float, shard: tuple[int, int]) -> slice:
    """Return which of some equal cells a shard measures. before, whole: seconds of all cells."""
    number, count = shard

    def shard_of(cell: int) -> int:
        return min(count, int((before + seconds * (cell + 0.5)) / whole * count) + 1)

    return slice(*(bisect.bisect_left(range(cells), one, key=shard_of) for one in (number, number + 1)))


def measured(audit: Audit, tasks: Sequence[Task], threads: int) -> Iterator[tuple[int, Record]]:
    """Yield cells and their rows."""
    total, before = sum(task.seconds for task in tasks), 0.0
    for task in tasks:
        ends = before / total, (before + task.seconds) / total
        rows = doing.each(rows_of(audit, task, threads), functools.partial(doing.within, *ends))
        yield from zip(task.cells, rows, strict=True)
        before += task.seconds


def rows_of(audit: Audit, task: Task, threads: int) -> Iterator[Record]:
    """Yield the rows of a task."""
    factories, case, drawn = audit.factories(), task.case, 0.0
    if case.sample is not None:  # about which share of the task drawing it is
        (sizes, setting), scores = case.outline(), case.sample * len(task.cells)
        elements = (sizes.heads + sizes.kv_heads) * sizes.seq_len * setting.head_dim
        drawing = _GENERATED * elements + _CHOSEN * sizes.seq_len
        drawn = drawing / (drawing + _SAMPLED * setting.head_dim * scores)
    with doing.within(0.0, drawn):
        loaded, setting = case.load() if case.sample is None else case.draw()
    positions_fit(case.reached([*(offset for _, offset in task.wanted), *audit.anchors]), loaded.seq_len)
    run = CaseRun(case, loaded, setting, audit.attention, threads, audit.tolerance)
    rows = run.records([(factories[index], offset) for index, offset in task.wanted])
    yield from doing.each(rows, lambda: doing.within(drawn, 1.0))


START_SECONDS, CELL_SECONDS = 0.25, 1e-3
_SCORE, _ATTENTION = 1.4e-8, 5e-8  # seconds a score that is formed, those that a mask hides in a tile too
_ROTATED = 8e-9  # seconds an element of q and k
_STEP = 2e-8  # seconds a product that is added on its own, to a narrow accumulator
_SAMPLED = 3e-7  # seconds a dim of a sampled score: its table, its rotation, its reference
_TURN = 3e-9  # seconds an element of k that is rotated again
_GENERATED = 9e-9  # seconds an element of q and k
_CHOSEN = 4e-6  # seconds a position to sample among


def cell_seconds(
    sizes: Outline,
    head_dim: int,
    mask: masks.Mask,
    stages: Mapping[str, str],
    sample: int | None = None,
    attention: bool = False,
    cells: int = 1,
    turns: int = 0,
) -> float:
    """Return a guess of one core's time for a subject at an offset.

    stages: stage -> format name. cells: how many there are of the same q and k, which are generated once.
    turns: how many times its stored keys are rotated again.
    """
    elements = (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim
    each = CELL_SECONDS + _GENERATED * elements / cells
    if sample is not None:
        return each + _CHOSEN * sizes.seq_len / cells + (_SAMPLED + _TURN * turns) * head_dim * sample
    score, accumulate = _SCORE + _ATTENTION * attention, stages.get("accumulate")
    if accumulate and parse(accumulate).precision < FP32.precision:
        score += _STEP * head_dim * (1 + attention)  # its scores are formed twice
    each += _TURN * turns * sizes.kv_heads * sizes.seq_len * head_dim
    return each + _ROTATED * elements + score * sizes.heads * _formed(mask, sizes.seq_len)


def _formed(mask: masks.Mask, seq_len: int) -> int:
    """Return about how many scores of a head the tiles hold that a mask does not hide whole."""
    if mask == "full":
        return seq_len**2
    half = seq_len * min(seq_len, TILE_COLUMNS) // 2  # what the tiles at one edge hide
    return min(masks.count("causal", seq_len) + half, masks.count(mask, seq_len) + 3 * half)
