"""Processes of a sweep that die, at work or while they send what came of it: others do it again."""

from __future__ import annotations

import concurrent.futures as futures
import copy
import functools
import os
import threading
import time
from multiprocessing import connection
from pathlib import Path

import pytest

from ropeaudit.audits import sweep, workers
from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.errors import BadShape, RopeAuditError, UnknownName
from ropeaudit.runtime import run_metadata

posix = pytest.mark.skipif(os.name != "posix", reason="spawned processes")


def _die(*_: object) -> None:
    os._exit(9)


@posix
def test_work_that_kills_every_worker_is_given_up(monkeypatch) -> None:
    audit = Audit([Case(heads=1, seq_len=4, head_dim=8)], offsets=[0])
    monkeypatch.setattr(sweep, "measure_task", _die)
    with pytest.raises(RopeAuditError, match="died 3 times with the same work"):
        list(sweep.completed_tasks(audit, Sweep(audit).tasks(), functools.partial(workers.Processes, 1)))


@pytest.mark.parametrize(
    "error",
    [BadShape("no"), MemoryError("no"), ZeroDivisionError("no"), UnknownName("no", "x", ["y"])],
)
def test_errors_come_home(error, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(sweep, "rows_of", fail)
    home = copy.copy(sweep.measure_task(Audit(), 1, {}).error)  # as pickle does
    assert isinstance(error, type(home)) or str(home) == "ZeroDivisionError: no"
    assert str(error) in str(home)


def _large(size: int) -> bytes:
    return bytes(size)


@posix
def test_workers_that_are_sending_are_ended_at_once() -> None:
    """Each try left the pool waiting for the rest of a result, in three cases of four."""
    for _ in range(2):
        with workers.Processes(2, 2) as crew:
            assert 2 * crew.threads <= max(2, run_metadata.threads())
            waiting = {crew.executor.submit(_large, 2_000_000) for _ in range(50)}
            futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
            time.sleep(0.1)


def _die_while_sending(audit: object, threads: int, task: object) -> sweep.TaskResult:
    """The first worker writes half of its result; the others live, and could write the rest."""
    try:
        Path(os.environ["ROPEAUDIT_TEST_SENT"]).touch(exist_ok=False)
    except FileExistsError:
        return sweep.TaskResult()

    def send_half(self: connection.Connection, buffer: bytes) -> None:
        os.write(self.fileno(), bytes(buffer)[: len(buffer) // 2])
        os._exit(9)

    connection.Connection._send = send_half
    return sweep.TaskResult()


@posix
def test_a_worker_that_dies_while_it_sends_is_replaced(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROPEAUDIT_TEST_SENT", str(tmp_path / "sent"))
    monkeypatch.setattr(sweep, "measure_task", _die_while_sending)
    audit = Audit([Case(heads=1, seq_len=4, head_dim=8)], offsets=range(3))
    tasks = Sweep(audit).tasks() * 6
    assert len(list(sweep.completed_tasks(audit, tasks, functools.partial(workers.Processes, 2)))) == 6


@posix
def test_no_thread_and_no_process_outlives_the_workers() -> None:
    before = set(threading.enumerate())
    with workers.Processes(1, 1) as crew:
        assert crew.executor.submit(os.getpid).result() != os.getpid()
        processes = crew.processes()
    assert [one for one in threading.enumerate() if one not in before] == []
    assert [one for one in processes if one.is_alive()] == []
