"""Units of a sweep on a Dask cluster: handed over, taken back as they finish. Dask does the scheduling."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from ropeaudit import __version__
from ropeaudit.audits import workers
from ropeaudit.audits.workers import MOST_DEATHS, Problem, Result, Unit
from ropeaudit.errors import MissingPackage, RopeAuditError, UsageError
from ropeaudit.runtime import run_metadata

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit

_LISTEN_SECONDS = 0.05
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
    spec, patience = workers.without_cases(audit), Patience(tell)
    with _silent(), contextlib.ExitStack() as stack:
        local = scheduler == "local"  # the cluster that it starts ends here too
        address: Any = stack.enter_context(_local(distributed, jobs, listen)) if local else scheduler
        client = stack.enter_context(_connected(distributed, address, listen))
        listen()  # a Ctrl-C during the start
        again = {"pure": False, "retries": MOST_DEATHS}
        with _losing(scheduler):
            waiting = {client.submit(result_of, spec, unit, **again): unit for unit in units}
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


def result_of(audit: Audit, unit: Unit) -> Result | Problem:
    """Measure a unit on a worker of Dask, with all the threads that the worker has: one unit at a time."""
    from distributed import get_worker

    return workers.result_of(audit, unit, get_worker().state.nthreads)


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
        time.sleep(_LISTEN_SECONDS)


def _connected(distributed: Any, address: Any, listen: Callable[[], None]) -> Any:
    """Connect, with more patience each time, so that a Ctrl-C is heard in between. Raises: UsageError."""
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
    threads = max(1, run_metadata.threads() // jobs)
    with workers.isolated_children(), contextlib.suppress(ImportError, AttributeError, OSError):
        resource_tracker.ensure_running()  # which would make its thread hear Ctrl-C again
    try:
        with workers.deaf_children():
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


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's log off stderr: what matters of it is said in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


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
