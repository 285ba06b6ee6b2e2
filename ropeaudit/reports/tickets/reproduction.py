"""A snippet that shows a number again without this package, run once before it is handed on."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ropeaudit.reports.numbers import short
from ropeaudit.reports.tickets.trackers import FILL_IN

LINES = 15  # at most, of a snippet
_PACKAGES = ("import torch", "import numpy as np", "import math")
_SECONDS = 300.0  # of a run, the import of torch and of the audited package among them
_AGREES = 0.01  # relative: BLAS sums in another order for another shape, and math libraries differ by an ulp


class NoSnippet(Exception):
    """Why a snippet of a few lines cannot show this."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code, and the number of the report that it prints. column: what the number is called there."""

    lines: tuple[str, ...]
    column: str
    value: float
    where: str  # the row, in words
    path: str = ""  # a folder of own code that the snippet imports from

    def __post_init__(self) -> None:
        if len(self.lines) > LINES:
            raise NoSnippet(f"it would take {len(self.lines)} lines")

    @property
    def text(self) -> str:
        """Return the code, with a newline at its end."""
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A snippet and the number that it printed here; why there is none, or it printed no such number."""

    snippet: Snippet | None
    printed: str = ""
    missing: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it printed the number of the report."""
        return self.snippet is not None and not self.missing

    def text(self) -> str:
        """Return the snippet and its number, as Markdown."""
        if self.snippet is None or not self.agrees:
            return f"There is no short snippet of it: {self.missing}. The command below shows it."
        it, column = self.snippet, self.snippet.column.replace("_", " ")
        printed = f"It prints `{self.printed}` here, the {column} of {it.where} in the table below."
        return f"```python\n{it.text}```\n\n{printed}{_attached(it)}"


def _attached(snippet: Snippet) -> str:
    """Return which file of the user's a snippet imports, which the reader of a ticket does not have."""
    places = (line.split()[1] for line in snippet.lines if snippet.path and line.startswith("from "))
    own = next((f"{place}.py" for place in places if (Path(snippet.path) / f"{place}.py").is_file()), None)
    text = f"\n\n{FILL_IN}: the content of {own}, from which the snippet imports." if own else ""
    read = [path for path in re.findall(r"'([^']+)'", snippet.text) if os.path.exists(path)]
    return text + "".join(
        f"\n\n{FILL_IN}: where readers get {path}, which the snippet reads." for path in read
    )


def reproduced(snippet: Snippet) -> Reproduction:
    """Run a snippet in a new process, and compare the number that it prints with that of the report."""
    try:
        run = subprocess.run(  # its own interpreter; own code is that of --impl
            [sys.executable, "-P", "-c", _finding_its_code(snippet)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reproduction(snippet, missing=f"one took more than {_SECONDS:.0f} s")
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return Reproduction(snippet, missing=f"one raised {' '.join(last.split())[:200]}")
    return compared(snippet, run.stdout.strip().splitlines()[-1:] or [""])


def _finding_its_code(snippet: Snippet) -> str:
    """Return the code of a snippet with a folder on sys.path, where nothing hides an installed package.

    The folder of a file comes first as soon as packages are imported; the current one, for a module by its
    name, last.
    """
    lines = list(snippet.lines)
    begin = next((n for n, line in enumerate(lines) if line not in _PACKAGES), 0)
    places = [f"__import__('sys').path.insert(0, {snippet.path!r})"] if snippet.path else []
    with contextlib.suppress(OSError):  # a folder that is gone
        places = places or [f"__import__('sys').path.append({os.getcwd()!r})"]
    return "\n".join([*lines[:begin], *places, *lines[begin:]]) + "\n"


def compared(snippet: Snippet, lines: list[str]) -> Reproduction:
    """Return what a snippet printed, judged against the report."""
    try:
        number = float(lines[-1].split()[-1])
    except (IndexError, ValueError):
        return Reproduction(snippet, missing="one printed no number")
    if math.isclose(number, snippet.value, rel_tol=_AGREES):
        return Reproduction(snippet, lines[-1])
    name = snippet.column
    return Reproduction(
        snippet, missing=f"one printed {name} {short(number)}, and the table has {short(snippet.value)}"
    )
