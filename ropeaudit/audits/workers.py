"""Worker processes of a sweep: a pool on this machine, or a Dask cluster. What they measure is in `sweep`."""

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
            self.executor = self.client.get_executor(pure=False, retries=_RETRIES)
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
