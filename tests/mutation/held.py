"""Which fast tests run which line of the package, and what becomes of a mutant that is held against them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from mutation.operators import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ropeaudit"
SETTINGS = """[run]
data_file = {data}
context = ${{MUTATION_TEST-}}
include = {package}/*
parallel = true
core = ctrace
sigterm = true
patch = subprocess, _exit
"""
_STRANGE = 3  # what tests of other files count as if they ran times as many lines
_SLOWER = 6.0  # than recorded: other work on the machine, more threads than cores
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build")
_PYTEST = ["-m", "pytest", "-q", "-p", "mutation.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
_PYTEST += ["--hypothesis-seed=0", "--tb=line", "--no-showlocals"]  # examples that are the same each time


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """Return that of a process in which a copy stands before an editable install."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(folder / "tests")])} | more


def _digest() -> str:
    """Return a digest of the package and its tests."""
    result = hashlib.sha256()
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        result.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return result.hexdigest()


def record(folder: Path, tests: list[str]) -> None:
    """Record in a folder which tests run which line, unless it holds that of these sources and tests."""
    stamp, told = f"{_digest()} {' '.join(tests)}", folder / "recorded.json"
    if told.exists() and json.loads(told.read_text(encoding="utf-8"))["stamp"] == stamp:
        return
    from coverage import CoverageData
    from coverage.exceptions import DataError

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings, data = folder / "settings", folder / "data"
    settings.write_text(SETTINGS.format(data=data, package=PACKAGE), encoding="utf-8")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", *_PYTEST, *tests]
    there = _environment(ROOT, MUTATION_LINES=str(folder / "seconds.json"), MUTATION_TEST="")
    with subprocess.Popen(command, cwd=ROOT, env=there) as session:
        session.wait()
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    calling: set[str] = set()  # tests that call code in another process, which one of them has started
    parts = sorted(folder.glob("data.*"), key=lambda part: f".pid{session.pid}." not in part.name)
    for part in parts:  # the session's own first
        own, read = f".pid{session.pid}." in part.name, CoverageData(str(part))
        try:
            read.read()
        except DataError:  # of a process that was killed while it wrote
            continue
        for path in read.measured_files():
            name = path[path.rindex("/ropeaudit/") + 1 :]
            for line, contexts in read.contexts_by_lineno(path).items():
                lines[name][line] |= {one for one in contexts if one} | (set() if own else calling)
                if own and name.startswith("ropeaudit/door/"):
                    calling |= lines[name][line]
        part.unlink()
    seconds = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
    ran = {name: {line: sorted(some) for line, some in at.items()} for name, at in lines.items()}
    told.write_text(json.dumps({"stamp": stamp, "seconds": seconds, "lines": ran}), encoding="utf-8")


class Covering:
    """Tests by line, as recorded. size: how many lines a test runs."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "recorded.json").read_text(encoding="utf-8"))
        self.seconds: dict[str, float] = told["seconds"]
        self.size: Counter[str] = Counter()
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name, at in told["lines"].items():
            for line, tests in at.items():
                self.lines[name][int(line)] = self.seconds.keys() & set(tests)
                self.size.update(self.lines[name][int(line)])

    def of(self, mutant: Mutant) -> set[str]:
        """Return the tests that run a mutant's line, or for code that runs at import what uses it."""
        at = self.lines[mutant.file]
        if mutant.scope:
            return set().union(*(at[line] for line in mutant.scope))
        if not mutant.names:
            return set(at[mutant.line])
        named = re.compile(rf"\b({'|'.join(map(re.escape, mutant.names))})\b")
        using = [
            self.lines[str(path.relative_to(ROOT))][number]
            for path in PACKAGE.rglob("*.py")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if named.search(line)
        ]
        return set().union(*using) or set().union(*at.values())

    def picked(self, mutant: Mutant, budget: float) -> list[str]:
        """Return the tests to run within so many seconds, the telling ones first.

        A test tells the more of a line the fewer others it runs, and if its file is named like the line's;
        of one function's cases the first tells most.
        """
        cases: Counter[str] = Counter()
        names = {part.removesuffix(".py").rstrip("s") for part in mutant.file.split("/")[1:]} - {"__init__"}
        ranked = []
        for test in sorted(self.of(mutant), key=lambda test: (self.size[test], self.seconds[test])):
            function = test.split("[")[0]
            cases[function] += 1
            strange = 1 if any(name in test.split("::")[0] for name in names) else _STRANGE
            ranked.append((self.size[test] * cases[function] * strange, test))
        picked: list[str] = []
        for _, test in sorted(ranked):
            if self.seconds[test] <= budget:
                picked.append(test)
                budget -= self.seconds[test]
        return picked


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: killed, survived, timeout or uncovered; by which of so many tests."""

    mutant: Mutant
    outcome: str
    by: str = ""
    tests: int = 0


def _held(mutant: Mutant, covering: Covering, copy: Path, budget: float) -> Outcome:
    tests = covering.picked(mutant, budget)
    if not tests:
        return Outcome(mutant, "uncovered")
    changed = mutant.applied((ROOT / mutant.file).read_bytes())
    assert changed is not None
    (copy / mutant.file).write_bytes(changed)
    (copy / "picked.json").write_text(json.dumps(tests), encoding="utf-8")
    files = sorted({test.split("::")[0] for test in tests})
    limit = 60.0 + _SLOWER * sum(covering.seconds[test] for test in tests) + 2.0 * len(files)
    command = [sys.executable, *_PYTEST, "-x", *files]
    there = _environment(copy, MUTATION_TESTS=str(copy / "picked.json"))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(
        command, cwd=copy, env=there, text=True, start_new_session=True, **streams
    ) as session:
        try:
            told, _ = session.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return Outcome(mutant, "timeout", tests=len(tests))
        finally:
            shutil.copyfile(ROOT / mutant.file, copy / mutant.file)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session.pid, signal.SIGKILL)  # what it started, too
    if session.returncode in (0, 5):  # 5: no test is there under its name
        return Outcome(mutant, "survived", "no test is there" * bool(session.returncode), len(tests))
    first = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", told, re.MULTILINE)
    return Outcome(mutant, "killed", first[1] if first else "the package cannot be imported", len(tests))


def held(
    mutants: Iterable[Mutant], covering: Covering, folder: Path, jobs: int, budget: float
) -> Iterator[Outcome]:
    """Yield what becomes of each mutant; each in a copy of the working tree."""
    shutil.rmtree(folder, ignore_errors=True)
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        copies.put(shutil.copytree(ROOT, folder / f"copy{number}", ignore=_LEFT_OUT))

    def one(mutant: Mutant) -> Outcome:
        copy = copies.get()
        try:
            return _held(mutant, covering, copy, budget)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, mutants)
    shutil.rmtree(folder)
