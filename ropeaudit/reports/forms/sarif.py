"""What fails, as code hosts show it beside the file: SARIF 2.1.0, and GitHub's annotations.

SARIF has a result for each failure, a rule for each code that occurs.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ropeaudit import __version__
from ropeaudit.errors import UsageError
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import kinds
from ropeaudit.reports import Report
from ropeaudit.reports.answers import Fault
from ropeaudit.reports.numbers import printable

_HOME = "https://github.com/ropeaudit/ropeaudit"
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"  # what code hosts take for the root of the repository
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def annotation(fault: Fault) -> str:
    """Return the command that makes GitHub's runner show a fault beside its file.

    Source: docs.github.com, workflow commands; escaped as actions/toolkit does.

    >>> annotation(Fault("wrong-base", "50 %", "a.py:f", "rotation", "a,b.py", 3))
    '::error file=a%2Cb.py,line=3,title=ropeaudit%3A wrong-base::a.py:f, rotation: 50 %25'
    """
    where = {"file": _plain(fault.file), "line": str(fault.line or "")}
    properties = {**where, "title": f"ropeaudit: {fault.rule}"}
    message = _plain(f"{fault.target}, {fault.check}: {fault.message}")
    listed = ",".join(f"{name}={value.translate(_PROPERTY)}" for name, value in properties.items() if value)
    return f"::error {listed}::{message.translate(_DATA)}"


def _plain(text: str) -> str:
    """Return text whose lines steer nothing; the runner reads the ends of lines."""
    return re.sub(r"[^\r\n]+", lambda line: printable(line[0]), text)


def render(report: Report) -> str:
    """Return one run. Raises: UsageError where the report is of no command that judges."""
    if report.faults is None:
        raise UsageError("sarif holds what fails in `ropeaudit check`; give the results of check")
    rules = list(dict.fromkeys(fault.rule for fault in report.faults))
    driver = {
        "name": "ropeaudit",
        "version": __version__,
        "informationUri": _HOME,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": "interrupted" not in report.metadata}],
        "results": [_result(fault, rules) for fault in report.faults],
    }
    if report.headline:
        run["properties"] = {"headline": report.headline}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    kind = kinds().get(rule)
    page = f"{_HOME}/blob/main/docs/" + ("check.md" if kind is None else f"diagnoses.md#{rule}")
    named = {"id": rule, "helpUri": page, "defaultConfiguration": {"level": "error"}}
    if kind is None:  # a limit, a key of a config: what failed explains itself
        return {**named, "shortDescription": {"text": rule.replace("-", " ")}}
    parts = {"": kind.shows, "Cause: ": kind.cause, "Remedy: ": wording.template(kind.remedy)}
    return {
        **named,
        "shortDescription": {"text": kind.title},
        "fullDescription": {"text": kind.shows},
        "help": {"text": "\n\n".join(f"{head}{text}" for head, text in parts.items() if text)},
        "properties": {"tags": [kind.group]},
    }


def _result(fault: Fault, rules: Sequence[str]) -> dict[str, Any]:
    # what stays the same of a fault while lines move and figures change
    same = hashlib.sha256("\0".join((fault.target, fault.check, fault.rule)).encode())
    result: dict[str, Any] = {
        "ruleId": fault.rule,
        "ruleIndex": rules.index(fault.rule),
        "level": "error",
        "message": {"text": printable(f"{fault.target}, {fault.check}: {fault.message}")},
        "partialFingerprints": {"fault/v1": same.hexdigest()[:32]},
    }
    if fault.file:
        artifact = {"uri": quote(os.fsencode(fault.file)), "uriBaseId": _ROOT}
        if os.path.isabs(fault.file):
            artifact = {"uri": Path(fault.file).as_uri()}
        place: dict[str, Any] = {"artifactLocation": artifact}
        if fault.line:
            place["region"] = {"startLine": fault.line}
        result["locations"] = [{"physicalLocation": place}]
    return result
