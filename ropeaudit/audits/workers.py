"""Units of a sweep on several processes of this machine, and what such a process does.

A worker gets an audit without its cases and a unit, and returns the rows and what it found out about the
code. If it dies, another does it again.
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import TypeAlias

from ropeaudit import errors
from ropeaudit.audits import sweep
from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.audits.sweep import Task
from ropeaudit.errors import RopeAuditError
from ropeaudit.runtime import run_metadata, streams

Unit: TypeAlias = tuple[Task, ...]
_ISOLATED = "PYTHONSAFEPATH"  # as `python -P`
MOST_DEATHS = 3  # of a worker with the same unit
_LISTEN_SECONDS = 0.2  # between two looks for a Ctrl-C
_one_at_a_time = threading.Lock()  # the limit of BLAS threads is a matter of the whole process


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it comes home: the name of its class and what it says."""

    kind: str
    text: str

    def raised(self) -> None:
        """Raise it."""
        result = getattr(errors, self.kind, None)
        if self.kind == "MemoryError":
            raise MemoryError(self.text)
        raise result(self.text) if result else RuntimeError(f"{self.kind}: {self.text}")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a unit: its rows, and for each factory of the audit what was found out about its code.

    loaded: for each factory the version of own code as it was loaded there.
    """

    rows: list[Record]
    findings: list[tuple[str, ...]]
    loaded: list[str] = field(default_factory=list)


def loaded_versions(audit: Audit) -> list[str]:
    """Return the version of own code as it was loaded, for each factory; nothing for other subjects."""
    return [getattr(factory.code, "loaded_version", "") for factory in audit.factories()]


def result_of(audit: Audit, unit: Unit, threads: int) -> Result | Problem:
    """Measure a unit; this runs in a worker."""
    with _one_at_a_time:
        try:
            rows = [row for _, row in sweep.measured(audit, unit, threads)]
            findings = [tuple(factory.findings) for factory in audit.factories()]
            return Result(rows, findings, loaded_versions(audit))
        except errors.UnknownName as error:  # its arguments are no message
            return Problem("UsageError", error.typed)
        except RopeAuditError as error:
            return Problem(type(error).__name__, error.typed)
        except Exception as error:
            return Problem(type(error).__name__, str(error))


def without_cases(audit: Audit) -> Audit:
    """Return what a worker needs to know besides its unit."""
    return replace(audit, cases=(Case(),), offsets=(0,))


def home(unit: Unit, result: Result | Problem) -> list[tuple[int, Record]]:
    """Return the cells and rows of a unit. Raises: what the worker raised."""
    if isinstance(result, Problem):
        result.raised()
    assert isinstance(result, Result)  # noqa: S101 for mypy
    return list(zip([cell for task in unit for cell in task.cells], result.rows, strict=True))


def processes(
    audit: Audit, units: Sequence[Unit], jobs: int, listen: Callable[[], None]
) -> Iterator[tuple[Unit, Result | Problem]]:
    """Yield units and what came of them, as they finish. listen is called a few times a second.

    Raises: RopeAuditError if workers die again and again.
    """
    left, deaths = dict(enumerate(units)), dict.fromkeys(range(len(units)), 0)
    spec, threads = without_cases(audit), max(1, run_metadata.threads() // jobs)
    while left:
        with _pool(min(jobs, len(left))) as pool:
            submitted = left.items()
            with deaf_children():
                waiting = {pool.submit(result_of, spec, unit, threads): number for number, unit in submitted}
            started: set[int] = set()
            try:
                while waiting:
                    done, _ = futures.wait(waiting, _LISTEN_SECONDS, futures.FIRST_COMPLETED)
                    listen()
                    if _one_is_dead(pool):
                        _end(pool)
                    started |= {number for future, number in waiting.items() if future.running()}
                    for future in done:
                        number = waiting[future]
                        result = future.result()
                        del waiting[future]
                        yield left.pop(number), result
            except BrokenProcessPool:
                for number in started & set(left):
                    deaths[number] += 1
        if max((deaths[number] for number in left), default=0) >= MOST_DEATHS:
            raise RopeAuditError(
                f"a worker process died {MOST_DEATHS} times with the same work, perhaps for want of memory; "
                "rows that are done are kept: give fewer --jobs and --resume"
            )


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Start workers; whatever they are at, they are gone at the end."""
    context, isolated = multiprocessing.get_context("spawn"), _ISOLATED in os.environ
    with isolated_children():  # the one that tracks semaphores
        pool = ProcessPoolExecutor(jobs, context, _begin, (isolated,))
    try:
        yield pool
    finally:
        _end(pool)
        pool.shutdown(wait=True, cancel_futures=True)


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the workers, whatever they are at; their futures end too.

    The pool would wait for ever for the rest of a result that a worker did not live to write, for this
    process could still write it: so it lets go of its end of the pipe. (There is no public way to either.)
    """
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool._result_queue._writer.close()  # type: ignore[attr-defined]


def _one_is_dead(pool: ProcessPoolExecutor) -> bool:
    return bool(connection.wait([process.sentinel for process in list((pool._processes or {}).values())], 0))


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Start isolated processes that hear no Ctrl-C, not even while they import; this one hears it at the end.

    What they need is on this one's sys.path, which they get.
    """
    with isolated_children(), _no_interrupts():
        yield


@contextlib.contextmanager
def isolated_children() -> Iterator[None]:
    """Start processes that import nothing from the current folder: Python looks there first for `-c`."""
    before = os.environ.get(_ISOLATED)
    os.environ[_ISOLATED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ISOLATED]


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(isolated: bool) -> None:
    """Leave Ctrl-C to the parent, and do not outlive it. isolated: whether the parent was told to be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    streams.guard()
    if not isolated:
        os.environ.pop(_ISOLATED, None)  # for processes that own code starts

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
