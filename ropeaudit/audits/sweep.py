"""The audit that was requested, and the sweep over its cells, in this process or in workers.

A row does not depend on the cells that are measured with it.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits import arguments, judging, records
from ropeaudit.audits.arguments import DTYPES
from ropeaudit.audits.case_run import CaseRun, identity_columns
from ropeaudit.audits.cases import LIMIT, Case, Outline, check_memory, check_positions, distinct
from ropeaudit.audits.records import Record
from ropeaudit.engine.plan import TILE_COLUMNS, AttentionOptions
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError, one_line
from ropeaudit.inputs import masks
from ropeaudit.recipes import DEFAULT
from ropeaudit.rope.setting import RopeSetting, is_whole
from ropeaudit.runtime import digests, doing, run_metadata
from ropeaudit.subjects import emulated, factories
from ropeaudit.subjects.factories import SubjectFactory

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ropeaudit.audits.workers import Crew

_TASK_SECONDS, _TASK_CELLS = 0.25, 8  # of a task, whichever is more: a kill can lose them
_MOST_CELLS = 1_000_000  # of a run: their rows take some GiB
_MOST_COMPARED, _MOST_NAMED = 10_000, 3  # cells that a row is compared with, columns that are named
_SAMPLING_SHARE = 0.3  # share of the work on a sample
_MOST_DEATHS = 3  # of a worker with the same task
_one_at_a_time = threading.Lock()  # the process has one limit of BLAS threads

# settings that every file has
_IN_EVERY_FILE = ("version", *(name for name in records.CORE if name in records.IDENTITY))

Key: TypeAlias = tuple[str, str, float]  # of a row: its case, version and tolerance


@dataclass(frozen=True, slots=True)
class Audit:
    """Cases x recipes x dtypes x offsets, checked and ready to run.

    recipes: by default the usual ones, or none if there are implementations. bounded: whether the columns of
    bounds are computed, which takes as long as the rest of a small cell.
    """

    cases: Sequence[Case] = (Case(),)
    recipes: Sequence[str] | None = None
    dtypes: Sequence[str] = DTYPES
    offsets: Sequence[int] = (0, 1000)
    changes: Mapping[str, str] = field(default_factory=dict)
    attention: AttentionOptions | None = None
    implementations: Sequence[str] = ()
    backend: str = "numpy"
    device: str | None = None
    order: str | None = None
    tolerance: float = judging.TOLERANCE
    environments: Sequence[str] = ()
    bounded: bool = True
    _factories: list[SubjectFactory] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.recipes is None:
            object.__setattr__(self, "recipes", () if self.implementations else DEFAULT)
        if problem := next(self._problems(), None):
            raise UsageError(problem)
        object.__setattr__(self, "offsets", tuple(dict.fromkeys(int(offset) for offset in self.offsets)))
        object.__setattr__(self, "cases", distinct(self.cases))

    def _problems(self) -> Iterator[str]:
        """Yield the faults of the arguments; names come last."""
        for offset in self.offsets:
            if not is_whole(offset):
                yield f"offset {offset!r} is not a whole number of tokens"
            elif abs(offset) >= LIMIT:
                yield f"offset {offset} is past 2^53 - 1 = {LIMIT - 1}, the largest allowed"
        if not isinstance(self.tolerance, (int, float)) or not 0 <= self.tolerance < math.inf:
            yield f"tolerance {self.tolerance!r} is not a share from 0 up; try {judging.TOLERANCE}"
        for name in ("cases", "dtypes", "offsets"):
            if not getattr(self, name):
                yield f"there are no {name} to audit"
        if self.order is not None and not any(factories.is_own(name) for name in self.implementations):
            yield f"--order {self.order} says how your own code is called; give it with --impl"
        if self.environments and not self.implementations:
            yield "--under says what code is called under; add --impl, or leave it out"
        if not (self.recipes or self.implementations):
            yield "there are no recipes to audit"
        if not self.recipes and self.backend != "numpy":
            yield "--backend says what executes recipes; add --recipe, or leave it out"
        if self.device is not None and not self.implementations and self.backend == "numpy":
            where = f"--device {self.device} is where code is called or torch computes"
            yield f"{where}; add --impl or --backend torch, or leave it out"
        if "softmax" in self.changes and (self.attention is None or self.attention.softmax != "recipe"):
            yield "a changed softmax stage is not used; add --attention --softmax recipe"
        for name in ("grid", "rerotate"):
            used = self._any_case_has(name)
            if used and self.implementations:
                yield f"--{name} is of recipes; leave out --impl {self.implementations[0]}"
            if used and self.backend != "numpy":
                yield f"--{name} is computed by NumPy; leave out --backend {self.backend}"
        if self.attention and self._any_case_has("sample"):
            yield "--attention looks at whole rows; leave out --sample"
        for recipe in [one.recipe.recipe for one in self.factories() if one.recipe is not None]:
            if self._any_case_has("sample"):
                emulated.check_sampled(recipe)
            if self._any_case_has("rerotate"):
                emulated.check_turned(recipe)

    def _any_case_has(self, name: str) -> bool:
        return any(getattr(case, name) is not None for case in self.cases)

    def factories(self) -> list[SubjectFactory]:
        """Return the factories of recipes, then of code, in the order of the rows."""
        if not self._factories:
            factories = arguments.subjects(
                *(self.recipes, self.implementations, self.dtypes, self.changes, ()),
                *(self.device, self.order, self.environments),
                backend=self.backend,
                stores_keys=True,
            )
            self._factories.extend(factories)
        return self._factories

    def run(
        self, threads: int | None = None, progress: Callable[[float], None] | None = None
    ) -> Iterator[Record]:
        """Yield the records by case, recipe, dtype and offset. progress: takes the share done, 0 to 1."""
        return Sweep(self).run(progress or arguments.ignore_progress, threads=threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; factories are made again."""
        return Audit, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    @property
    def anchors(self) -> list[int]:
        """Offsets that are measured beside the requested ones."""
        return [self.attention.anchor] if self.attention else []


class Cell(NamedTuple):
    """A row to measure. factory: index in `Audit.factories`. seconds: guess of one core's time."""

    case: Case
    factory: int
    offset: int
    identity: tuple[Any, ...]  # values of `records.IDENTITY`
    key: Key
    scores: int
    seconds: float


Task: TypeAlias = dict[int, Cell]  # neighbouring cells of a case by their number


class Sweep:
    """The cells of an audit or of its shard, in the order of rows. done: number of the cell -> row."""

    def __init__(self, audit: Audit, shard: tuple[int, int] = (1, 1), jobs: int = 1) -> None:
        """Plan the cells; captured files are read, synthetic q and k are not made.

        shard: its number, from 1, and how many there are. jobs: how many cases are in memory at once.
        Raises: what `Case.check` and `Case.outline` raise.
        """
        number, count = shard
        if not 1 <= number <= count:
            raise UsageError(f"--shard {number}/{count} is not one of {count}; try --shard 1/{max(count, 1)}")
        lists = {
            "settings": len(audit.cases),
            "implementations": len(audit.factories()),
            "offsets": len(audit.offsets),
        }
        if (total := math.prod(lists.values())) > _MOST_CELLS * count:
            sizes = " x ".join(f"{size:,} {name}" for name, size in lists.items())
            remedy = f"shorten a list, or share them out: --shard 1/{-(-total // _MOST_CELLS)}"
            raise UsageError(f"{sizes} are {total:,} rows, and a run holds {_MOST_CELLS:,}; {remedy}")
        offsets = [*audit.offsets, *audit.anchors]
        check_memory(max(case.check(offsets) for case in audit.cases), jobs)
        self.audit, self.shard, self.cells = audit, shard, list(cells_of(audit, shard))
        self.done: dict[int, Record] = {}
        self._worker_findings: dict[int, Sequence[Sequence[str]]] = {}  # by a task's first cell

    def others(self) -> set[Key]:
        """Return the keys of the cells that other shards measure."""
        return {cell.key for cell in cells_of(self.audit)} - {cell.key for cell in self.cells}

    def take(self, path: str, rows: Iterable[Record]) -> str:
        """Take over the rows of an earlier run; return a note if code has changed. Raises: BadInput."""
        places: dict[tuple[str, float], list[int]] = {}
        for number, cell in enumerate(self.cells):
            places.setdefault((cell.key[0], cell.key[2]), []).append(number)
        done, foreign, outdated = dict[int, Record](), list[Record](), list[tuple[Record, Cell]]()
        lacking = list[Record]()
        for row in rows:
            numbers = places.get((row.case, row.tolerance), [])
            planned = self.cells[numbers[0]] if numbers else None
            wanted = dict(zip(records.IDENTITY, planned.identity, strict=True)) if planned else {}
            if planned and row.version != planned.key[1] and _are_digests(row, planned):
                outdated.append((row, planned))
            elif planned and all(getattr(row, name) == wanted[name] for name in _IN_EVERY_FILE):
                done |= dict.fromkeys(numbers, replace(row, **wanted))  # a file may lack settings
                recipe = self.audit.factories()[planned.factory].recipe
                has_bounds = recipe and not recipe.recipe.keys and planned.case.rerotate is None
                if has_bounds and not row.refused and row.predicted_rms is None:
                    lacking.append(row)
            else:
                foreign.append(row)
        if foreign:
            raise BadInput(
                f"{path!r} holds {len(foreign)} rows of another sweep, such as "
                f"{records.row_label(foreign[0])}, {self._differences(foreign[0])}; ask for them too, or "
                "give another -o"
            )
        if lacking and self.audit.bounded:
            raise BadInput(
                f"{path!r} holds {len(lacking)} rows without bounds, such as "
                f"{records.row_label(lacking[0])}; leave out their columns, or give another -o"
            )
        self.done = done
        left = {cell.key for cell in self.left()}
        repeated = [(row, cell.key[1]) for row, cell in outdated if cell.key in left]
        if not repeated:
            return ""
        such = f"{len(repeated)} rows there, such as {records.row_label(repeated[0][0])}"
        return f"code of another digest measured {such}, now {repeated[0][1]}: measured again"

    def _differences(self, row: Record) -> str:
        """Return how a row differs from the most similar cell among the first ones, in words."""
        names = [name for name in records.IDENTITY if name not in ("schema", "case")]

        def differing(cell: Cell) -> list[str]:
            values = dict(zip(records.IDENTITY, cell.identity, strict=True))
            differ = [name for name in names if getattr(row, name) != values[name]]
            return [f"{name} {getattr(row, name)} and not {values[name]}" for name in differ]

        least = min(map(differing, self.cells[:_MOST_COMPARED]), key=len, default=[])
        return f"with {', '.join(least[:_MOST_NAMED])}" if least else "which was changed by hand"

    def left(self) -> list[Cell]:
        """Return the cells that are not done."""
        return [cell for number, cell in enumerate(self.cells) if number not in self.done]

    def tasks(self, whole: bool = False) -> list[Task]:
        """Return the cells that are not done in tasks. whole: one per case, which is fastest."""
        left = [(number, cell) for number, cell in enumerate(self.cells) if number not in self.done]
        tasks = list[Task]()
        for _, group in itertools.groupby(left, key=lambda numbered: id(numbered[1].case)):
            of_case = list(group)
            few = max(_TASK_CELLS, int(_TASK_SECONDS / of_case[0][1].seconds))
            most = len(of_case) if whole else few
            tasks += [dict(of_case[start : start + most]) for start in range(0, len(of_case), most)]
        return tasks

    def run(
        self,
        on_progress: doing.Listener = arguments.ignore_progress,
        *,
        keep: Callable[[Record], None] | None = None,
        threads: int | None = None,
        crew: Callable[[int], Crew] | None = None,
    ) -> Iterator[Record]:
        """Measure the cells that are not done; yield each row once `keep` has stored it.

        threads: of this process. crew: starts workers for a number of tasks, to measure in its place.
        """
        tasks = self.tasks(keep is None and crew is None)
        here = functools.partial(self._measured_here, tasks, threads or run_metadata.threads())
        rows = self._measured_by_workers(tasks, crew) if crew else here()
        for number, row in doing.reported(rows, on_progress):
            cell = self.cells[number]
            if row.version != cell.key[1] and not _are_digests(row, cell):
                raise _another_version(f"{row.implementation} {row.dtype}", row.version)
            if keep is not None:
                keep(row)
            self.done[number] = row
            yield row

    def _measured_here(self, tasks: Sequence[Task], threads: int) -> Generator[tuple[int, Record]]:
        total, before = sum(map(seconds_of, tasks)), 0.0
        for task in tasks:
            with doing.within(before / total, (before + seconds_of(task)) / total):
                yield from zip(task, rows_of(self.audit, list(task.values()), threads), strict=True)
            before += seconds_of(task)

    def _measured_by_workers(
        self,
        tasks: Sequence[Task],
        crew: Callable[[int], Crew],
    ) -> Generator[tuple[int, Record]]:
        """Measure tasks in other processes. Raises: BadInput if they have other versions of the code."""
        audit = replace(self.audit, cases=(Case(),), offsets=(0,))  # all but the cells, which the tasks have
        versions = _versions_of_code(self.audit)
        with contextlib.closing(completed_tasks(audit, tasks, crew)) as results:
            for task, result in results:
                for factory, here, there in zip(
                    self.audit.factories(), versions, result.versions, strict=True
                ):
                    if here != there:
                        raise _another_version(factory.name, there)
                self._worker_findings[min(task)] = result.findings
                yield from zip(task, result.rows, strict=True)

    def results(self) -> list[Record]:
        """Return all rows that are done, in the planned order."""
        return [self.done[number] for number in sorted(self.done)]

    def findings(self) -> list[str]:
        """Return the findings about called code, each once, by factory, then by cell."""
        here = [factory.findings for factory in self.audit.factories()]
        elsewhere = (findings for _, findings in sorted(self._worker_findings.items()))
        by_factory = zip(here, *elsewhere, strict=True)
        return list(dict.fromkeys(text for every in by_factory for texts in every for text in texts))


def seconds_of(task: Task) -> float:
    """Return a guess of one core's time for a task."""
    return sum(cell.seconds for cell in task.values())


def _are_digests(row: Record, cell: Cell) -> bool:
    """Return whether both versions are digests of files: calls may import more files."""
    return row.version.startswith(digests.MARK) and cell.key[1].startswith(digests.MARK)


def _another_version(name: str, version: str) -> BadInput:
    return BadInput(
        f"a worker did {name} with version {version}, other than planned; "
        "it must have this version of ropeaudit and see the same files"
    )


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a worker measured, or the error that ended it.

    findings: of each factory, how its code is called. versions: of each factory, that of the loaded code.
    """

    rows: Sequence[Record] = ()
    findings: Sequence[Sequence[str]] = ()
    versions: Sequence[str] = ()
    error: Exception | None = None


def _versions_of_code(audit: Audit) -> list[str]:
    """Return the version of each factory's code, empty for a recipe."""
    return [factory.code.loaded_version if factory.code else "" for factory in audit.factories()]


def measure_task(audit: Audit, threads: int | None, task: Task) -> TaskResult:
    """Measure a task in a worker. threads: None for as many as Dask gave the worker."""
    if threads is None:
        from distributed import get_worker

        threads = get_worker().state.nthreads
    with _one_at_a_time:
        try:
            rows = list(rows_of(audit, list(task.values()), threads))
            findings = [tuple(factory.findings) for factory in audit.factories()]
            return TaskResult(rows, findings, _versions_of_code(audit))
        except UnknownName as error:  # which cannot be pickled
            return TaskResult(error=UsageError(error.typed))
        except (RopeAuditError, MemoryError) as error:
            return TaskResult(error=error)
        except Exception as error:
            return TaskResult(error=RuntimeError(one_line(error)))


def completed_tasks(
    audit: Audit,
    tasks: Sequence[Task],
    crew: Callable[[int], Crew],
) -> Generator[tuple[Task, TaskResult]]:
    """Measure tasks in workers; yield each task with its result as soon as it is done.

    crew: starts the workers of so many tasks. Raises: what a task raised; RopeAuditError if workers die
    again and again.
    """
    import concurrent.futures as futures  # in-function: it loads logging
    from concurrent.futures.process import BrokenProcessPool

    def failed(future: Future[TaskResult]) -> bool:
        return future.cancelled() or future.exception() is not None

    left, deaths = dict(enumerate(tasks)), Counter[int]()
    total, done = sum(map(seconds_of, tasks)), 0.0
    while left:
        started = set[int]()
        with crew(len(left)) as workers, contextlib.suppress(BrokenProcessPool):
            measure = functools.partial(measure_task, audit, workers.threads)
            submit = workers.executor.submit
            with workers.submitting():
                waiting = {submit(measure, task): number for number, task in left.items()}
            while waiting:
                doing.step(done / total)
                ready, _ = futures.wait(waiting, workers.pause, futures.FIRST_COMPLETED)
                workers.look(bool(ready))
                started |= {number for future, number in waiting.items() if future.running()}
                for future in sorted(ready, key=failed):  # what is done is not lost with what is not
                    number = waiting.pop(future)
                    with workers.submitting():
                        result = future.result()
                    if result.error is not None:
                        raise result.error
                    done += seconds_of(left[number])
                    yield left.pop(number), result
        deaths.update(started & set(left))
        if max((deaths[number] for number in left), default=0) >= _MOST_DEATHS:
            raise RopeAuditError(
                f"a worker process died {_MOST_DEATHS} times with the same work, perhaps for want of memory; "
                "rows that are done are kept: give fewer --jobs and --resume"
            )


def cells_of(audit: Audit, shard: tuple[int, int] = (1, 1)) -> Iterator[Cell]:
    """Yield the cells of a shard, in order; all shards have about the same work."""
    factories, offsets = audit.factories(), audit.offsets
    parts = []  # a case, its sizes and setting, a factory's place, the seconds of an offset
    for requested in audit.cases:
        for case, indices in arguments.split_by_layout(requested, factories):
            sizes, setting = case.outline()
            count = len(indices) * len(offsets)
            for index in indices:
                work = factories[index].stages, audit.attention is not None
                seconds = cell_seconds(case, sizes, setting.head_dim, *work, count)
                parts.append((case, sizes, setting, index, seconds))
    total, before = sum(seconds for *_, seconds in parts) * len(offsets), 0.0
    for case, sizes, setting, index, seconds in parts:
        scores = case.sample or masks.count(case.mask, sizes.seq_len) * sizes.heads
        axes, columns = case.position_axes(setting), dict[RopeSetting, Callable[[int], dict[str, Any]]]()
        for offset in offsets[_slice_of_shard(len(offsets), before, seconds, total, shard)]:
            at = case.setting_at(setting, sizes.seq_len, offset)
            if at not in columns:
                subject = factories[index].make(at, axes)
                columns[at] = identity_columns(case, sizes, at, subject, audit.attention, audit.tolerance)
            values = columns[at](offset)
            key = values["case"], values["version"], values["tolerance"]
            yield Cell(case, index, offset, tuple(values.values()), key, scores, seconds)
        before += seconds * len(offsets)


def _slice_of_shard(
    cells: int,
    before: float,
    seconds: float,
    total: float,
    shard: tuple[int, int],
) -> slice:
    """Return which of equal cells a shard measures. before, total: seconds of cells before, and of all."""
    number, count = shard

    def shard_of(cell: int) -> int:
        return min(count, int((before + seconds * (cell + 0.5)) / total * count) + 1)

    return slice(*(bisect.bisect_left(range(cells), end, key=shard_of) for end in (number, number + 1)))


def rows_of(audit: Audit, cells: Sequence[Cell], threads: int) -> Iterator[Record]:
    """Measure cells of one case; yield their rows."""
    factories, case = audit.factories(), cells[0].case
    sampling = 0.0 if case.sample is None else _SAMPLING_SHARE
    with doing.within(0.0, sampling):
        loaded, setting = case.load() if case.sample is None else case.load_sample()
    check_positions(case.rotated_offsets([*(cell.offset for cell in cells), *audit.anchors]), loaded.seq_len)
    run = CaseRun(case, loaded, setting, audit.attention, threads, audit.tolerance, audit.bounded)
    with doing.within(sampling, 1.0):
        yield from run.records([(factories[cell.factory], cell.offset) for cell in cells])


START_SECONDS, CELL_SECONDS = 0.25, 1e-3
_SCORE, _ATTENTION = 1.4e-8, 5e-8  # seconds a score, hidden or not
_ROTATED, _GENERATED = 8e-9, 9e-9  # seconds an element of q and k
_STEP = 2e-8  # seconds a product that a narrow accumulator adds
_SAMPLED = 3e-7  # seconds a dim of a sampled score
_TURN = 3e-9  # seconds an element of k that is rotated again
_CHOSEN = 4e-6  # seconds a position to sample among


def cell_seconds(
    case: Case,
    sizes: Outline,
    head_dim: int,
    stages: Mapping[str, str],
    attention: bool = False,
    cells: int = 1,
) -> float:
    """Return a guess of one core's time for a cell. cells: how many have the same q and k."""
    elements, turns = (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim, case.rerotate or 0
    each = CELL_SECONDS + _GENERATED * elements / cells
    if case.sample is not None:
        of_dim = (_SAMPLED + _TURN * turns) * case.sample
        return each + _CHOSEN * sizes.seq_len / cells + of_dim * head_dim
    score, accumulate = _SCORE + _ATTENTION * attention, stages.get("accumulate")
    if accumulate and parse(accumulate).precision < FP32.precision:
        score += _STEP * head_dim * (1 + attention)  # its scores are formed twice
    each += _TURN * turns * sizes.kv_heads * sizes.seq_len * head_dim
    seq_len, formed = sizes.seq_len, sizes.seq_len**2  # scores of a head in tiles not masked whole, about
    if case.mask != "full":
        half = seq_len * min(seq_len, TILE_COLUMNS) // 2  # what the tiles at one edge hide
        formed = min(masks.count("causal", seq_len) + half, masks.count(case.mask, seq_len) + 3 * half)
    return each + _ROTATED * elements + score * sizes.heads * formed
