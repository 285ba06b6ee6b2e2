"""--ticket: a bug report in the form of a tracker, written beside the report of a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropeaudit.console import output, output_files
from ropeaudit.console.options import grouped, option
from ropeaudit.console.output_files import OutputFile
from ropeaudit.console.parameters import one_of
from ropeaudit.errors import UsageError
from ropeaudit.reports.tickets.trackers import FILL_IN, TRACKERS

if TYPE_CHECKING:
    from ropeaudit.reports.tickets.ticket import Ticket

_OURS = ("click", "rich", "pandas", "ml_dtypes")  # what this package stands on says nothing of another one


@dataclass(frozen=True, slots=True)
class TicketOptions:
    """Which tracker a ticket is for, and where it goes; None and None without one."""

    tracker: str | None = option(
        "--ticket",
        "tracker",
        type=one_of("tracker", tuple(TRACKERS)),
        metavar="TRACKER",
        help=f"Write a bug report in the form of {', '.join(TRACKERS)}. Its snippet is run once.",
    )
    ticket_file: str | None = option(
        "--ticket-file",
        "ticket_file",
        metavar="FILE",
        help="Where that goes, in place of what is there.  "
        "[default: ticket-TRACKER.md, which must not be there yet]",
    )

    @property
    def path(self) -> str | None:
        """The file; None without a ticket. Raises: UsageError."""
        if self.tracker is None:
            if self.ticket_file is not None:
                raise UsageError(f"--ticket-file {self.ticket_file!r} needs --ticket {' or '.join(TRACKERS)}")
            return None
        if self.ticket_file is not None and not self.ticket_file.strip():
            raise UsageError(f"--ticket-file {self.ticket_file!r} names no file; give one, or leave it out")
        default = TRACKERS[self.tracker].file
        if self.ticket_file is None and os.path.lexists(default):
            raise UsageError(
                f"{default!r} is there, and may hold what you wrote; move it, or give --ticket-file FILE"
            )
        return self.ticket_file or default


ticket_options = grouped(TicketOptions, "ticketing")


def opened(options: TicketOptions) -> AbstractContextManager[OutputFile | None]:
    """Claim the file before the work; None without one. Raises: BadOutput, UsageError."""
    return output_files.opened_for("--ticket-file", options.path, "ticket")


def write(
    options: TicketOptions, file: OutputFile | None, make: Callable[[], Ticket | None], nothing: str
) -> None:
    """Write the ticket and say so on stderr. nothing: why there is none, where `make` returns none."""
    if file is None or options.tracker is None:
        return
    from ropeaudit.runtime import hardware, run_metadata
    from ropeaudit.subjects import third_party

    ticket = make()
    if ticket is None:
        output.say(f"no ticket was written: {nothing}")
        return
    audited = tuple(entry.package for entry in third_party.ENTRIES.values())
    known = run_metadata.environment() | hardware.environment(audited)
    environment = {name: value for name, value in known.items() if name not in _OURS}
    text = ticket.text(TRACKERS[options.tracker], environment)
    replaced = ", in place of the file that was there" if file.was_there() else ""
    file.fill([text.encode("utf-8", "backslashreplace")])
    it = ticket.reproduction
    snippet = f"its snippet printed {it.printed} here" if it.agrees else f"it has no snippet: {it.missing}"
    places = text.count(f"{FILL_IN}:")
    plural = "s" if places > 1 else ""
    to_do = f"{places} place{plural} to complete ({FILL_IN})"
    output.say(f"ticket written to {file.path!r}{replaced}: {snippet}; {to_do}")
