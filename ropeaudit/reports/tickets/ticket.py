"""A ticket: one Markdown template of facts, the snippet and the command that show them again, versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropeaudit import reports
from ropeaudit.reports import Report, Row
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.tickets.reproduction import Reproduction
from ropeaudit.runtime.run_metadata import command_line

_MOST_ROWS = 20  # of a table in a ticket
_TEMPLATE = """\
# {title}

{seen}

**Expected.** {expected}

## Snippet

{snippet}

## Command

```shell
{command}
```

## Facts

{facts}

{table}

## Versions

```text
{environment}
```
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A bug report of what one row shows.

    title: without the folders of files; `by_code` ends it. report: its headline and its notes say what was
    measured. facts: of the row that the ticket is about. expected: what is right, and why, as Markdown.
    """

    title: str
    report: Report
    facts: Row
    expected: str
    reproduction: Reproduction

    def text(self, environment: Mapping[str, object]) -> str:
        """Return the file."""
        said = Report((), (), (), headline=self.report.headline, notes=self.report.notes)
        return _TEMPLATE.format(
            title=printable(self.title),
            seen=reports.render("markdown", said).rstrip(),
            expected=self.expected,
            snippet=self.reproduction.text(),
            command=command_line(),
            facts=self._facts(),
            table=self._table(),
            environment="\n".join(f"{name}: {value}" for name, value in environment.items()),
        )

    def _facts(self) -> str:
        """Return what is known of the row, a line each."""
        facts = [
            {"fact": name.replace("_", " "), "value": self.report.shown(name, value)}
            for name, value in self.facts.items()
            if name not in ("schema", "case") and value not in (None, "", "none") and value == value  # no nan
        ]
        return str(reports.render("markdown", Report(facts, ("fact", "value"), ("fact", "value")))).rstrip()

    def _table(self) -> str:
        """Return the first rows of the report."""
        shown = self.report.for_readers()
        more = len(shown.rows) - _MOST_ROWS
        notes = [f"{more} more rows of the report are left out here"] if more > 0 else []
        table = replace(
            shown, rows=shown.rows[:_MOST_ROWS], headline="", notes=notes, metadata={}, further={}
        )
        return str(reports.render("markdown", table)).rstrip()


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
