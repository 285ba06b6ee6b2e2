"""The ticket of a target that fails: its checks, and the drift that goes with the first that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import environments
from ropeaudit.features.check.answer import SCORES  # they may allow less than a row's tolerance
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions
from ropeaudit.features.check.report import report, row
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import verdicts
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.tickets import drift
from ropeaudit.reports.tickets.ticket import Reproduction, Ticket, by_code, file_name

_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(results: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket | None:
    """Return the ticket of the first target that fails; None where none does. Runs a snippet.

    case: the RoPE setting of the options.
    """
    # an option of this program is nothing to who reads a ticket
    results = [replace(one, finding=replace(one.finding, option="")) for one in results]
    first = next((one for one in results if one.finding.failed), None)
    if first is None:
        return None
    own = [one for one in results if one.target == first.target]
    finding, where = first.finding, "" if first.dtype == NONE else f" in {first.dtype}"
    ticket = Ticket(
        f"{file_name(first.target)}: {finding.check}{where} fails{by_code(codes(finding.diagnosis))}",
        report(sorted(own, key=lambda one: not one.finding.failed), None, {}),
        row(first),
        f"{finding.check}: {'; '.join(filter(None, (finding.detail, first.measured_words)))}",
        Reproduction(None, missing=f"no code was called, {first.target} is a {first.kind}"),
    )
    if first.kind == "code":
        return _of_code(ticket, [one for one in own if one.finding.failed], case, options)
    return ticket


def _of_code(ticket: Ticket, failed: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket:
    """Return a ticket with the drift of the scores at the first and the last positions that were checked."""
    shown = next((one for one in failed if one.dtype != NONE and one.setting is not None), None)
    if shown is None:
        return replace(ticket, reproduction=Reproduction(None, missing="no number format fails"))
    up_to = shown.up_to or options.up_to or _TOKENS
    audit = Audit(
        (replace(case, seed=options.seed),),
        (),
        (shown.dtype,),
        tuple(dict.fromkeys((0, max(0, up_to - _TOKENS)))),
        implementations=(shown.target,),
        order=options.order,
        device=options.device,
        environments=environments.of_check(shown.finding.check),
    )
    rows = list(audit.run())
    record = drift.worst(rows) or max(rows, key=lambda row: row.drift_relative)
    if record.within_tolerance is False or any(one.finding.check in SCORES for one in failed):
        reproduction = drift.snippet_of(record, audit.factories())
    else:
        missing = (
            f"the drift of the scores, {percent(record.drift_relative)} of their RMS at the first and the "
            f"last positions, is within {percent(audit.tolerance)}; the check is about something else"
        )
        reproduction = Reproduction(None, missing=missing)
    notes = [*ticket.report.notes, f"shift, at these positions: {verdicts.sentence(record)}"]
    return replace(ticket, report=replace(ticket.report, notes=notes), reproduction=reproduction)
