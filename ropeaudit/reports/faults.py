"""What fails, as code hosts show it beside the file: SARIF (`forms.sarif`) and GitHub's annotations."""

from __future__ import annotations

import re
from typing import NamedTuple

from ropeaudit.reports.numbers import printable

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


class Fault(NamedTuple):
    """One failure. rule: code of its diagnosis, or the name of the check. message: what was seen.

    file: relative to this folder where it is in it; empty where none is at fault. line: from 1, 0 where it is
    not known. check: its name, with what it was made of; target: what was named on the command line.
    """

    rule: str
    message: str
    target: str
    check: str
    file: str = ""
    line: int = 0


def annotation(fault: Fault) -> str:
    """Return the command that makes GitHub's runner show a fault beside its file.

    Source: docs.github.com, workflow commands; escaped as actions/toolkit does.

    >>> annotation(Fault("wrong-base", "50 %", "a.py:f", "rotation", "a,b.py", 3))
    '::error file=a%2Cb.py,line=3,title=ropeaudit%3A wrong-base::a.py:f, rotation: 50 %25'
    """
    where = {"file": _plain(fault.file), "line": str(fault.line or "")}
    properties = {**where, "title": f"ropeaudit: {fault.rule}"}
    message = _plain(f"{fault.target}, {fault.check}: {fault.message}")
    listed = ",".join(f"{name}={_escaped(value, _PROPERTY)}" for name, value in properties.items() if value)
    return f"::error {listed}::{_escaped(message, _DATA)}"


def _plain(text: str) -> str:
    """Return text whose lines steer nothing; the runner reads the ends of lines."""
    return re.sub(r"[^\r\n]+", lambda line: printable(line[0]), text)


def _escaped(text: str, characters: dict[str, str]) -> str:
    return "".join(characters.get(one, one) for one in text)
