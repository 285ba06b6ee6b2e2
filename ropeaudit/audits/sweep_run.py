"""One run of a sweep: in tasks, on one process or several; each row is stored before it is handed on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ropeaudit.audits import sweep as sweeps
from ropeaudit.audits.records import Record
from ropeaudit.audits.sweep import Sweep, Task
from ropeaudit.errors import BadInput
from ropeaudit.runtime import run_metadata


class Store(Protocol):
    """Where rows are kept as they finish. rows: those of earlier runs."""

    rows: list[Record]

    def append(self, row: Record) -> None:
        """Keep a row."""


def _otherwise(name: str, version: str) -> BadInput:
    return BadInput(
        f"a worker did {name} with version {version}, other than planned; "
        "it must have this version of ropeaudit and see the same files"
    )


class SweepRun:
    """One run of a sweep. done: cell -> row, those of earlier runs included.

    scheduler: the address of a Dask scheduler, "local" for one of its own, None for none.
    on_plan: gets the tasks before the first of them. on_note: gets what is worth a note while it runs.
    """

    def __init__(
        self,
        sweep: Sweep,
        jobs: int = 1,
        scheduler: str | None = None,
        store: Store | None = None,
        on_plan: Callable[[Sequence[Task]], None] = lambda tasks: None,
        on_note: Callable[[str], None] = lambda text: None,
        threads: int | None = None,
        isolated: bool = False,
    ) -> None:
        """Take the rows that are there.

        threads: of this process; all processors by default. isolated: whether each of many implementations
        (`Audit.apart`) has a process of its own.
        """
        self.apart = set(sweep.audit.apart()) if isolated and scheduler is None else set[str]()
        self.threads = threads or run_metadata.threads()
        self.sweep, self.jobs, self.scheduler, self.store = sweep, jobs, scheduler, store
        self.on_plan, self.on_note = on_plan, on_note
        self.done: dict[int, Record] = sweep.placed(store.rows)[0] if store else {}
        if store and (text := sweep.outdated(store.rows, self.done)):
            self.on_note(text)
        self.before = len(self.done)
        self.reported: dict[int, Sequence[Sequence[str]]] = {}  # first cell of a unit -> findings

    def rows(self, on_progress: Callable[[float], None] = lambda share: None) -> Iterator[Record]:
        """Measure what is left; yield each row once it is stored."""
        distributed = self.jobs > 1 or self.scheduler is not None
        whole = self.store is None and not distributed
        tasks = self.sweep.tasks(self.done, whole, self.apart)
        self.on_plan(tasks)
        together, apart = [task for task in tasks if not task.alone], [task for task in tasks if task.alone]
        before, total = sum(task.seconds for task in together), sum(task.seconds for task in tasks)
        measured = (self._distributed if distributed else self._here)(
            together, lambda seconds: on_progress(seconds / total)
        )
        alone = self._alone(apart, lambda seconds: on_progress((before + seconds) / total))
        for cell, row in itertools.chain(measured, alone):
            self._keep(cell, row)
            yield row

    def results(self) -> list[Record]:
        """Return all rows that are done, in the planned order."""
        return [self.done[cell] for cell in sorted(self.done)]

    def findings(self) -> list[str]:
        """Return what was found out about the code that was called; the order is not that of finishing."""
        return self.sweep.audit.findings(self.reported[cell] for cell in sorted(self.reported))

    def _keep(self, cell: int, row: Record) -> None:
        if not sweeps.belongs(row, self.sweep.cells[cell].key):
            raise _otherwise(f"{row.implementation} {row.dtype}", row.version)
        if self.store is not None:
            self.store.append(row)
        self.done[cell] = row

    def _here(
        self, tasks: Sequence[Task], on_seconds: Callable[[float], None]
    ) -> Iterable[tuple[int, Record]]:
        return sweeps.measured(self.sweep.audit, tasks, self.threads, on_seconds)

    def _alone(
        self, tasks: Sequence[Task], on_seconds: Callable[[float], None]
    ) -> Iterator[tuple[int, Record]]:
        """Measure each implementation in a process of its own; one that fails is refused, with the reason."""
        if not tasks:
            return
        from ropeaudit.audits import workers  # in-function: most runs need none

        audit, finished_seconds = self.sweep.audit, 0.0
        every = audit.factories()
        finished = workers.alone(
            audit, sweeps.by_implementation(tasks), self.jobs, lambda: on_seconds(finished_seconds)
        )
        with contextlib.closing(finished):  # type: ignore[type-var]
            for unit, result in finished:
                if isinstance(result, workers.Problem):
                    yield from sweeps.refused(audit, unit, result.text)
                else:
                    first = next(n for n, factory in enumerate(every) if factory.name == unit[0].alone)
                    behind = len(every) - first - len(result.findings)
                    self.reported[unit[0].cells[0]] = [*[()] * first, *result.findings, *[()] * behind]
                    yield from workers.home(unit, result)
                finished_seconds += sum(task.seconds for task in unit)

    def _distributed(
        self, tasks: Sequence[Task], on_seconds: Callable[[float], None]
    ) -> Iterator[tuple[int, Record]]:
        if not tasks:
            return
        from ropeaudit.audits import dask_cluster, workers  # in-function: most runs need neither

        units = sweeps.units(tasks, self.jobs)
        finished_seconds = 0.0

        def listen() -> None:
            on_seconds(finished_seconds)

        audit = self.sweep.audit
        loaded = workers.loaded_versions(audit)
        finished = (
            dask_cluster.on_dask(audit, units, self.scheduler, self.jobs, listen, self.on_note)
            if self.scheduler is not None
            else workers.processes(audit, units, self.jobs, listen)
        )
        with contextlib.closing(finished):  # type: ignore[type-var]
            for unit, result in finished:
                rows = workers.home(unit, result)
                if isinstance(result, workers.Result):
                    for factory, here, there in zip(audit.factories(), loaded, result.loaded, strict=True):
                        if here != there:
                            raise _otherwise(factory.name, there)
                    self.reported[unit[0].cells[0]] = result.findings
                yield from rows
                finished_seconds += sum(task.seconds for task in unit)
