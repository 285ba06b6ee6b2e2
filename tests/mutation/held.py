"""Hold one mutant after the other against the tests that run its line."""

from __future__ import annotations

import functools
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation.covering import Covering
from mutation.forked import ROOT, Child, copied, pytest_main
from mutation.operators import Mutant

# Tests of a round, and the seconds that one of them may take.
FIRST, SECOND, REST = (25, 1.0), (75, 5.0), (0, math.inf)
_STRANGE = 3  # what tests of other files count as if they ran times as many lines
_SLOWER = 6.0  # than recorded: other work on the machine, more threads than cores


@dataclass
class Outcome:
    """What became of a mutant: killed, survived, timeout or uncovered."""

    mutant: Mutant
    outcome: str
    by: str = ""
    ran: int = 0  # tests
    covering: int = 0
    seconds: float = 0.0


class _Picked:
    """A plugin of pytest: these tests alone, in this order, until one fails."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.failed, self.ran = seconds, "", 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the tests that were picked."""
        results = {one.nodeid: one for one in items}
        items[:] = [results[test] for test in self.seconds if test in results]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note the first that fails."""
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _session(files: list[str], seconds: dict[str, float]) -> dict[str, Any]:
    picked = _Picked(seconds)
    code = pytest_main(["-x", *files], picked)
    return {"code": code, "failed": picked.failed, "ran": picked.ran}


def rounds(mutant: Mutant, covering: Covering, budget: float) -> list[dict[str, float]]:
    """Return the tests to run and their seconds: few and telling ones, more, the rest within the budget.

    A test tells the more of a line the fewer others it runs, and if its file is named like the line's; of
    one function's cases the first tells most.
    """
    cases: dict[str, int] = defaultdict(int)
    names = {part.removesuffix(".py").rstrip("s") for part in mutant.file.split("/")[1:]} - {"__init__"}
    ranked = []
    for test in sorted(covering.of(mutant), key=lambda test: (covering.size[test], covering.seconds[test])):
        function = test.split("[")[0]
        cases[function] += 1
        strange = 1 if any(name in test.split("::")[0] for name in names) else _STRANGE
        ranked.append((covering.size[test] * cases[function] * strange, test))
    left = [test for _, test in sorted(ranked)]
    built, spent = [], 0.0
    for most, longest in FIRST, SECOND, REST:
        chosen: dict[str, float] = {}
        for test in left if most else sorted(left, key=covering.seconds.__getitem__):
            seconds = covering.seconds[test]
            if seconds <= longest and spent + seconds <= budget and (len(chosen) < most or not most):
                chosen[test], spent = seconds, spent + seconds
        built.append(chosen)
        left = [test for test in left if test not in chosen]
    return [one for one in built if one]


@dataclass
class _Slot:
    copy: Path
    todo: list[dict[str, float]] = field(default_factory=list)
    outcome: Outcome | None = None
    child: Child | None = None

    def begin(self, mutant: Mutant, covering: Covering, budget: float) -> bool:
        """Put a mutant into the copy and begin its first round; False if no test runs its line."""
        self.todo = rounds(mutant, covering, budget)
        if not self.todo:
            return False
        self.outcome = Outcome(
            mutant, "survived", covering=len(covering.of(mutant)), seconds=-time.monotonic()
        )
        changed = mutant.applied((ROOT / mutant.file).read_bytes())
        assert changed is not None
        (self.copy / mutant.file).write_bytes(changed)
        self._next()
        return True

    def _next(self) -> None:
        tests = self.todo.pop(0)
        files = sorted({test.split("::")[0] for test in tests})
        limit = 30.0 + _SLOWER * sum(tests.values()) + 2.0 * len(files)
        self.child = Child(self.copy, functools.partial(_session, files, tests), limit)

    def finished(self) -> Outcome | None:
        """Return what became of the mutant, once that is known."""
        child, outcome = self.child, self.outcome
        if child is None or outcome is None or not child.done():
            return None
        result = child.result()
        if result is None:
            outcome.outcome, outcome.by = (
                ("timeout", "") if child.timed_out else ("killed", "the process died")
            )
        elif result["code"] == 5:
            outcome.by = "its tests are no longer there: record again"
        elif result["code"]:
            outcome.outcome, outcome.by = "killed", result["failed"] or "the package cannot be imported"
        outcome.ran += result["ran"] if result else 0
        if outcome.outcome == "survived" and self.todo:
            self._next()
            return None
        outcome.seconds += time.monotonic()
        shutil.copyfile(ROOT / outcome.mutant.file, self.copy / outcome.mutant.file)
        self.child = self.outcome = None
        return outcome


def held(
    mutants: Iterable[Mutant], covering: Covering, folder: Path, jobs: int, budget: float
) -> Iterator[Outcome]:
    """Yield what becomes of each mutant, as that is known; each in a copy of the working tree."""
    folder.mkdir(parents=True, exist_ok=True)
    slots = [_Slot(copied(folder / f"copy{number}")) for number in range(jobs)]
    left = iter(mutants)
    waiting = True
    try:
        while waiting or any(slot.child for slot in slots):
            for slot in slots:
                while slot.child is None and waiting:
                    mutant = next(left, None)
                    if mutant is None:
                        waiting = False
                    elif not slot.begin(mutant, covering, budget):
                        yield Outcome(mutant, "uncovered")
                done = slot.finished()
                if done:
                    yield done
            time.sleep(0.05)
    finally:
        for slot in slots:
            if slot.child:
                slot.child.end()
        shutil.rmtree(folder, ignore_errors=True)
