"""Processes that examine implementations, so that none stops the survey: not by a crash, nor by hanging.

A process of its own per package too: what one imports may exclude another. Names go in and results come out
as lines of JSON.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from ropeaudit.features.survey.surveyed import Options, Surveyed

PATIENCE = 300.0  # seconds for one implementation
_WORK = "from ropeaudit.features.survey.processes import work; work()"
_MANY = 40  # implementations of a process: what they import stays in its memory


def surveyed(
    names: Sequence[str], options: Options, jobs: int, on_progress: Callable[[float], None]
) -> Iterator[Surveyed]:
    """Yield what is known of each implementation, in the order of names, from `jobs` processes."""
    results: dict[str, Surveyed] = {}
    left: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    done: queue.SimpleQueue[Surveyed] = queue.SimpleQueue()
    for batch in _batches(names):
        left.put(batch)
    stop = threading.Event()
    given = (left, done, options, stop)
    threads = [threading.Thread(target=_serve, args=given, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for name in names:
            while name not in results:
                on_progress(len(results) / len(names))
                try:
                    one = done.get(timeout=0.2)
                except queue.Empty:
                    continue
                results[one.name] = one
            yield results[name]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield names that one process examines: of one package, and not too many."""
    packages: dict[str, list[str]] = {}
    for name in names:
        packages.setdefault(name.partition(":")[0], []).append(name)
    for some in packages.values():
        for start in range(0, len(some), _MANY):
            yield some[start : start + _MANY]


def _serve(
    left: queue.SimpleQueue[list[str]],
    done: queue.SimpleQueue[Surveyed],
    options: Options,
    stop: threading.Event,
) -> None:
    """Examine one batch after the other; a process that dies or hangs costs the name that it was at."""
    while not stop.is_set():
        try:
            batch = left.get_nowait()
        except queue.Empty:
            return
        while batch and not stop.is_set():
            with _Process(options) as process:
                while batch and not stop.is_set():
                    name = batch.pop(0)
                    answer, lives = process.examined(name, stop)
                    done.put(answer)
                    if not lives:
                        break


class _Process:
    """A process that examines names, one after the other."""

    def __init__(self, options: Options) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORK, json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.child.kill()
        self.child.wait()
        self.reader.join()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe:
                pipe.close()
        self.errors.close()

    def _read(self) -> None:
        for line in self.child.stdout or ():
            self.lines.put(line)
        self.lines.put("")

    def examined(self, name: str, stop: threading.Event) -> tuple[Surveyed, bool]:
        """Return what is known of a name, and whether the process can go on."""
        try:
            self._send(name)
        except OSError:
            return Surveyed(name, refused=self._end()), False
        waited = 0.0
        while not stop.is_set() and waited < PATIENCE:
            try:
                line = self.lines.get(timeout=0.2)
            except queue.Empty:
                waited += 0.2
                continue
            if not line:
                return Surveyed(name, refused=self._end()), False
            return Surveyed.from_json(json.loads(line)), True
        return Surveyed(name, refused=f"took longer than {PATIENCE:g} s, and was ended"), False

    def _send(self, name: str) -> None:
        if self.child.stdin:
            self.child.stdin.write(name + "\n")
            self.child.stdin.flush()

    def _end(self) -> str:
        """Return how the process ended, with the last line of what it wrote."""
        code = self.child.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}" + (f": {lines[-1][:200]}" if lines else "")


def work() -> None:
    """Examine the names that come, line by line; this runs in a process of `surveyed`."""
    from ropeaudit.features.survey.examination import examined

    options = Options.from_json(json.loads(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what other people's code prints is no result
    for line in sys.stdin:
        out.write(json.dumps(examined(line.strip(), options).to_json()) + "\n")
        out.flush()
