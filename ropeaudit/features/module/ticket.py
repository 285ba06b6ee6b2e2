"""The ticket of a module's worst buffer, or of the worst of what running it showed: facts and the command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.module import run_report
from ropeaudit.features.module.analysis import Buffer, ModuleAudit
from ropeaudit.features.module.measurement import UP_TO
from ropeaudit.features.module.report import COLUMNS, buffers_report, runs_report
from ropeaudit.features.module.runs import Run
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.reports.numbers import short
from ropeaudit.reports.tickets.ticket import Reproduction, Ticket, by_code

_COMMAND_ALONE = Reproduction(None, missing="a module has to be built and loaded as it is")


def module_ticket(audit: ModuleAudit, columns: Sequence[str] | None = None) -> Ticket | None:
    """Return the ticket of the run that is furthest off or the buffer that moves scores most; None without.

    Runs come first where ways of loading were requested. columns: those of the report.
    """
    off = run_report.furthest_off(audit.runs)
    wrong = [buffer for buffer in audit.buffers if buffer.wrong]
    if off is not None and (audit.ways or not wrong):
        return _of_run(audit, off, columns)
    if not wrong:
        return None
    worst = max(wrong, key=lambda one: (one.drift_near or 0.0, one.error or 0.0))
    return _of_buffer(audit, worst, columns)


def _of_run(audit: ModuleAudit, one: Run, columns: Sequence[str] | None) -> Ticket:
    finding = run_report.finding(one)
    called = f"{one.module} {one.way}, in eval mode, called as {one.built.call}"
    expected = (
        f"cos and sin should be those of whole positions times exact frequencies ({one.built.against}), up "
        "to the rounding of angles in float32 and of what is returned: compute positions, frequencies and "
        "angles in float32 whatever the module's dtype, and keep what they are computed from out of casts."
    )
    return Ticket(
        f"{one.module} {one.way}: {run_report.finding(one, brief=True)}{by_code(codes(one.diagnosis))}",
        replace(runs_report(audit, columns, {}), headline=f"{called}: {finding}."),
        run_report.COLUMNS.row(one),
        expected + _remedy(one.diagnosis),
        _COMMAND_ALONE,
    )


def _of_buffer(audit: ModuleAudit, one: Buffer, columns: Sequence[str] | None) -> Ticket:
    off = "" if one.error is None or not math.isfinite(one.error) else f", off by up to {short(one.error)}"
    unit = " (relative)" if off and one.what in ("inv_freq", "periods") else ""
    cast = "is not what it should be" if one.cast == "none" else f"was cast to {one.cast}"
    values = (
        "computed in float32 or wider and not rounded to a narrower format afterwards: the relative error of "
        "a frequency is that of every angle, so the error of an angle grows with the position, and no cast "
        "back restores what was rounded away."
    )
    if one.cast == "none":
        values = "up to the rounding of float32."
    stored = one.remedy(audit.source.expected) if audit.source.checkpoint else ""
    return Ticket(
        f"RoPE {audit.source.noun} {one.stored.name} {cast}{off}{unit}{by_code(codes(one.diagnosis))}",
        buffers_report(audit, columns, {}),
        COLUMNS.row(one),
        f"{'By config.json, the' if stored else 'The'} values should be those of {one.against}, {values} "
        "The exact values follow from the base and the dims alone."
        + (_sentence(stored) if stored else _remedy(one.diagnosis)),
        _COMMAND_ALONE,
    )


def _remedy(diagnosis: Diagnosis | None) -> str:
    """Return what to change, for the end of a paragraph; nothing where that is not known."""
    return _sentence(wording.remedy(diagnosis, FP32, UP_TO))


def _sentence(text: str) -> str:
    return f" {text[:1].upper()}{text[1:]}." if text else ""
