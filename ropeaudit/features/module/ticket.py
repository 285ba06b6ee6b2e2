"""The ticket of a module's worst buffer."""

from __future__ import annotations

from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.drift import NEAR
from ropeaudit.reports import Report
from ropeaudit.reports.tickets import of_buffer
from ropeaudit.reports.tickets.of_buffer import WrongBuffer
from ropeaudit.reports.tickets.ticket import Ticket
from ropeaudit.runtime.run_metadata import command_line


def module_ticket(audit: ModuleAudit, report: Report) -> Ticket | None:
    """Return the ticket of the buffer that moves scores most; None where none is wrong."""
    one = max(
        (buffer for buffer in audit.buffers if buffer.wrong),
        key=lambda buffer: (buffer.drift_near or 0.0, buffer.error or 0.0),
        default=None,
    )
    if one is None:
        return None
    wrong = WrongBuffer(
        audit.source.spec,
        audit.source.built,
        one.stored.name,
        one.what,
        one.stored.dtype,
        one.cast,
        one.error,
        one.finding,
        one.setting,
        one.against,
        one.drift_near,
        NEAR,
    )
    return of_buffer.ticket(wrong, report, command_line())
