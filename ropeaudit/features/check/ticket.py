"""The ticket of a target that fails: its checks, and the drift that goes with the first that fails.

Where nothing fails it says so, of all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import environments
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions
from ropeaudit.features.check.report import SCORES, report, row
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import drift as rows_of
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name, snippet_of, worst

_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(results: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket | None:
    """Return the ticket of the first failing target, or of a pass. Runs a snippet.

    case: the RoPE setting of the options.
    """
    if not results:
        return None
    # an option of this program is nothing to who reads a ticket
    results = [replace(one, finding=replace(one.finding, option="")) for one in results]
    first = next((one for one in results if one.finding.failed and not one.finding.fault), None)
    if first is None and any(one.finding.fault for one in results):
        return None
    if first is None:  # its facts are what all that was judged agrees on
        judged = [one for one in results if one.judged]
        rows = [row(one) for one in judged or results]
        targets = ", ".join(map(file_name, dict.fromkeys(one.target for one in results)))
        shared = {name: value for name, value in rows[0].items() if all(one[name] == value for one in rows)}
        facts, passed = {**shared, "checks": len(judged)}, Reproduction(missing="no check fails")
        told = f"{targets}: no check fails"
        return Ticket(told, report(results, None, {}), facts, "No check fails.", passed)
    own = [one for one in results if one.target == first.target]
    finding, where = first.finding, "" if first.dtype == NONE else f" in {first.dtype}"
    said = report(sorted(own, key=lambda one: not one.finding.failed), None, {})
    if first.kind == "code":
        notes, reproduction = _drift([one for one in own if one.finding.failed], case, options)
        said = replace(said, notes=[*said.notes, *notes])
    else:
        reproduction = Reproduction(missing=f"no code was called, {first.target} is a {first.kind}")
    return Ticket(
        f"{file_name(first.target)}: {finding.check}{where} fails{by_code(codes(finding.diagnosis))}",
        said,
        row(first),
        f"{finding.check}: {'; '.join(filter(None, (finding.detail, first.measured_words)))}",
        reproduction,
    )


def _drift(failed: Sequence[Checked], case: Case, options: CheckOptions) -> tuple[list[str], Reproduction]:
    """Return the drift at the first and last positions in words, and a snippet."""
    shown = next((one for one in failed if one.dtype != NONE and one.setting is not None), None)
    if shown is None:
        return [], Reproduction(missing="no number format fails")
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
    record = worst(list(audit.run()))
    if record is None:
        return [], Reproduction(missing="the drift of the scores is not known")
    notes = [f"shift, at these positions: {rows_of.answer([record]).headline}"]
    # checks of scores may allow less than a row's tolerance
    if record.within_tolerance is False or any(one.finding.check in SCORES for one in failed):
        return notes, snippet_of(record, audit.factories())
    missing = (
        f"the drift of the scores, {percent(record.drift_relative)} of their RMS at the first and the "
        f"last positions, is within {percent(audit.tolerance)}; the check is about something else"
    )
    return notes, Reproduction(missing=missing)
