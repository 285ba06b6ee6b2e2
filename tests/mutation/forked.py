"""Run pytest in forks of this process, which has the heavy libraries loaded and the package not."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ropeaudit"
_MEMORY = 12 * 2**30  # of a child: a mutant of a guard of memory must not take the machine's
_HEAVY = ["numpy", "ml_dtypes", "click", "hypothesis", "pytest", "mpmath", "pandas", "rich.console", "torch"]
_HEAVY += ["matplotlib.figure", "transformers.models.llama.modeling_llama", "transformers.models.auto"]
_HEAVY += ["_hypothesis_pytestplugin", "anyio.pytest_plugin", "syrupy", "doctest", "safetensors.numpy"]
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)


def preload() -> None:
    """Import what most tests need, and nothing of the package."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end, several times
    assert "ropeaudit" not in sys.modules


def copied(folder: Path) -> Path:
    """Return a copy of the working tree, whose compiled files go by their source's text, not its time."""
    import compileall
    from py_compile import PycInvalidationMode

    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT)
    mode = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder / "ropeaudit", quiet=1, invalidation_mode=mode)
    return folder


class Child:
    """A fork that runs pytest in a copy and answers with what `work` returns, as JSON."""

    def __init__(self, copy: Path, work: Callable[[], Any], limit: float) -> None:
        self.answer, self.begun, self.limit = copy.parent / f"{copy.name}.answer", time.monotonic(), limit
        self.answer.unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(copy, work)

    def _child(self, copy: Path, work: Callable[[], Any]) -> None:
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            log = os.open(self.answer.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            null = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, null), (1, log), (2, log)):
                os.dup2(source, target)
            os.chdir(copy)
            # The copy stands before an editable install of the working tree, here and in what tests start.
            os.environ["PYTHONPATH"] = str(copy)
            sys.path.insert(0, str(copy))
            sys.argv = ["pytest"]
            sys.dont_write_bytecode = False  # a test file is compiled once for all mutants of a copy
            sys.modules["__main__"] = types.ModuleType("__main__")  # spawned processes run it again
            self.answer.write_text(json.dumps(work()))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def done(self) -> bool:
        """Tell whether it has ended; past its limit it is ended, with what it started."""
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            self.end()
            return True
        if time.monotonic() - self.begun < self.limit:
            return False
        self.end()
        os.waitpid(self.pid, 0)
        return True

    def end(self) -> None:
        """End it, with what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def result(self) -> Any:
        """Return its answer; None if it died or ran out of time."""
        try:
            return json.loads(self.answer.read_text())
        except (OSError, ValueError):
            return None

    @property
    def timed_out(self) -> bool:
        """Tell whether it reached its limit."""
        return time.monotonic() - self.begun >= self.limit


def pytest_main(arguments: Sequence[str], plugin: object) -> int:
    """Run pytest as the project does, but in one process and with examples that are the same each time."""
    import hypothesis
    import pytest

    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)
    quiet = [
        "--hypothesis-profile=mutation",
        "-q",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=line",
        "--no-showlocals",
    ]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))
