"""Checks as JUnit XML, which CI servers show: a suite per target and dtype, a case per check.

The elements and attributes are those that pytest writes (`--junit-xml`), without times, which are not
measured, and with the type of a failure: the code of its diagnosis. Skipped are a waived failure, a check
that does not apply and a target without RoPE; a note is in system-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports.numbers import printable

_SKIPPED = ("nothing to check", "left out", "not applicable", "waived")


def content(results: Sequence[Checked]) -> bytes:
    """Return the file."""
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
