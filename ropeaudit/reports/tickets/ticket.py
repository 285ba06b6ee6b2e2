"""A ticket: what was measured, why it is wrong, how to see it again, and on which machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ropeaudit import reports
from ropeaudit.reports import Report
from ropeaudit.reports.tickets.reproduction import NoSnippet, Reproduction, Snippet, reproduced
from ropeaudit.reports.tickets.trackers import FILL_IN, Tracker

_MOST_ROWS = 20  # of a table in a ticket
_SYSTEMS = {"Darwin": "Mac"}  # as llama.cpp's form calls them


@dataclass(frozen=True, slots=True)
class Ticket:
    """Everything that a form may ask for. All texts but the title are Markdown.

    seen: what is wrong. expected: what is right, and why. reproduction: the snippet and what it printed.
    report: the table; further: another one beneath it. command: what was typed.
    """

    title: str
    seen: str
    expected: str
    reproduction: Reproduction
    report: Report
    command: str
    further: Report | None = None

    def text(self, tracker: Tracker, environment: Mapping[str, object]) -> str:
        """Return the file: title and address, then the sections of the form."""
        parts = {
            "seen": self.seen,
            "expected": self.expected,
            "reproduction": self.reproduction.text(),
            "table": self._table(),
            "environment": "\n".join(f"{name}: {value}" for name, value in environment.items()),
            "system": _SYSTEMS.get(platform.system(), platform.system()),
            "hardware": f"{environment.get('cpu', 'unknown')}; GPU: {environment.get('gpu', 'unknown')}.",
            "command": self.command,
        }
        sections = [f"### {head}\n\n{body.format(**parts)}" for head, body in tracker.sections.items()]
        comment = (
            f"<!-- Send at {tracker.url}\nTitle: {tracker.title}{self.title}\n"
            f'Search for "{FILL_IN}": those places are yours to complete. Delete this comment. -->'
        )
        return "\n\n".join([comment, *sections]) + "\n"

    def _table(self) -> str:
        """Return what was typed, and the first rows of the reports, without what other sections hold."""
        tables = [_rendered(one) for one in (self.report, self.further) if one is not None]
        return "\n\n".join([f"`{self.command}`", *tables])


def _rendered(report: Report) -> str:
    """Return the first rows of a report as Markdown."""
    shown = report.for_readers()
    more = len(shown.rows) - _MOST_ROWS
    notes = [f"{more} more rows of the report are left out here"] if more > 0 else []
    table = replace(shown, rows=shown.rows[:_MOST_ROWS], headline="", notes=notes, metadata={}, further={})
    return reports.render("markdown", table).rstrip()


def reproduction(make: Callable[[bool], Snippet]) -> Reproduction:
    """Return a snippet that was run, or why there is none. make: from whether own code is written into it."""
    for inline in (True, False):
        try:
            return reproduced(make(inline))
        except NoSnippet as error:
            missing = str(error)
    return Reproduction(None, missing=missing)
