"""A Dask cluster that goes away ends a sweep in a sentence; the rows that came home are kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import ran

from ropeaudit.audits import sweep, workers
from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.runtime import doing

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = ["shift", "--heads", "1", "--head-dim", "8", "--seq-len", "4", "--recipe", "hf", "--dtype", "fp16"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


class Cluster(contextlib.nullcontext):
    """What `workers.Dask` uses of Dask: the first `good` tasks are measured here, the rest brings `error`."""

    KilledWorker = distributed.KilledWorker

    def __init__(self, good: int, error: BaseException | None, there: int = 1) -> None:
        super().__init__(self)
        self.good, self.error, self.there, self.count = good, error, there, 0
        self.scheduler = SimpleNamespace(ncores=None)

    def Client(self, address, timeout):
        return self

    def get_executor(self, **options):
        return self

    def sync(self, what, callback_timeout):
        return dict.fromkeys(range(self.there), 1)

    def submit(self, run, task):
        self.count += 1
        future = Future()
        if self.count <= self.good:
            future.set_result(sweep.measure_task(run.args[0], 1, task))
        elif self.error:
            future.set_exception(self.error)
        return future


def on(fake: Cluster, monkeypatch, notes=None) -> tuple[list, str]:
    """Return what came home of a sweep of four tasks, and what it ended with."""
    monkeypatch.setitem(sys.modules, "distributed", fake)
    audit = Audit([Case(heads=1, seq_len=4, head_dim=8, seed=seed) for seed in range(4)], ["hf"], offsets=[0])
    tell, home = ([] if notes is None else notes).append, []
    crew = workers.Dask("tcp://x:1", 1, tell)
    try:
        for result in sweep.completed_tasks(audit, Sweep(audit).tasks(), lambda count: crew):
            home.append(result)
    except RopeAuditError as error:
        return home, str(error)
    return home, ""


GONE = "--scheduler 'tcp://x:1': the Dask scheduler is gone; rows that are done are kept"
NOT_THERE = ModuleNotFoundError("No module named 'ropeaudit'")


@pytest.mark.parametrize(
    ("good", "error", "said"),
    [
        (4, None, ""),
        (0, CancelledError("lost"), GONE),
        (3, CancelledError("lost"), GONE),
        (1, OSError("closed"), GONE),
        (1, NOT_THERE, f"a Dask worker cannot begin the work (ModuleNotFoundError: {NOT_THERE})"),
        (
            2,
            distributed.KilledWorker.__new__(distributed.KilledWorker),
            "Dask lost several workers with the same work",
        ),
    ],
)
def test_what_was_done_before_is_not_lost_with_what_was_not(good, error, said, monkeypatch) -> None:
    home, message = on(Cluster(good, error), monkeypatch)
    assert len(home) == good
    assert all(result.rows for _, result in home)
    assert message.startswith(said)
    assert message.endswith("--resume") == bool(said)


def test_workers_that_are_all_gone_are_waited_for_and_then_no_more(monkeypatch) -> None:
    now = SimpleNamespace(monotonic=lambda: now.at, at=0.0)
    monkeypatch.setattr(workers, "time", now)
    notes, look = list[str](), workers.Dask.look

    def later(self, some) -> None:
        now.at += 1.0
        look(self, some)

    monkeypatch.setattr(workers.Dask, "look", later)
    monkeypatch.setattr(workers.Dask, "pause", 0.0)
    home, message = on(Cluster(2, None, there=0), monkeypatch, notes)
    assert len(home) == 2
    assert notes == ["no Dask worker is there; waiting up to 10 minutes for one"]
    assert "no Dask worker has been there for 10 minutes; rows that are done are kept" in message
    assert 600 <= now.at < 610


def test_the_patience_is_that_of_dasks_configuration(monkeypatch) -> None:
    import dask

    for wrong in ("soon", [], "10 parsecs"):
        with dask.config.set({"ropeaudit.patience": wrong}), pytest.raises(UsageError, match="is no time"):
            on(Cluster(4, None), monkeypatch)


def test_a_local_cluster_shares_the_threads_and_is_said_not_to_start(monkeypatch, capsys) -> None:
    asked: list[dict] = []

    def fail(**options: object) -> None:
        asked.append(options)
        raise RuntimeError("Nanny failed to start.\nmore")

    monkeypatch.setattr(distributed, "LocalCluster", fail)
    monkeypatch.setattr(workers.run_metadata, "threads", lambda: 8)
    for jobs, threads in ((1, 8), (3, 2), (8, 1), (20, 1)):
        said = ran(capsys, [*SMALL, "--scheduler", "local", "--jobs", jobs], 2).err
        assert "Dask's workers do not start (RuntimeError: Nanny failed to start. more)" in said
        assert (asked[-1]["n_workers"], asked[-1]["threads_per_worker"]) == (jobs, threads)
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'ropeaudit[cluster]'" in ran(capsys, [*SMALL, "--scheduler", "local"], 2).err


def test_where_no_scheduler_answers_is_said_in_a_sentence(monkeypatch) -> None:
    reported: list[float] = []

    def absent(address: str, timeout: float) -> None:
        raise OSError("timed out")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=absent, KilledWorker=Exception))
    no_answer = pytest.raises(UsageError, match="'tcp://x:1': no Dask scheduler answers there")
    with no_answer, doing.reporting_to(reported.append):
        workers.Dask("tcp://x:1", 1, print)
    assert len(reported) == 3  # a Ctrl-C is heard each time


# ---------------------------------------------------------------------------- real ones


def started(*arguments: str, folder: Path, log: str) -> subprocess.Popen:
    command = [sys.executable, "-m", *arguments, "--no-dashboard"]
    with (folder / log).open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, cwd=folder)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["scheduler", "worker"])
def test_a_real_cluster_that_is_killed(victim, tmp_path) -> None:
    scheduler_file = tmp_path / "s.json"
    common = ["--scheduler-file", str(scheduler_file)]
    requested = [sys.executable, "-m", "ropeaudit", *SMALL, "--offset", "0-49999+1", "-f", "csv"]
    path, part = tmp_path / "x.jsonl", tmp_path / "x.jsonl.part"
    processes = {
        "scheduler": started(
            "distributed.cli.dask_scheduler", "--port", "0", *common, folder=tmp_path, log="s"
        )
    }
    try:
        deadline = time.monotonic() + 60
        while not (scheduler_file.exists() and scheduler_file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        worker = ["distributed.cli.dask_worker", *common, "--no-nanny", "--nthreads", "1"]
        processes["worker"] = started(*worker, folder=tmp_path, log="w")
        import json

        address = json.loads(scheduler_file.read_text())["address"]
        run = subprocess.Popen(
            [*requested, "--scheduler", address, "-o", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"DASK_ROPEAUDIT__PATIENCE": "3s"},
        )
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        processes[victim].kill()
        message = run.communicate(timeout=120)[1]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    last = message.splitlines()[-1]
    assert run.returncode == 2
    assert "Traceback" not in message
    assert ("scheduler is gone" if victim == "scheduler" else "no Dask worker has been there for 3s") in last
    assert part.read_bytes().endswith(b"}\n")
