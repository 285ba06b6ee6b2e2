"""Units of a sweep on a Dask cluster: handed over, taken back as they finish. Dask does the scheduling."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ropeaudit import circumstances
from ropeaudit.audit import Audit
from ropeaudit.errors import MissingPackage, RopeAuditError, UsageError
from ropeaudit.sweeps import workers
from ropeaudit.sweeps.workers import MOST_DEATHS, Problem, Result, Unit

_LISTEN_SECONDS = 0.05
_ANSWER_SECONDS = 20


def on_dask(
    audit: Audit, units: Sequence[Unit], scheduler: str, jobs: int, listen: Callable[[], None]
) -> Iterator[tuple[Unit, Result | Problem]]:
    """Yield units and what came of them, as they finish. listen is called many times a second.

    scheduler: the address of a running one, or "local" for `jobs` processes of this machine. Dask repeats
    what a lost worker was at. Raises: MissingPackage, UsageError, RopeAuditError.
    """
    try:
        import distributed
    except ImportError:
        raise MissingPackage("--scheduler needs Dask; pip install 'ropeaudit[cluster]'") from None
    spec = workers.without_cases(audit)
    with _client(distributed, scheduler, jobs) as client:
        again = {"pure": False, "retries": MOST_DEATHS}
        waiting = {client.submit(result_of, spec, unit, **again): unit for unit in units}
        found: Any = distributed.as_completed(waiting)  # type: ignore[no-untyped-call]
        while waiting:
            listen()
            batch = found.next_batch(block=False) if not found.is_empty() else []
            for future in batch:
                unit = waiting.pop(future)
                yield unit, _result(distributed, future)
            if not batch:
                time.sleep(_LISTEN_SECONDS)


def result_of(audit: Audit, unit: Unit) -> Result | Problem:
    """Measure a unit on a worker of Dask, with all the threads that the worker has: one unit at a time."""
    from distributed import get_worker

    return workers.result_of(audit, unit, get_worker().state.nthreads)


@contextlib.contextmanager
def _client(distributed: Any, scheduler: str, jobs: int) -> Iterator[Any]:
    """Connect; the cluster that "local" starts ends here too. Raises: UsageError."""
    with contextlib.ExitStack() as stack:
        address: Any = scheduler
        if scheduler == "local":
            threads = max(1, circumstances.threads() // jobs)
            address = stack.enter_context(
                distributed.LocalCluster(n_workers=jobs, threads_per_worker=threads, dashboard_address=None)
            )
        try:
            client = distributed.Client(address, timeout=_ANSWER_SECONDS)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"--scheduler {scheduler!r}: no Dask scheduler answers there ({type(error).__name__}); start "
                "one with `dask scheduler` and give its tcp:// address, or local"
            ) from None
        yield stack.enter_context(client)


def _result(distributed: Any, future: Any) -> Result | Problem:
    try:
        result: Result | Problem = future.result()
    except distributed.KilledWorker:
        raise RopeAuditError(
            "Dask lost several workers with the same work, perhaps for want of memory; rows that are done "
            "are kept: give fewer workers and --resume"
        ) from None
    return result
