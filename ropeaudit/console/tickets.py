"""--ticket: a bug report in Markdown, written beside the report of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ropeaudit.console import output
from ropeaudit.console.output_files import OutputFile
from ropeaudit.console.parameters import Parsed
from ropeaudit.errors import BadOutput, UnknownName, UsageError, withdrawn

if TYPE_CHECKING:
    from ropeaudit.reports.tickets import Ticket


def _file(text: str, flag: str) -> str:
    """Return the file of a ticket. Raises: UsageError, UnknownName."""
    if withdrawn(flag, text):
        raise UnknownName(flag, text, ())
    if not text.strip():
        raise UsageError(f"{flag} {text!r} names no file; give one, or leave it out")
    return text


ticket_option = click.option(
    "--ticket",
    type=Parsed("file", _file),
    metavar="FILE",
    help="Write a bug report in Markdown too. Its snippet is run once.",
)


def write(file: OutputFile | None, make: Callable[[], Ticket | None]) -> int:
    """Write the ticket and say so on stderr; return the exit code, 2 where it cannot be written.

    make: returns none where nothing was judged.
    """
    if file is None:
        return 0
    from ropeaudit.runtime import run_metadata
    from ropeaudit.subjects import third_party

    ticket = make()
    if ticket is None:
        output.say("no ticket was written: nothing was judged to its end")
        return 0
    audited = tuple(entry.package for entry in third_party.ENTRIES.values())
    text = ticket.text(run_metadata.environment() | run_metadata.hardware(audited))
    replaced = ", in place of the file that was there" if file.was_there() else ""
    try:
        file.fill([text.encode("utf-8", "backslashreplace")])
    except BadOutput as error:
        output.say_error(error)
        return 2
    it = ticket.reproduction
    snippet = f"its snippet printed {it.printed} here" if it.agrees else f"it has no snippet: {it.missing}"
    output.say(f"ticket written to {file.path!r}{replaced}: {snippet}")
    return 0
