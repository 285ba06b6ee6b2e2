"""What holds for every test."""

import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from figures import differences
from hypothesis import settings
from optional import skipping
from other_machine import FIGURES_MOVE
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.types import SerializableData

# As the command starts: threads of small sums wait for each other, and spin meanwhile. Children inherit it.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# How long an example takes depends on what else the machine does.
settings.register_profile("ropeaudit", deadline=None)
settings.load_profile("ropeaudit")

# Started in the background, a shell script's children ignore Ctrl-C, and theirs would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `processor` the tests of these files, and what compares a stored output."""
    known = {Path(__file__).parent / name for name in FIGURES_MOVE}
    for item in items:
        if item.path in known or "snapshot" in getattr(item, "fixturenames", ()):
            item.add_marker("processor")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test whose fixtures need a package that is not installed."""
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that fails for want of a package that is not installed."""
    with skipping():
        return (yield)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call code in this process, where faults of libraries are planted."""
    monkeypatch.setenv("ROPEAUDIT_DOOR", "in-process")


def _is_name(value: object) -> bool:
    """Return whether a value of a diagnosis is a number or a name: one word, or one with its parameters."""
    if isinstance(value, tuple):
        return all(isinstance(one, int | str) and _is_name(one) for one in value)
    if isinstance(value, str):
        return re.fullmatch(r"[^\s(),]+(\([^()]*\))?", value) is not None
    return isinstance(value, int | float)


@pytest.fixture(scope="session", autouse=True)
def _values_are_no_clauses() -> Iterator[None]:
    """Fail where a diagnosis that is made here holds more than numbers and names: English is `wording`'s."""
    from ropeaudit.recognition.diagnosis import Diagnosis

    known = Diagnosis.__post_init__

    def checked(self: Diagnosis) -> None:
        known(self)
        clauses = {name: value for name, value in self.values.items() if not _is_name(value)}
        assert not clauses, f"{self.code} holds {clauses}; give numbers and names"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Diagnosis, "__post_init__", checked)
        yield


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Threads for the small cases of a test too, which else get one: the sizes of the pools that it starts.

    A test that started none would compare one thread with itself, and fails.
    """
    from ropeaudit.engine import plan
    from ropeaudit.runtime import threads

    sizes: list[int] = []
    pool = futures.ThreadPoolExecutor

    def started(size: int, **rest: Any) -> futures.ThreadPoolExecutor:
        sizes.append(size)
        return pool(size, **rest)

    monkeypatch.setattr(threads, "useful_threads", lambda count, *_: count)
    monkeypatch.setattr(plan, "TILE_ROWS", 16)
    monkeypatch.setattr(futures, "ThreadPoolExecutor", started)
    yield sizes
    assert max(sizes, default=1) > 1


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Compare with a stored output as another machine may give it; what differs by more is printed."""
    return snapshot.use_extension(Output)


class Output(AmberSnapshotExtension):
    """A stored output of a command."""

    def matches(self, *, serialized_data: SerializableData, snapshot_data: SerializableData) -> bool:
        """Return whether no word differs, and no number by more than it may on another machine."""
        found = differences(str(snapshot_data), str(serialized_data))
        if found:
            print(*found, sep="\n", file=sys.__stderr__)  # not what a test reads as the command's
        return not found
