"""A ticket: the finding, what was expected, a snippet and the command that show it again, facts, versions.

A snippet shows a number without this package; it is run once before it is handed on.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ropeaudit.reports import Report, Row, templates
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.run_metadata import command_line

_SECONDS = 300.0  # of a run, the import of torch and of the audited package among them
_AGREES = 0.01  # relative: BLAS sums in another order for another shape, and math libraries differ by an ulp


class NoSnippet(Exception):
    """Why a snippet of a few lines cannot show this."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A snippet that prints a drift_rms of the report, or why there is none.

    value: the number of the report. where: its row, in words. file: what the code imports that the reader of
    a ticket does not have. printed: the last line that it printed here. missing: why there is no code, or
    why it did not print the number.
    """

    code: str = ""
    value: float = math.nan
    where: str = ""
    file: str = ""
    printed: str = ""
    missing: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it printed the number of the report."""
        return bool(self.code) and not self.missing


def reproduced(snippet: Reproduction) -> Reproduction:
    """Run a snippet in a new process and compare its number with the report's."""
    try:
        run = subprocess.run(  # its own interpreter; own code is that of --impl
            [sys.executable, "-P", "-c", snippet.code],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return replace(snippet, missing=f"one took more than {_SECONDS:.0f} s")
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return replace(snippet, missing=f"one raised {' '.join(last.split())[:200]}")
    return compared(snippet, (run.stdout.strip().splitlines() or [""])[-1])


def compared(snippet: Reproduction, printed: str) -> Reproduction:
    """Return a snippet with the line that it printed, judged against the report."""
    try:
        number = float(printed.split()[-1])
    except (IndexError, ValueError):
        return replace(snippet, missing="one printed no number")
    if math.isclose(number, snippet.value, rel_tol=_AGREES):
        return replace(snippet, printed=printed)
    missing = f"one printed drift_rms {short(number)}, and the table has {short(snippet.value)}"
    return replace(snippet, missing=missing)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A bug report of what one row shows, or that nothing is wrong.

    title: without the folders of files; `by_code` ends it; empty for the beginning of the headline.
    report: its headline and its notes say what was measured. facts: of the row that the ticket is about.
    expected: what is right, and why; empty where nothing is wrong, and then there is nothing to reproduce.
    """

    title: str
    report: Report
    facts: Row = field(default_factory=dict)
    expected: str = ""
    reproduction: Reproduction = Reproduction(missing="nothing is wrong")

    def text(self, environment: Mapping[str, object]) -> str:
        """Return the file."""
        facts = {
            name: value
            for name, value in self.facts.items()
            if name not in ("schema", "case") and value not in (None, "", "none") and value == value  # no nan
        }
        return templates.render(
            "ticket.md.j2",
            title=self.title or self.report.headline.partition("; ")[0],
            report=self.report,
            expected=self.expected,
            reproduction=self.reproduction,
            command=command_line(),
            facts=facts,
            environment=environment,
        )


def file_name(target: str) -> str:
    """Return what was audited, a file without its folder: a title is read where nobody has that folder.

    >>> file_name(__file__ + ":rotate")
    'ticket.py:rotate'
    >>> file_name("package.module:rotate")
    'package.module:rotate'
    """
    place, colon, name = target.partition(":")
    return f"{os.path.basename(os.path.normpath(place)) if os.path.exists(place) else place}{colon}{name}"


def by_code(code: str | None) -> str:
    """Return the end of a title: the code of the diagnosis, where there is one.

    >>> by_code("wrong-base")
    ' (wrong-base)'
    """
    return f" ({code})" if code else ""
