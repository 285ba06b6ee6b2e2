"""Tasks of a sweep in other processes: those of a pool on this machine, or of a Dask cluster."""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, TypeAlias

from ropeaudit import __version__
from ropeaudit.audits import sweep
from ropeaudit.audits.records import Record
from ropeaudit.audits.sweep import Audit, Task
from ropeaudit.errors import MissingPackage, RopeAuditError, UnknownName, UsageError, one_line
from ropeaudit.runtime import doing, run_metadata

MOST_DEATHS = 3  # of a worker with the same task
_ISOLATED = "PYTHONSAFEPATH"  # as `python -P`
_SAFE = "rows that are done are kept"
_one_at_a_time = threading.Lock()  # the process has one limit of BLAS threads


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task: rows or an error; by factory what was found of code. loaded: its versions."""

    rows: Sequence[Record] = ()
    findings: Sequence[Sequence[str]] = ()
    loaded: Sequence[str] = ()
    error: Exception | None = None


def loaded_versions(audit: Audit) -> list[str]:
    """Return the loaded version of own code of each factory, or nothing."""
    return [factory.code.loaded_version if factory.code else "" for factory in audit.factories()]


def result_of(audit: Audit, threads: int | None, task: Task) -> Result:
    """Measure a task; this runs in a worker. threads: None for all that Dask gave it."""
    if threads is None:
        from distributed import get_worker

        threads = get_worker().state.nthreads
    with _one_at_a_time:
        try:
            rows = list(sweep.rows_of(audit, list(task.values()), threads))
            findings = [tuple(factory.findings) for factory in audit.factories()]
            return Result(rows, findings, loaded_versions(audit))
        except UnknownName as error:  # which cannot be pickled
            return Result(error=UsageError(error.typed))
        except (RopeAuditError, MemoryError) as error:
            return Result(error=error)
        except Exception as error:
            return Result(error=RuntimeError(one_line(error)))


def finished(
    audit: Audit,
    tasks: Sequence[Task],
    crew: Callable[[int], Crew],
) -> Generator[tuple[Task, Result]]:
    """Yield tasks and what came of them, as they finish. crew: makes one for so many tasks.

    Raises: what was raised there; RopeAuditError if workers die again and again.
    """

    def failed(future: Future[Result]) -> bool:
        return future.cancelled() or future.exception() is not None

    left, deaths = dict(enumerate(tasks)), Counter[int]()
    total, done = sum(map(sweep.seconds_of, tasks)), 0.0
    while left:
        started = set[int]()
        with crew(len(left)) as workers, contextlib.suppress(BrokenProcessPool):
            run = functools.partial(result_of, audit, workers.threads)
            submit = workers.executor.submit
            with workers.around():
                waiting = {submit(run, task): number for number, task in left.items()}
            while waiting:
                doing.step(done / total)
                ready, _ = futures.wait(waiting, workers.pause, futures.FIRST_COMPLETED)
                workers.look(bool(ready))
                started |= {number for future, number in waiting.items() if future.running()}
                for future in sorted(ready, key=failed):  # what is done is not lost with what is not
                    number = waiting.pop(future)
                    with workers.around():
                        result = future.result()
                    if result.error is not None:
                        raise result.error
                    done += sweep.seconds_of(left[number])
                    yield left.pop(number), result
        deaths.update(started & set(left))
        if max((deaths[number] for number in left), default=0) >= MOST_DEATHS:
            raise RopeAuditError(
                f"a worker process died {MOST_DEATHS} times with the same work, perhaps for want of memory; "
                "rows that are done are kept: give fewer --jobs and --resume"
            )


@contextlib.contextmanager
def quiet_children() -> Iterator[None]:
    """Start processes that import nothing from this folder; none hears Ctrl-C until the end."""
    before, heard = os.environ.get(_ISOLATED), None
    os.environ[_ISOLATED] = "1"
    try:
        with contextlib.suppress(AttributeError, ImportError, OSError):  # on Windows there is neither
            resource_tracker.ensure_running()  # which would make its thread hear Ctrl-C again
            heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        if heard is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        os.environ.pop(_ISOLATED)
        if before is not None:
            os.environ[_ISOLATED] = before


class Processes(contextlib.AbstractContextManager["Processes"]):
    """Processes of this machine; whatever they are at, they are gone at the end."""

    pause = 0.2  # seconds between two looks at them and for a Ctrl-C
    around = staticmethod(quiet_children)  # a block in which processes may start

    def __init__(self, jobs: int, tasks: int) -> None:
        """Start up to `jobs` of them, which share the processors."""
        self.threads = max(1, run_metadata.threads() // jobs)
        context, isolated = multiprocessing.get_context("spawn"), _ISOLATED in os.environ
        with quiet_children():
            self.executor: ProcessPoolExecutor = ProcessPoolExecutor(
                min(jobs, tasks), context, _begin, (isolated,)
            )

    def __exit__(self, *_: object) -> None:
        self._end()
        self.executor.shutdown(wait=True, cancel_futures=True)

    def look(self, some: bool) -> None:
        """End all if one is dead."""
        if connection.wait([process.sentinel for process in self.processes()], 0):
            self._end()

    def processes(self) -> list[Any]:
        """Return those that were started, to which there is no public way."""
        return list((self.executor._processes or {}).values())

    def _end(self) -> None:
        """Kill the workers, whatever they are at; their futures end too."""
        for process in self.processes():
            process.kill()
        # else the pool waits for the rest of a result that a dead worker began
        self.executor._result_queue._writer.close()  # type: ignore[attr-defined]


def _begin(isolated: bool) -> None:
    """Leave Ctrl-C to the parent, and end with it. isolated: as the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not isolated:
        os.environ.pop(_ISOLATED, None)  # for processes that own code starts

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_ANSWER_SECONDS = 20
_LOOK_SECONDS = 5.0  # without a result until it is asked whether there are workers
_PATIENCE = "10 minutes"  # without a worker; or as Dask's configuration says
_KEY = "ropeaudit.patience"


class Dask(contextlib.AbstractContextManager["Dask"]):
    """The workers of a Dask cluster, which repeats what a lost one was at."""

    pause = 0.05
    threads = None  # those that each has

    def __init__(self, scheduler: str, jobs: int, tell: Callable[[str], None]) -> None:
        """Connect. scheduler: the address of a running one, or "local" for `jobs` processes of this machine.

        tell: takes a note.
        """
        try:
            import dask
            import distributed
            from dask.utils import parse_timedelta
        except ImportError:
            raise MissingPackage("--scheduler needs Dask; pip install 'ropeaudit[cluster]'") from None
        self.killed, self.scheduler, self.tell = distributed.KilledWorker, scheduler, tell
        self.patience = str(dask.config.get(_KEY, _PATIENCE))
        try:
            self.seconds = float(parse_timedelta(self.patience))
        except (ValueError, KeyError, TypeError):
            seen = f"{_KEY} {self.patience!r} in Dask's configuration is no time"
            raise UsageError(f"{seen}; try '{_PATIENCE}'") from None
        self.seen = self.looked = time.monotonic()
        self.reported = False
        with contextlib.ExitStack() as stack:
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)  # of Dask's log
            local = scheduler == "local"  # the cluster that it starts ends here too
            address: Any = stack.enter_context(_local(distributed, jobs)) if local else scheduler
            self.client: Any = stack.enter_context(_connected(distributed, address))
            self.executor = self.client.get_executor(pure=False, retries=MOST_DEATHS)
            self.stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Say in a sentence what Dask raises. Raises: RopeAuditError."""
        try:
            yield
        except self.killed:
            problem = "Dask lost several workers with the same work, perhaps for want of memory"
            remedy = "give fewer workers and --resume"
        except (CancelledError, OSError):
            problem = f"--scheduler {self.scheduler!r}: the Dask scheduler is gone"
            remedy = "start one, and give the same command with --resume"
        except Exception as error:  # before our code ran: it is not there, or another
            problem = f"a Dask worker cannot begin the work ({one_line(error)})"
            needed = f"ropeaudit {__version__} there, with what the implementations need"
            remedy = f"install {needed}, and --resume"
        else:
            return
        raise RopeAuditError(f"{problem}; {_SAFE}: {remedy}") from None

    def look(self, some: bool) -> None:
        """Wait for workers where there were no results: not for ever. Raises: RopeAuditError."""
        now = time.monotonic()
        if some:
            self.seen = self.looked = now
        elif now - self.looked >= min(_LOOK_SECONDS, self.seconds / 2):
            self.looked = now
            there: Any = None
            with contextlib.suppress(Exception):  # that the scheduler is gone, the futures say
                there = self.client.sync(self.client.scheduler.ncores, callback_timeout=_LOOK_SECONDS)
            if there:
                self.seen, self.reported = now, False
            elif now - self.seen >= self.seconds:
                raise RopeAuditError(
                    f"no Dask worker has been there for {self.patience}; {_SAFE}: start some, and give the "
                    "same command with --resume (longer: DASK_ROPEAUDIT__PATIENCE=4h)"
                )
            elif not self.reported:
                self.reported = True
                self.tell(f"no Dask worker is there; waiting up to {self.patience} for one")


def _connected(distributed: Any, address: Any) -> Any:
    """Connect in several tries, so that Ctrl-C is heard. Raises: UsageError."""
    seen: Exception | None = None
    for share in (0.1, 0.3, 0.6):
        doing.step(0.0)
        try:
            return distributed.Client(address, timeout=share * _ANSWER_SECONDS)
        except (OSError, ValueError, TypeError) as error:
            seen = error
            if not isinstance(error, OSError):
                break
    raise UsageError(
        f"--scheduler {address!r}: no Dask scheduler answers there ({type(seen).__name__}); start one with "
        "`dask scheduler` and give its tcp:// address, or local"
    )


def _local(distributed: Any, jobs: int) -> Any:
    """Start a cluster of processes that hear no Ctrl-C. Raises: RopeAuditError."""
    try:
        with quiet_children():
            return distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=max(1, run_metadata.threads() // jobs),
                dashboard_address="127.0.0.1:0",  # None would ask for port 8787
                silence_logs=logging.CRITICAL,
            )
    except Exception as error:  # as of a machine without room or ports
        doing.step(0.0)
        raise RopeAuditError(
            f"--scheduler local: Dask's workers do not start ({one_line(error)}); give --jobs alone"
        ) from None


Crew: TypeAlias = Processes | Dask
