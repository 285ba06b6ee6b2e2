"""The ticket of a RoPE module that returns wrong cos and sin once it was loaded in some way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.tickets.reproduction import Snippet
from ropeaudit.reports.tickets.ticket import Ticket, reproduction


@dataclass(frozen=True, slots=True)
class WrongRun:
    """A module that is off: where it is from, how it was loaded and called, and what came out, in words.

    expected: what cos and sin should be, in words. snippet: what returns code that shows it, or raises
    NoSnippet; from whether own code is written into it.
    """

    spec: str
    module: str
    way: str
    call: str
    finding: str
    expected: str
    snippet: Callable[[bool], Snippet]


def ticket(one: WrongRun, report: Report, command: str) -> Ticket:
    """Return the ticket of a run. Runs the snippet."""
    return Ticket(
        printable(f"{one.module} {one.way}: {one.finding.partition(', where ')[0]}"),
        printable(
            f"`{one.module}` of `{one.spec}`, {one.way}, in eval mode, called as {one.call}: {one.finding}."
        ),
        printable(
            f"cos and sin should be {one.expected}, up to the rounding of angles in float32 and of what is "
            "returned: compute positions, frequencies and angles in float32 whatever the module's dtype, and "
            "keep what they are computed from out of casts."
        ),
        reproduction(one.snippet),
        report,
        command,
    )
