"""A snippet that shows a number again without this package, run once before it is handed on."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

from ropeaudit.reports.numbers import short

_SECONDS = 300.0  # of a run, the import of torch and of the audited package among them
_AGREES = 0.01  # relative: BLAS sums in another order for another shape, and math libraries differ by an ulp


class NoSnippet(Exception):
    """Why a snippet of a few lines cannot show this."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code, and the number of the report that it prints. column: what the number is called there.

    where: the row, in words. file: what it imports or reads that the reader of a ticket does not have.
    """

    lines: tuple[str, ...]
    column: str
    value: float
    where: str
    file: str = ""

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
            return f"There is no short snippet of it: {self.missing}. The command shows it."
        it, column = self.snippet, self.snippet.column.replace("_", " ")
        printed = f"It prints `{self.printed}` here, the {column} of {it.where}."
        needed = f" It reads {it.file}: add that file, or say where to get it." if it.file else ""
        return f"```python\n{it.text}```\n\n{printed}{needed}"


def reproduced(snippet: Snippet) -> Reproduction:
    """Run a snippet in a new process, and compare the number that it prints with that of the report."""
    try:
        run = subprocess.run(  # its own interpreter; own code is that of --impl
            [sys.executable, "-P", "-c", snippet.text],
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
