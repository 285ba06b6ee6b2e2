"""The ticket of a module's worst buffer, or of the worst of what running it showed."""

from __future__ import annotations

from functools import partial

from ropeaudit.features.module import run_report
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.drift import NEAR
from ropeaudit.features.module.snippet import snippet
from ropeaudit.reports import Report
from ropeaudit.reports.tickets import of_buffer, of_run
from ropeaudit.reports.tickets.of_buffer import WrongBuffer
from ropeaudit.reports.tickets.of_run import WrongRun
from ropeaudit.reports.tickets.ticket import Ticket
from ropeaudit.runtime.run_metadata import command_line


def module_ticket(audit: ModuleAudit, report: Report) -> Ticket | None:
    """Return the ticket of the run that is furthest off or the buffer that moves scores most; None without.

    Runs come first where ways of loading were requested.
    """
    off = run_report.furthest_off(audit.runs)
    if off is not None and (audit.ways or not any(buffer.wrong for buffer in audit.buffers)):
        seen, builder = run_report.finding(off), audit.source.builder
        assert builder is not None  # noqa: S101  # it was run
        known = off.measured is None or off.measured.positions is not None
        exact = f"those of whole positions times exact frequencies ({off.against})"
        expected = exact if known else f"those of {off.against}"
        code = partial(snippet, off, builder)
        wrong_run = WrongRun(audit.source.spec, off.module, off.way, off.call, seen, expected, code)
        return of_run.ticket(wrong_run, report, command_line())
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
        audit.source.noun,
        () if one.stored.use is None or one.how == "graph" else one.stored.use.snippet,
    )
    return of_buffer.ticket(wrong, report, command_line())
