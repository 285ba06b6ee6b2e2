"""A plugin of pytest: some tests alone, in their order, or which lines of the package each test runs.

MUTATION_TESTS: a file that lists the tests to run. MUTATION_LINES: a file to write (`pytest_sessionfinish`);
pytest then runs under coverage, with the settings of `held.SETTINGS`.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

PICKED, LINES = os.environ.get("MUTATION_TESTS"), os.environ.get("MUTATION_LINES")
MEMORY = 12 * 2**30  # a mutant of a guard of memory must not take the machine's
seconds: dict[str, float] = {}
failed: set[str] = set()

if PICKED:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the tests that were picked, in their order."""
    if PICKED:
        there = {one.nodeid: one for one in items}
        names = json.loads(Path(PICKED).read_text(encoding="utf-8"))
        items[:] = [there[name] for name in names if name in there]


def _switch(test: str) -> None:
    """Make a test the context of coverage, here and in processes that it starts."""
    if LINES:
        from coverage import Coverage

        Coverage.current().switch_context(test)
        os.environ["MUTATION_TEST"] = test


def pytest_runtest_logstart(nodeid: str) -> None:
    """Begin a test: what others left in the package's caches must be computed again."""
    for name, module in list(sys.modules.items()) if LINES else ():
        if name.startswith("ropeaudit"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    _switch(nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Add up how long a test takes, and note whether it passes."""
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or report.skipped:
        failed.add(report.nodeid)


def pytest_runtest_logfinish() -> None:
    """End a test."""
    _switch("")


def pytest_sessionfinish() -> None:
    """Write how long each test that passes took."""
    if LINES:
        passed = {test: took for test, took in seconds.items() if test not in failed}
        Path(LINES).write_text(json.dumps(passed), encoding="utf-8")
