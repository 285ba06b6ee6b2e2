"""Which fast tests run which line of the package, and how long each takes: recorded once for each test file.

A test file's record is made again when the package, the file or a helper of the tests has changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mutation.forked import PACKAGE, ROOT, Child, copied, pytest_main
from mutation.operators import Mutant

_SETTINGS = """[run]
data_file = {data}
context = ${{MUTATION_TEST-}}
include = {package}/*
parallel = true
core = ctrace
sigterm = true
"""


class Recorder:
    """A plugin of pytest: the test as the context of coverage, here and in processes that it starts."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.tests = coverage, {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test: what others left in the package's caches must be computed again."""
        for name, module in list(sys.modules.items()):
            if name.startswith("ropeaudit"):
                for value in list(vars(module).values()):
                    if isinstance(value, functools._lru_cache_wrapper):
                        value.cache_clear()
        self.coverage.switch_context(nodeid)
        os.environ["MUTATION_TEST"] = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up how long it took, and whether it passed."""
        seconds, passed = self.tests.get(report.nodeid, (0.0, True))
        self.tests[report.nodeid] = (
            seconds + report.duration,
            passed and not report.failed and not report.skipped,
        )

    def pytest_runtest_logfinish(self) -> None:
        """End a test."""
        self.coverage.switch_context("")


def _record(file: str, data: Path, settings: Path) -> dict[str, Any]:
    from coverage import Coverage, CoverageData
    from coverage.exceptions import DataError

    for old in data.parent.glob(f"{data.name}*"):
        old.unlink()
    os.environ["MUTATION_TEST"] = ""
    coverage = Coverage(config_file=str(settings))
    coverage.start()
    recorder = Recorder(coverage)
    os.environ["COVERAGE_PROCESS_START"] = str(settings)
    pytest_main([file], recorder)
    coverage.stop()
    coverage.save()
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    calling: set[str] = set()  # tests that call code in another process, which one of them has started
    parts = data.parent.glob(f"{data.name}*")
    for part in sorted(parts, key=lambda part: f".pid{os.getpid()}." not in part.name):  # its own first
        own = f".pid{os.getpid()}." in part.name
        also = set[str]() if own else calling
        read = CoverageData(str(part))
        try:
            read.read()
        except DataError:  # of a process that was killed while it wrote
            continue
        for path in read.measured_files():
            name = path[path.rindex("/ropeaudit/") + 1 :]
            for line, contexts in read.contexts_by_lineno(path).items():
                lines[name][line] |= {context for context in contexts if context} | also
                if own and name.startswith("ropeaudit/door/"):
                    calling |= lines[name][line]
        part.unlink(missing_ok=True)  # a session that ends later may have joined it
    number = {test: place for place, test in enumerate(recorder.tests)}
    numbered = {
        name: {line: sorted(number[test] for test in seen if test in number) for line, seen in at.items()}
        for name, at in lines.items()
    }
    return {"tests": recorder.tests, "lines": numbered}


def digest(paths: list[Path]) -> str:
    """Return a digest of files' names and contents."""
    results = hashlib.sha256()
    for path in sorted(paths):
        results.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return results.hexdigest()[:16]


def test_files() -> list[Path]:
    """Return the files whose tests are held against mutants: those of tests/, and the package's examples."""
    return [*sorted((ROOT / "tests").rglob("test_*.py")), *_with_examples()]


def _with_examples() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [file for file in files if ">>> " in file.read_text() and "third_party" not in file.parts]


def record(folder: Path, jobs: int, limit: float = 1800.0) -> None:
    """Record what is missing in a folder. Test by test, in forks."""
    helpers = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if path.name[:5] != "test_" and path.name != "mutate.py"
    ]
    shared = digest([*PACKAGE.rglob("*.py"), *helpers])
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for file in test_files():
        name = str(file.relative_to(ROOT))
        built = folder / f"{name.replace('/', '.')}.json"
        stamp = f"{shared} {digest([file])}"
        if not built.exists() or json.loads(built.read_text())["stamp"] != stamp:
            missing.append((name, built, stamp))
    if not missing:
        return
    copies = [copied(folder / f"copy{number}") for number in range(jobs)]
    running: dict[Path, tuple[Child, tuple[str, Path, str]]] = {}
    try:
        _record_all(missing, copies, running, limit)
    finally:
        import shutil

        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)


def _record_all(missing: list[Any], copies: list[Path], running: dict[Path, Any], limit: float) -> None:
    import time

    while missing or running:
        for copy in [copy for copy in copies if copy not in running][: len(missing)]:
            name, built, stamp = missing.pop(0)
            data = copy.parent / f"{copy.name}.data"
            settings = copy.parent / f"{copy.name}.rc"
            settings.write_text(_SETTINGS.format(data=data, package=copy / "ropeaudit"))
            work = functools.partial(_record, name, data, settings)
            running[copy] = Child(copy, work, limit), (name, built, stamp)
        for copy, (child, (name, built, stamp)) in list(running.items()):
            if child.done():
                del running[copy]
                result = child.result()
                if result is None:
                    print(
                        f"{name}: nothing recorded; see {child.answer.with_suffix('.log')}", file=sys.stderr
                    )
                    continue
                failed = [test for test, (_, passed) in result["tests"].items() if not passed]
                print(
                    f"{name}: {len(result['tests'])} tests, {len(failed)} left out",
                    file=sys.stderr,
                    flush=True,
                )
                built.write_text(json.dumps({"stamp": stamp, **result}))
        time.sleep(0.05)


class Covering:
    """Tests by line, as recorded."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.size: Counter[str] = Counter()  # lines that a test runs
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for file in test_files():
            built = folder / f"{str(file.relative_to(ROOT)).replace('/', '.')}.json"
            if not built.exists():
                continue
            result = json.loads(built.read_text())
            self.seconds |= {test: seconds for test, (seconds, passed) in result["tests"].items() if passed}
            names = list(result["tests"])
            for name, at in result["lines"].items():
                for line, tests in at.items():
                    ran = self.seconds.keys() & {names[test] for test in tests}
                    self.lines[name][int(line)] |= ran
                    self.size.update(ran)
        self._words = {str(path.relative_to(ROOT)): _words(path) for path in PACKAGE.rglob("*.py")}

    def of(self, mutant: Mutant) -> set[str]:
        """Return the tests that run a mutant's line, or for code that runs at import what uses it."""
        at = self.lines[mutant.file]
        if mutant.scope:
            return set().union(*(at[line] for line in mutant.scope))
        if not mutant.names:
            return set(at[mutant.line])
        results: set[str] = set()
        for file, words in self._words.items():
            for name in mutant.names:
                results = results.union(*(self.lines[file][line] for line in words.get(name, ())))
        return results or set().union(*at.values())


def _words(path: Path) -> dict[str, list[int]]:
    result: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in set(re.findall(r"[A-Za-z_]\w*", line)):
            result[word].append(number)
    return result
