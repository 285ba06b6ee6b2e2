"""Checks for people: an answer a target, a row a check, and notes of what rows have no room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import MARGIN
from ropeaudit.features.check import faults
from ropeaudit.features.check.answer import answer
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report
from ropeaudit.reports.answers import headline
from ropeaudit.runtime.columns import table

SCHEMA = 1
COLUMNS = table("check")
_MARGIN = "times its maximum: last good position ÷ the model's maximum; 1 or more passes; `ropeaudit limit`."


def row(one: Checked) -> dict[str, Any]:
    """Return the row of a check."""
    return {
        "schema": SCHEMA,
        "target": one.target,
        "kind": one.kind,
        "version": one.version,
        "layer": one.layer,
        "dtype": one.dtype,
        "device": one.device,
        "check": one.finding.check,
        "status": one.finding.status,
        "measured": one.finding.measured,
        "allowed": one.finding.allowed,
        "unit": one.finding.unit,
        "differing": one.finding.differing,
        "where": one.finding.where,
        "diagnosis": codes(one.finding.diagnosis),
        "resembles": one.finding.resembles,
        "remedy": one.finding.advice,
        "detail": one.finding.detail,
        "up_to": one.up_to,
        "layout": one.setting.layout if one.setting else NONE,
        "head_dim": one.setting and one.setting.head_dim,
        "rotary_dim": one.setting and one.setting.rotary_dim,
        "base": one.setting and one.setting.base,
        "scaling": str(one.setting.scaling) if one.setting else NONE,
    }


def report(
    results: Sequence[Checked],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    findings: Sequence[str] = (),
    waived: Sequence[str] = (),
    case: Case | None = None,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    findings: on the calls. waived: on waivers, which come first. case: the RoPE setting of the options.
    """
    rows, targets = [row(result) for result in results], dict[str, list[Checked]]()
    for one in results:
        targets.setdefault(one.target, []).append(one)
    seen = {name: {one[name] for one in rows} for name in ("target", "dtype", "layer")}
    seen["layer"] -= {NONE}
    single = {name for name, values in seen.items() if len(values) <= 1}
    answers = [answer(own, case or Case(), [*waived, *findings]) for own in targets.values()]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or [name for name in COLUMNS.screen(rows) if name not in single]),
        dispensable=() if columns else COLUMNS.dispensable,
        headline=headline(answers),
        notes=[*waived, *findings, *notes(results)],
        legend=_MARGIN if any(one.finding.unit == MARGIN for one in results) else "",
        metadata={"schema": SCHEMA, **metadata},
        declared=COLUMNS,
        faults=faults.of_checks(results),
        answers=answers,
        brief=not columns,
    )


def notes(results: Sequence[Checked]) -> list[str]:
    """Return what was seen in checks that do not pass, what was read, and why others were not made."""
    messages, missing = list[str](), dict[str, list[str]]()
    for one in results:
        finding = one.finding
        if finding.status in ("nothing to check", "left out", "not applicable"):
            missing.setdefault(finding.detail, []).append(finding.check)
        elif finding.status != "pass" or finding.check == "config":
            messages.append(f"{one.target}, {one.label}: {finding.detail}")
    last = [f"not checked: {', '.join(dict.fromkeys(names))}: {why}" for why, names in missing.items()]
    return list(dict.fromkeys([*messages, *last]))
