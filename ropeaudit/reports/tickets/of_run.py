"""The ticket of a RoPE module that returns wrong cos and sin once it was loaded in some way."""

from __future__ import annotations

from dataclasses import dataclass

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.tickets.reproduction import NoSnippet, Snippet
from ropeaudit.reports.tickets.ticket import Ticket, reproduction


@dataclass(frozen=True, slots=True)
class WrongRun:
    """A module that is off: where it is from, how it was loaded and called, and what came out, in words.

    against: the frequencies that it was compared with.
    """

    spec: str
    module: str
    way: str
    call: str
    finding: str
    against: str


def ticket(one: WrongRun, report: Report, command: str) -> Ticket:
    """Return the ticket of a run. It has no snippet: the command of the report shows it."""
    return Ticket(
        printable(f"{one.module} {one.way}: {one.finding.partition(', where ')[0]}"),
        printable(
            f"`{one.module}` of `{one.spec}`, {one.way}, in eval mode, called as {one.call}: {one.finding}."
        ),
        printable(
            "cos and sin should be those of whole positions times the frequencies "
            f"({one.against}), up to the rounding of angles in float32 and of what is returned: compute "
            "positions, frequencies and angles in float32 whatever the module's dtype, and keep what they "
            "are computed from out of casts."
        ),
        reproduction(_no_snippet),
        report,
        command,
    )


def _no_snippet(inline: bool) -> Snippet:
    raise NoSnippet("the ways of loading and of calling a module take more lines than a snippet has")
