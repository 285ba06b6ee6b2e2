"""The ticket of checks that failed: what they say, and the drift that goes with the first of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import environments
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions
from ropeaudit.features.check.config_target import RECIPE
from ropeaudit.features.check.sentences import measured_words
from ropeaudit.features.module import analysis as module_analysis
from ropeaudit.features.module.ticket import module_ticket
from ropeaudit.reports import Report
from ropeaudit.reports.drift import drift_report
from ropeaudit.reports.numbers import percent, printable
from ropeaudit.reports.tickets import of_shift
from ropeaudit.reports.tickets.reproduction import Reproduction
from ropeaudit.reports.tickets.ticket import Ticket
from ropeaudit.runtime.run_metadata import command_line

_OF_DRIFT = ("drift", "long sequence", "growth", "tolerance")  # they may allow less than a row's tolerance
_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(
    results: Sequence[Checked], case: Case, options: CheckOptions, report: Report
) -> Ticket | None:
    """Return the ticket of the first target that fails; None where none does. Runs a snippet.

    case: the RoPE setting of the options.
    """
    failed = [one for one in results if one.finding.failed]
    if not failed:
        return None
    first = failed[0]
    own = [one for one in failed if one.target == first.target]
    plain = Ticket(
        printable(f"{first.target}: {first.finding.check} fails{_inside(first)}"),
        "\n".join(map(_line, own)),
        printable(f"{first.finding.check}: {_allowed(first)}"),
        Reproduction(None, missing="the check is about files that a kernel wrote"),
        report,
        command_line(),
    )
    if first.kind == "case":
        return plain
    if first.kind == "checkpoint" and first.finding.check.startswith("stored "):
        audit = module_analysis.module(
            first.target,
            base=case.base,
            scaling=case.scaling,
            head_dim=case.head_dim,
            rotary_dim=case.rotary_dim,
        )
        buffer = module_ticket(audit, report)
        return replace(buffer, seen=f"{plain.seen}\n\n{buffer.seen}") if buffer else plain
    return _with_drift(plain, own, case, options)


def _with_drift(plain: Ticket, own: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket:
    """Return a ticket with the drift of the scores at the first and the last positions that were checked."""
    shown = next((one for one in own if one.dtype != NONE and one.setting is not None), None)
    if shown is None:
        return replace(plain, reproduction=Reproduction(None, missing="no number format fails"))
    audit = _audit(shown, case, options)
    rows = list(audit.run())
    record = None
    if of_shift.worst(rows) is None:
        record = max(rows, key=lambda row: row.drift_relative)
        if not any(one.finding.check in _OF_DRIFT for one in own):
            size = percent(record.drift_relative)
            missing = (
                f"the drift of the scores, {size} of their RMS at the first and the last positions, is "
                f"within {percent(audit.tolerance)}; the check is about something else"
            )
            return replace(plain, reproduction=Reproduction(None, missing=missing))
    drift = of_shift.ticket(rows, audit.factories(), drift_report(rows, (), {}), command_line(), record)
    if drift is None:
        return plain
    return replace(
        drift,
        seen=f"{drift.seen}\n\n{_names(own)}",
        report=plain.report,
        further=drift.report,
    )


def _audit(one: Checked, case: Case, options: CheckOptions) -> Audit:
    """Return the audit of a target in the dtype that fails, at the first and the last positions."""
    case = replace(case, qk="randn", seed=options.seed)
    up_to = one.up_to or options.up_to or _TOKENS
    offsets = tuple(dict.fromkeys((0, max(0, up_to - _TOKENS))))
    if one.kind == "code":
        return Audit(
            *((case,), (), (one.dtype,), offsets),
            implementations=(one.target,),
            order=options.order,
            device=options.device,
            environments=environments.of_check(one.finding.check),
        )
    named = {"model": one.target} if one.kind == "model" else {"config": one.target}
    layer = case.layer if one.layer == NONE else one.layer
    case = replace(case, layer=layer, **named)  # type: ignore[arg-type]
    return Audit((case,), (options.recipe or RECIPE,), (one.dtype,), offsets)


def _names(failed: Sequence[Checked]) -> str:
    """Return which checks fail, the first of them with what was measured, and what it behaves like."""
    first = failed[0].finding
    where = ", ".join(filter(None, [measured_words(first), first.where]))
    names = [f"{first.check}{_inside(failed[0])}{f' ({where})' if where else ''}"]
    names += [one.finding.check + _inside(one) for one in failed[1:]]
    alike = f" It behaves like: {first.resembles}." if first.resembles else ""
    return printable(f"Checks that fail: {', '.join(names)}.{alike}")


def _inside(one: Checked) -> str:
    return "" if one.dtype == NONE else f" in {one.dtype}"


def _allowed(one: Checked) -> str:
    finding = one.finding
    if math.isnan(finding.allowed):
        return finding.detail
    return f"{finding.detail} ({measured_words(finding)})"


def _line(one: Checked) -> str:
    """Return a failed check as a line of a list."""
    finding = one.finding
    parts = [measured_words(finding), finding.where, finding.detail.rstrip("."), finding.resembles]
    return printable(f"- {finding.check}{_inside(one)} fails: {'; '.join(filter(None, parts))}.")
