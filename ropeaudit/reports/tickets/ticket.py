"""A ticket: the facts of a row, the call that shows them again, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ropeaudit import reports
from ropeaudit.reports import Report, Row
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.tickets.reproduction import NoSnippet, Reproduction, Snippet, reproduced
from ropeaudit.reports.tickets.trackers import FILL_IN, Tracker
from ropeaudit.runtime.run_metadata import command_line

_MOST_ROWS = 20  # of a table in a ticket
_SYSTEMS = {"Darwin": "Mac"}  # as llama.cpp's form calls them


@dataclass(frozen=True, slots=True)
class Ticket:
    """Everything that a form may ask for.

    title: without the folders of files; `by_code` ends it. report: its headline and its notes say what was
    measured. facts: of the row that the ticket is about. expected: what is right, and why, as Markdown.
    """

    title: str
    report: Report
    facts: Row
    expected: str
    reproduction: Reproduction

    def text(self, tracker: Tracker, environment: Mapping[str, object]) -> str:
        """Return the file: title and address, then the sections of the form."""
        said = Report((), (), (), headline=self.report.headline, notes=self.report.notes)
        parts = {
            "seen": reports.render("markdown", said).rstrip(),
            "expected": self.expected,
            "reproduction": self.reproduction.text(),
            "table": self._table(),
            "environment": "\n".join(f"{name}: {value}" for name, value in environment.items()),
            "system": _SYSTEMS.get(platform.system(), platform.system()),
            "hardware": f"{environment.get('cpu', 'unknown')}; GPU: {environment.get('gpu', 'unknown')}.",
            "command": command_line(),
        }
        sections = [f"### {head}\n\n{body.format(**parts)}" for head, body in tracker.sections.items()]
        comment = (
            f"<!-- Send at {tracker.url}\nTitle: {tracker.title}{printable(self.title)}\n"
            f'Search for "{FILL_IN}": those places are yours to complete. Delete this comment. -->'
        )
        return "\n\n".join([comment, *sections]) + "\n"

    def _table(self) -> str:
        """Return what was typed, the facts of the row, and the first rows of the report."""
        report = self.report
        facts = [
            {"fact": name.replace("_", " "), "value": report.shown(name, value)}
            for name, value in self.facts.items()
            if name not in ("schema", "case") and value not in (None, "", "none") and value == value  # no nan
        ]
        listed = reports.render("markdown", Report(facts, ("fact", "value"), ("fact", "value"))).rstrip()
        shown = report.for_readers()
        more = len(shown.rows) - _MOST_ROWS
        notes = [f"{more} more rows of the report are left out here"] if more > 0 else []
        table = replace(
            shown, rows=shown.rows[:_MOST_ROWS], headline="", notes=notes, metadata={}, further={}
        )
        return "\n\n".join([f"`{command_line()}`", listed, reports.render("markdown", table).rstrip()])


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


def reproduction(make: Callable[[], Snippet]) -> Reproduction:
    """Return a snippet that was run, or why there is none."""
    try:
        return reproduced(make())
    except NoSnippet as error:
        return Reproduction(None, missing=str(error))
