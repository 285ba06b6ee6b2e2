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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ropeaudit import __version__, errors
from ropeaudit.audits import sweep
from ropeaudit.audits.records import Record
from ropeaudit.audits.sweep import Task
from ropeaudit.errors import MissingPackage, RopeAuditError, UsageError
from ropeaudit.runtime import run_metadata

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit

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

    def raised(self) -> NoReturn:
        """Raise it."""
        kind = MemoryError if self.kind == "MemoryError" else getattr(errors, self.kind, None)
        raise kind(self.text) if kind else RuntimeError(f"{self.kind}: {self.text}")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a unit: its rows, and for each factory of the audit what was found out about its code.

    loaded: for each factory the version of own code as it was loaded there.
    """

    rows: list[Record]
    findings: list[tuple[str, ...]]
    loaded: list[str] = field(default_factory=list)


def loaded_versions(audit: Audit) -> list[str]:
    """Return the loaded version of own code of each factory, or nothing."""
    return [factory.code.loaded_version if factory.code else "" for factory in audit.factories()]


def result_of(audit: Audit, unit: Unit, threads: int) -> Result | Problem:
    """Measure a unit; this runs in a worker."""
    with _one_at_a_time:
        try:
            rows = [row for _, row in sweep.measured(audit, unit, threads)]
            findings = [tuple(factory.findings) for factory in audit.factories()]
            return Result(rows, findings, loaded_versions(audit))
        except errors.UnknownName as error:  # its arguments are no message
            return Problem("UsageError", error.typed)
        except Exception as error:
            return Problem(type(error).__name__, getattr(error, "typed", str(error)))


def processes(
    audit: Audit, units: Sequence[Unit], jobs: int, listen: Callable[[], None]
) -> Iterator[tuple[Unit, Result | Problem]]:
    """Yield units and what came of them, as they finish. listen is called a few times a second.

    Raises: RopeAuditError if workers die again and again.
    """
    left, deaths = dict(enumerate(units)), dict.fromkeys(range(len(units)), 0)
    threads = max(1, run_metadata.threads() // jobs)
    while left:
        with _pool(min(jobs, len(left))) as pool:
            with deaf_children():
                waiting = {pool.submit(result_of, audit, left[number], threads): number for number in left}
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
    with isolated_children():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def isolated_children() -> Iterator[None]:
    """Start processes that import nothing from the current folder."""
    before = os.environ.get(_ISOLATED)
    os.environ[_ISOLATED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ISOLATED]


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


_DASK_LISTEN_SECONDS = 0.05
_ANSWER_SECONDS = 20
_LOOK_SECONDS = 5.0  # without a result until it is asked whether there are workers
_PATIENCE = "10 minutes"  # without a worker; Dask's configuration may say another time
_KEY = "ropeaudit.patience"
_SAFE = "rows that are done are kept"


def on_dask(
    audit: Audit,
    units: Sequence[Unit],
    scheduler: str,
    jobs: int,
    listen: Callable[[], None],
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[Unit, Result | Problem]]:
    """Yield units and what came of them, as they finish. listen is called many times a second.

    scheduler: the address of a running one, or "local" for `jobs` processes of this machine. Dask repeats
    what a lost worker was at. tell: takes a note. Raises: MissingPackage, UsageError, RopeAuditError.
    """
    try:
        import distributed
    except ImportError:
        raise MissingPackage("--scheduler needs Dask; pip install 'ropeaudit[cluster]'") from None
    import logging

    patience = Patience(tell)
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)  # of Dask's log: what matters of it is said in a sentence
        local = scheduler == "local"  # the cluster that it starts ends here too
        address: Any = stack.enter_context(_local(distributed, jobs, listen)) if local else scheduler
        client = stack.enter_context(_connected(distributed, address, listen))
        listen()  # a Ctrl-C during the start
        again = {"pure": False, "retries": MOST_DEATHS}
        with _losing(scheduler):
            waiting = {client.submit(result_on_dask, audit, unit, **again): unit for unit in units}
            outcome: Any = distributed.as_completed(waiting)  # type: ignore[no-untyped-call]
        while waiting:
            listen()
            with _losing(scheduler):
                batch = outcome.next_batch(block=False) if not outcome.is_empty() else []
            for future in batch:
                with _losing(scheduler):
                    result = _result(distributed, future)
                yield waiting.pop(future), result
            patience.wait(bool(batch), lambda: _workers(client))


def result_on_dask(audit: Audit, unit: Unit) -> Result | Problem:
    """Measure a unit on a worker of Dask with all of its threads."""
    from distributed import get_worker

    return result_of(audit, unit, get_worker().state.nthreads)


class Patience:
    """Waits for results, and for workers where there are none: not for ever."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Begin to wait. Raises: UsageError if Dask's configuration says no time."""
        import dask
        from dask.utils import parse_timedelta

        self.text = str(dask.config.get(_KEY, _PATIENCE))
        try:
            self.seconds = float(parse_timedelta(self.text))
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{_KEY} {self.text!r} in Dask's configuration is no time; try '{_PATIENCE}'"
            ) from None
        self.tell, self.reported = tell, False
        self.seen = self.looked = time.monotonic()

    def wait(self, some: bool, workers_there: Callable[[], int]) -> None:
        """Return at once if there were results, else after a moment. Raises: RopeAuditError."""
        now = time.monotonic()
        if some:
            self.seen = self.looked = now
            return
        if now - self.looked >= min(_LOOK_SECONDS, self.seconds / 2):
            self.looked = now
            if workers_there():
                self.seen, self.reported = now, False
            elif now - self.seen >= self.seconds:
                raise RopeAuditError(
                    f"no Dask worker has been there for {self.text}; {_SAFE}: start some, and give the same "
                    "command with --resume (DASK_ROPEAUDIT__PATIENCE=4h waits longer)"
                )
            elif not self.reported:
                self.reported = True
                self.tell(f"no Dask worker is there; waiting up to {self.text} for one")
        time.sleep(_DASK_LISTEN_SECONDS)


def _connected(distributed: Any, address: Any, listen: Callable[[], None]) -> Any:
    """Connect in several tries, so that Ctrl-C is heard. Raises: UsageError."""
    seen: Exception | None = None
    for share in (0.1, 0.3, 0.6):
        try:
            return distributed.Client(address, timeout=share * _ANSWER_SECONDS)
        except (OSError, ValueError, TypeError) as error:
            listen()
            seen = error
            if not isinstance(error, OSError):
                break
    raise UsageError(
        f"--scheduler {address!r}: no Dask scheduler answers there ({type(seen).__name__}); start one with "
        "`dask scheduler` and give its tcp:// address, or local"
    )


def _local(distributed: Any, jobs: int, listen: Callable[[], None]) -> Any:
    """Start a cluster of processes that hear no Ctrl-C. Raises: RopeAuditError."""
    import logging

    threads = max(1, run_metadata.threads() // jobs)
    with isolated_children(), contextlib.suppress(ImportError, AttributeError, OSError):
        resource_tracker.ensure_running()  # which would make its thread hear Ctrl-C again
    try:
        with deaf_children():
            return distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=threads,
                dashboard_address="127.0.0.1:0",  # None asks for port 8787, and warns where it is taken
                silence_logs=logging.CRITICAL,
            )
    except Exception as error:  # whatever Dask makes of a machine without room or ports
        listen()
        raise RopeAuditError(
            f"--scheduler local: Dask's workers do not start ({_line(error)}); give --jobs alone"
        ) from None


@contextlib.contextmanager
def _losing(scheduler: str) -> Iterator[None]:
    """Say in a sentence that the scheduler is gone. Raises: RopeAuditError."""
    try:
        yield
    except (CancelledError, OSError) as error:
        if isinstance(error, RopeAuditError):
            raise
        raise RopeAuditError(
            f"--scheduler {scheduler!r}: the Dask scheduler is gone; {_SAFE}: start one, and give the same "
            "command with --resume"
        ) from None


def _workers(client: Any) -> int:
    """Return how many workers there are; none where the scheduler does not answer."""
    try:
        return len(client.sync(client.scheduler.ncores, callback_timeout=_LOOK_SECONDS))
    except Exception:  # that it is gone, the futures say
        return 0


def _result(distributed: Any, future: Any) -> Result | Problem:
    try:
        result: Result | Problem = future.result()
    except distributed.KilledWorker:
        raise RopeAuditError(
            f"Dask lost several workers with the same work, perhaps for want of memory; {_SAFE}: give fewer "
            "workers and --resume"
        ) from None
    except (CancelledError, OSError):
        raise
    except Exception as error:  # before our own code ran: it is not installed there, or another one
        raise RopeAuditError(
            f"a Dask worker cannot begin the work ({_line(error)}); {_SAFE}: install ropeaudit {__version__} "
            "there, with what the implementations need, and --resume"
        ) from None
    return result


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__
