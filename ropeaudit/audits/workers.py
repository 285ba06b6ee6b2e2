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
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ropeaudit import errors
from ropeaudit.audits import cells
from ropeaudit.audits.cases import Case
from ropeaudit.audits.cells import Task
from ropeaudit.audits.records import Record
from ropeaudit.errors import RopeAuditError
from ropeaudit.runtime import run_metadata, streams

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit

Unit: TypeAlias = tuple[Task, ...]
_ISOLATED = "PYTHONSAFEPATH"  # as `python -P`
PATIENCE = 300.0  # seconds for an implementation in a process of its own
MOST_DEATHS = 3  # of a worker with the same unit
_LISTEN_SECONDS = 0.2  # between two looks for a Ctrl-C
_one_at_a_time = threading.Lock()  # the limit of BLAS threads is a matter of the whole process


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it comes home: the name of its class and what it says."""

    kind: str
    text: str

    def raised(self) -> NoReturn:
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
    return [factory.code.loaded_version if factory.code else "" for factory in audit.factories()]


def result_of(audit: Audit, unit: Unit, threads: int) -> Result | Problem:
    """Measure a unit; this runs in a worker."""
    with _one_at_a_time:
        try:
            rows = [row for _, row in cells.measured(audit, unit, threads)]
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
                    sentinels = [process.sentinel for process in list((pool._processes or {}).values())]
                    if connection.wait(sentinels, 0):  # one is dead
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


def alone(
    audit: Audit, units: Sequence[Unit], jobs: int, listen: Callable[[], None]
) -> Iterator[tuple[Unit, Result | Problem]]:
    """Yield units of one implementation each, and what came of them, each from a process of its own.

    A process that dies, or takes longer than `PATIENCE`, is a problem of its unit and of no other.
    """
    left, busy = deque(units), dict[Connection, tuple[SpawnProcess, Unit, float]]()
    threads = max(1, run_metadata.threads() // jobs)
    try:
        while left or busy:
            while left and len(busy) < jobs:
                unit = left.popleft()
                here, process = _started(*_by_itself(audit, unit), threads)
                busy[here] = process, unit, time.monotonic() + PATIENCE
            answered = connection.wait(list(busy), _LISTEN_SECONDS)
            listen()
            for here, (process, unit, end) in list(busy.items()):
                if here in answered or time.monotonic() > end:
                    late = Problem("RopeAuditError", f"took longer than {PATIENCE:g} s, and was ended")
                    yield unit, _answer(here, process) if here in answered else late
                    del busy[here]
                    _ended(here, process)
    finally:
        for here, (process, _, _) in busy.items():
            _ended(here, process)


def _by_itself(audit: Audit, unit: Unit) -> tuple[Audit, Unit]:
    """Return an audit of the one implementation of a unit, which loads no other, and its unit."""
    name, every = unit[0].alone, audit.factories()
    first = next(index for index, factory in enumerate(every) if factory.name == name)
    own = replace(
        without_cases(audit),
        recipes=(),
        implementations=(name,),
        changes={},
        order=None,
        backend="numpy",
    )
    moved = (tuple(index - first for index in task.factories) for task in unit)
    return own, tuple(replace(task, factories=some) for task, some in zip(unit, moved, strict=True))


def _started(audit: Audit, unit: Unit, threads: int) -> tuple[Connection, SpawnProcess]:
    """Start the process of a unit; return where its answer comes from, and the process."""
    context, isolated = multiprocessing.get_context("spawn"), _ISOLATED in os.environ
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(there, audit, unit, threads, isolated), daemon=True)
    with deaf_children():
        process.start()
    there.close()
    return here, process


def _send_result(there: Connection, audit: Audit, unit: Unit, threads: int, isolated: bool) -> None:
    """Measure a unit and send what came of it; this is all that its process does."""
    _begin(isolated)
    there.send(result_of(audit, unit, threads))


def _answer(here: Connection, process: SpawnProcess) -> Result | Problem:
    """Return what a process sent, or how it ended."""
    try:
        result: Result | Problem = here.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        return Problem(
            "RopeAuditError", f"its process ended with {'signal' if code < 0 else 'code'} {abs(code)}"
        )
    return result


def _ended(here: Connection, process: SpawnProcess) -> None:
    process.kill()
    process.join()
    here.close()


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
