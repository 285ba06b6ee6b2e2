"""Worker processes of a sweep: a pool on this machine, or a Dask cluster."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from multiprocessing import connection, resource_tracker
from typing import Any, TypeAlias

from ropeaudit import __version__
from ropeaudit.errors import MissingPackage, RopeAuditError, UsageError, one_line
from ropeaudit.runtime import doing, run_metadata

_RETRIES = 3  # by Dask, of a task whose worker is lost
_ISOLATED = "PYTHONSAFEPATH"  # as `python -P`
_SAFE = "rows that are done are kept"


@contextlib.contextmanager
def quiet_children() -> Iterator[None]:
    """Within the block, start processes that ignore Ctrl-C and import nothing from this folder."""
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
    """A pool of processes on this machine, which are killed at the end."""

    pause = 0.2  # seconds between checks of the workers and for a Ctrl-C
    submitting = staticmethod(quiet_children)  # a block in which processes may start

    def __init__(self, jobs: int, tasks: int) -> None:
        """Start up to `jobs` processes, which share the processors."""
        self.threads = max(1, run_metadata.threads() // jobs)
        context, isolated = multiprocessing.get_context("spawn"), _ISOLATED in os.environ
        with quiet_children():
            self.executor: ProcessPoolExecutor = ProcessPoolExecutor(
                min(jobs, tasks), context, _initialise, (isolated,)
            )

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.executor.shutdown(wait=True, cancel_futures=True)

    def look(self, some: bool) -> None:
        """Kill all workers if one has died."""
        if connection.wait([process.sentinel for process in self.processes()], 0):
            self._kill()

    def processes(self) -> list[Any]:
        """Return the processes of the pool, which has no public name for them."""
        return list((self.executor._processes or {}).values())

    def _kill(self) -> None:
        for process in self.processes():
            process.kill()
        # else the pool waits for the rest of a dead worker's result
        self.executor._result_queue._writer.close()  # type: ignore[attr-defined]


def _initialise(isolated: bool) -> None:
    """Ignore Ctrl-C in a worker, and end it with its parent. isolated: whether the parent is."""
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
_LOOK_SECONDS = 5.0  # without a result, after which the number of workers is checked
_PATIENCE = "10 minutes"  # without a worker; Dask's configuration may change it
_KEY = "ropeaudit.patience"


class Dask(contextlib.AbstractContextManager["Dask"]):
    """The workers of a Dask cluster, which repeats the tasks of a lost worker."""

    pause = 0.05
    threads = None  # as many as each worker has

    def __init__(self, scheduler: str, jobs: int, tell: Callable[[str], None]) -> None:
        """Connect to a scheduler by its address, or start a "local" one with `jobs` processes.

        tell: prints a note.
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
            local = scheduler == "local"  # that cluster ends with this object
            address: Any = stack.enter_context(_start_cluster(distributed, jobs)) if local else scheduler
            self.client: Any = stack.enter_context(_connect(distributed, address))
            self.executor = self.client.get_executor(pure=False, retries=_RETRIES)
            self.stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Within the block, turn exceptions of Dask into RopeAuditError."""
        try:
            yield
        except self.killed:
            problem = "Dask lost several workers with the same work, perhaps for want of memory"
            remedy = "give fewer workers and --resume"
        except (CancelledError, OSError):
            problem = f"--scheduler {self.scheduler!r}: the Dask scheduler is gone"
            remedy = "start one, and give the same command with --resume"
        except Exception as error:  # before our code ran: missing, or another version
            problem = f"a Dask worker cannot begin the work ({one_line(error)})"
            needed = f"ropeaudit {__version__} there, with what the implementations need"
            remedy = f"install {needed}, and --resume"
        else:
            return
        raise RopeAuditError(f"{problem}; {_SAFE}: {remedy}") from None

    def look(self, some: bool) -> None:
        """Check that there are workers, if results fail to come. Raises: RopeAuditError."""
        now = time.monotonic()
        if some:
            self.seen = self.looked = now
        elif now - self.looked >= min(_LOOK_SECONDS, self.seconds / 2):
            self.looked = now
            workers: Any = None
            with contextlib.suppress(Exception):  # futures report a lost scheduler
                workers = self.client.sync(self.client.scheduler.ncores, callback_timeout=_LOOK_SECONDS)
            if workers:
                self.seen, self.reported = now, False
            elif now - self.seen >= self.seconds:
                raise RopeAuditError(
                    f"no Dask worker has been there for {self.patience}; {_SAFE}: start some, and give the "
                    "same command with --resume (longer: DASK_ROPEAUDIT__PATIENCE=4h)"
                )
            elif not self.reported:
                self.reported = True
                self.tell(f"no Dask worker is there; waiting up to {self.patience} for one")


def _connect(distributed: Any, address: Any) -> Any:
    """Connect in several attempts, between which Ctrl-C works. Raises: UsageError."""
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


def _start_cluster(distributed: Any, jobs: int) -> Any:
    """Start a Dask cluster of processes on this machine. Raises: RopeAuditError."""
    try:
        with quiet_children():
            return distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=max(1, run_metadata.threads() // jobs),
                dashboard_address="127.0.0.1:0",  # None would ask for port 8787
                silence_logs=logging.CRITICAL,
            )
    except Exception as error:  # such as no memory or no free port
        doing.step(0.0)
        raise RopeAuditError(
            f"--scheduler local: Dask's workers do not start ({one_line(error)}); give --jobs alone"
        ) from None


Crew: TypeAlias = Processes | Dask
