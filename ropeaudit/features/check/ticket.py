"""The ticket of a failing target, with a snippet of its drift; or of a pass of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit
from ropeaudit.conformance import environments
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions
from ropeaudit.features.check.report import SCORES, report, row
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name, snippet_of, worst

_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(results: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket | None:
    """Return the ticket of the first failing target, or of a pass; None where neither is known.

    case: the RoPE setting of the options. Runs a snippet.
    """
    # an option of this program is nothing to who reads a ticket
    results = [replace(one, finding=replace(one.finding, option="")) for one in results]
    first = next((one for one in results if one.finding.failed and not one.finding.fault), None)
    if first is None:
        if not results or any(one.finding.fault for one in results):
            return None
        targets = ", ".join(map(file_name, dict.fromkeys(one.target for one in results)))
        judged = [one for one in results if one.judged]
        first_row, *rows = map(row, judged or results)  # its facts are what all agree on
        facts = {name: value for name, value in first_row.items() if all(one[name] == value for one in rows)}
        told, why = report(results, None, {}), Reproduction(missing="no check fails")
        facts |= {"checks": len(judged)}
        return Ticket(f"{targets}: no check fails", told, facts, "No check fails.", why)
    own = [one for one in results if one.target == first.target]
    own.sort(key=lambda one: not one.finding.failed)
    finding, where = first.finding, "" if first.dtype == NONE else f" in {first.dtype}"
    reproduction = Reproduction(missing=f"no code was called, {first.target} is a {first.kind}")
    if first.kind == "code":
        reproduction = _snippet([one for one in own if one.finding.failed], case, options)
    return Ticket(
        f"{file_name(first.target)}: {finding.check}{where} fails{by_code(codes(finding.diagnosis))}",
        report(own, None, {}),
        row(first),
        f"{finding.check}: {'; '.join(filter(None, (finding.detail, first.measured_words)))}",
        reproduction,
    )


def _snippet(failed: Sequence[Checked], case: Case, options: CheckOptions) -> Reproduction:
    """Return what prints the drift at the first or the last positions, or why nothing does."""
    shown = next((one for one in failed if one.dtype != NONE and one.setting is not None), None)
    if shown is None:
        return Reproduction(missing="no number format fails")
    last = max(0, (shown.up_to or options.up_to or _TOKENS) - _TOKENS)
    audit = Audit(
        *((replace(case, seed=options.seed),), (), (shown.dtype,), tuple({0: None, last: None})),
        implementations=(shown.target,),
        order=options.order,
        device=options.device,
        environments=environments.of_check(shown.finding.check),
    )
    record = worst(list(audit.run()))
    if record is None:
        return Reproduction(missing="the drift of the scores is not known")
    # checks of scores may allow less than a row's tolerance
    if record.within_tolerance is False or any(one.finding.check in SCORES for one in failed):
        return snippet_of(record, audit.factories())
    off = f"{percent(record.drift_relative)} of their RMS at the first and the last positions"
    within = f"is within {percent(audit.tolerance)}; the check is about something else"
    return Reproduction(missing=f"the drift of the scores, {off}, {within}")
