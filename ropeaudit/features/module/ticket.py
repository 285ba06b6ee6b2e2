"""The ticket of a module's worst buffer, or of the worst of what running it showed: facts and the command."""

from __future__ import annotations

from dataclasses import replace

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.module import run_report
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.measurement import UP_TO
from ropeaudit.features.module.report import report, row
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports.tickets.ticket import Reproduction, Ticket, by_code, file_name

_COMMAND_ALONE = Reproduction(missing="a module has to be built and loaded as it is")
_EXPECTED = (
    "The values should be those of {}, up to the rounding of float32: compute positions, frequencies and "
    "angles in float32 whatever the module's dtype, and keep what they are computed from out of casts, for "
    "no cast back restores what was rounded away. The exact values follow from the base and the dims alone."
)


def module_ticket(audit: ModuleAudit) -> Ticket:
    """Return the ticket of the run that is furthest off or the buffer that moves scores most, or of a pass.

    Runs come first where ways of loading were requested.
    """
    off = max((one for one in audit.runs if one.wrong), key=run_report.badness, default=None)
    wrong = [buffer for buffer in audit.buffers if buffer.wrong]
    if off is not None and (audit.ways or not wrong):
        called = f"{off.module} {off.way}, in eval mode, called as {off.built.call}"
        title = f"{off.module} {off.way}: {run_report.finding(off, brief=True)}"
        seen = f"{called}: {run_report.finding(off)}."
        facts, against, diagnosis = run_report.row(off), off.built.against, off.diagnosis
        remedy = ""
    elif wrong:
        one = max(wrong, key=lambda one: (one.drift_near or 0.0, one.error or 0.0))
        cast = "is not what it should be" if one.cast == "none" else f"was cast to {one.cast}"
        title = f"RoPE {audit.source.noun} {one.stored.name} {cast}"
        seen = f"{one.stored.name}: {one.finding}"
        facts, against, diagnosis = row(one), one.against, one.diagnosis
        remedy = one.remedy(audit.source.expected) if audit.source.checkpoint else ""
    else:
        return _of_nothing_wrong(audit)
    remedy = remedy or wording.remedy(diagnosis, FP32, UP_TO)
    expected = _EXPECTED.format(against) + (f" {remedy[:1].upper()}{remedy[1:]}." if remedy else "")
    said = replace(report([audit], None, {}), headline=seen)
    return Ticket(f"{title}{by_code(codes(diagnosis))}", said, facts, expected, _COMMAND_ALONE)


def _of_nothing_wrong(audit: ModuleAudit) -> Ticket:
    """Return the ticket of an audit that found nothing wrong, or had nothing to judge."""
    buffers = len(audit.buffers)
    title = f"RoPE of {file_name(audit.source.spec)}: {'nothing is wrong' if audit.judged else 'not judged'}"
    facts = {"source": audit.source.spec, "buffers": buffers, "runs": len(audit.runs)}
    said = report([audit], None, {})
    expected = _EXPECTED.format(audit.buffers[0].against) if buffers else "Nothing says what is right."
    return Ticket(title, said, facts, expected, _COMMAND_ALONE)
