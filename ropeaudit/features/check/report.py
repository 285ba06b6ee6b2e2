"""Checks for people: an answer a target, a row a check, and notes of what rows have no room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import MARGIN
from ropeaudit.features.check.answer import answer
from ropeaudit.features.check.checked import NONE, Checked, place
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report
from ropeaudit.reports.answers import headline
from ropeaudit.reports.forms.sarif import Fault
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime.columns import table

SCHEMA = 1
COLUMNS = table("check")
_UNJUDGED = ("nothing to check", "left out", "not applicable")
_SKIPPED = (*_UNJUDGED, "waived")
_MARGIN = "times its maximum: last good position ÷ the model's maximum; 1 or more passes; `ropeaudit limit`."


def row(one: Checked) -> dict[str, Any]:
    """Return the row of a check."""
    finding, setting = one.finding, one.setting
    about = ("target", "kind", "version", "layer", "dtype", "device")
    seen = ("check", "status", "measured", "allowed", "unit", "differing", "where")
    return {
        "schema": SCHEMA,
        **{name: getattr(one, name) for name in about},
        **{name: getattr(finding, name) for name in seen},
        "diagnosis": codes(finding.diagnosis),
        "resembles": finding.resembles,
        "remedy": finding.advice,
        "detail": finding.detail,
        "up_to": one.up_to,
        "layout": setting.layout if setting else NONE,
        **{name: getattr(setting, name, None) for name in ("head_dim", "rotary_dim", "base")},
        "scaling": str(setting.scaling) if setting else NONE,
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
    answers = [
        answer(own, case or Case(), [*waived, *_on(target, findings, targets)])
        for target, own in targets.items()
    ]
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
        faults=faults_of(results),
        answers=answers,
        brief=not columns,
    )


def _on(target: str, findings: Sequence[str], targets: Iterable[str]) -> list[str]:
    """Return the findings that are on no other target."""
    others = tuple(f"{one}{end}" for one in targets if one != target for end in (":", " under"))
    return [text for text in findings if not text.startswith(others)]


def notes(results: Sequence[Checked]) -> list[str]:
    """Return what did not pass, what was read, and why some checks were not made."""
    messages, missing = list[str](), dict[str, list[str]]()
    for one in results:
        finding = one.finding
        if finding.status in _UNJUDGED:
            missing.setdefault(finding.detail, []).append(finding.check)
        elif finding.status != "pass" or finding.check == "config":
            messages.append(f"{one.target}, {one.label}: {finding.detail}")
    last = [f"not checked: {', '.join(dict.fromkeys(names))}: {why}" for why, names in missing.items()]
    return list(dict.fromkeys([*messages, *last]))


def faults_of(results: Sequence[Checked]) -> list[Fault]:
    """Return what fails and is not waived, in order, without faults of ours."""
    faults = []
    for one in results:
        if one.finding.failed and not one.finding.fault:
            found = one.finding.diagnosis  # its equals and what is there beside it are in the message
            rule = found.code if found else one.finding.check.replace(" ", "-")
            message = printable("; ".join(filter(None, (one.seen, one.explanation))))
            faults.append(Fault(rule, message, printable(one.target), one.label, *place(one)))
    return faults


def junit(results: Sequence[Checked]) -> bytes:
    """Return checks as JUnit XML for CI: a suite per target and dtype, a case per check.

    The elements and attributes are those that pytest writes (`--junit-xml`), without times, which are not
    measured, and with the type of a failure: the code of its diagnosis. Skipped are a waived failure, a check
    that does not apply and a target without RoPE; a note is in system-out.
    """
    root = ElementTree.Element("testsuites", name="ropeaudit check")
    suites: dict[tuple[str, str], list[Checked]] = {}
    for one in results:
        suites.setdefault((one.target, one.dtype), []).append(one)
    for (target, dtype), checks in suites.items():
        name = target if dtype == NONE else f"{target} {dtype}"
        failed = sum(one.finding.failed for one in checks)
        skipped = sum(one.finding.status in _SKIPPED for one in checks)
        counts = {"errors": 0, "failures": failed, "skipped": skipped, "tests": len(checks)}
        suite = ElementTree.SubElement(root, "testsuite", _attributes(name=name, **counts))
        for one in checks:
            _case(suite, one, name)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _case(suite: ElementTree.Element, one: Checked, name: str) -> None:
    finding = one.finding
    layer = "" if one.layer in (NONE, "full_attention") else f" ({one.layer})"
    case = ElementTree.SubElement(suite, "testcase", _attributes(classname=name, name=finding.check + layer))
    measured = one.measured_words
    if finding.failed:
        part = ElementTree.SubElement(case, "failure", _attributes(message=measured or finding.detail))
        part.set("type", codes(finding.diagnosis) or "failure")
        part.text = printable(
            "; ".join(filter(None, [finding.detail, finding.where, finding.resembles, finding.advice]))
        )
    elif finding.status in _SKIPPED:
        kind = finding.status.replace(" ", "-")
        ElementTree.SubElement(case, "skipped", _attributes(type=f"ropeaudit.{kind}", message=finding.detail))
    else:
        part = ElementTree.SubElement(case, "system-out")
        part.text = printable("; ".join(filter(None, [measured, finding.where, finding.detail])))


def _attributes(**values: object) -> dict[str, str]:
    return {name: printable(str(value)) for name, value in values.items()}
