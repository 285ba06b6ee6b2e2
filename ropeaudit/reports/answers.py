"""The answer of a command: status, causes with places and remedies, facts, what was not checked.

    FAIL  rope.py:rotate   bf16, positions 0 to 131,071   1 cause, 9 of 23 checks fail
    error[narrow-positions]: positions and angles are rounded to bfloat16
      --> rope.py:27   def rotate(x, positions):
       = fix: compute positions * inv_freq in float32
      not checked     torch.compile (--thorough)

Lines are lists of pieces, each a text and a style, for a pipe or for a terminal of some width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ropeaudit.reports.numbers import printable

Status = Literal["PASS", "FAIL", "WARN", "OK"]
Piece: TypeAlias = tuple[str, str]  # text, style of rich
Line: TypeAlias = list[Piece]
STATUSES: dict[Status, str] = {
    "FAIL": "bold red",
    "WARN": "bold yellow",
    "OK": "bold green",
    "PASS": "bold green",
}
_LABEL = 16  # characters of the labels of facts
_BEHIND = 12  # columns that a long target leaves for the first word of `decides`


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures, or a warning.

    code: as `ropeaudit list diagnoses CODE` explains it, or the name of what failed.
    title: the cause in a few words.
    file, line: of the definition at fault, from 1; 0 if unknown.
    source: the text of that line.
    facts: consequence, evidence and remedy, a sentence each.
    warning: whether it is a warning.
    """

    code: str
    title: str
    file: str = ""
    line: int = 0
    source: str = ""
    facts: Sequence[str] = ()
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one target.

    decides: the reason for the status, in a few words.
    causes: the largest first.
    facts: label and text: measurements, calls, assumptions, what was not checked, what to type next.
    """

    status: Status
    target: str
    decides: str
    causes: Sequence[Cause] = ()
    facts: Sequence[tuple[str, str]] = ()

    @property
    def headline(self) -> str:
        """The first line and the codes of the causes, as a sentence."""
        codes = f" ({', '.join(cause.code for cause in self.causes)})" if self.causes else ""
        return f"{self.status} {self.target}: {self.decides}{codes}"


class Fault(NamedTuple):
    """A failure for code hosts. rule: code of its diagnosis, or the name of the check.

    file: relative to the current folder if it is below; empty if no file is at fault. line: from 1; 0 if
    unknown. check: its name, with layer type and dtype; target: as on the command line.
    """

    rule: str
    message: str
    target: str
    check: str
    file: str = ""
    line: int = 0


def headline(answers: Sequence[Answer]) -> str:
    """Return a sentence about several targets: how many fail, and the first of these."""
    if len(answers) < 2:
        return answers[0].headline if answers else ""
    for status, verb in (("FAIL", "fail"), ("WARN", "warn")):
        matching = [answer for answer in answers if answer.status == status]
        if matching:
            verb = f"{verb}s" if len(matching) == 1 else verb
            return f"{len(matching)} of {len(answers)} targets {verb}: {matching[0].headline}"
    return f"{len(answers)} targets: {answers[0].headline}"


def lines(answers: Sequence[Answer], width: int | None = None) -> list[Line]:
    """Return the lines of answers: all of a single one; of several the first line and the causes.

    width: columns of a terminal; None neither wraps nor cuts.
    """
    results: list[Line] = []
    for answer in answers:
        results += _first_line(answer, width)
        for cause in answer.causes:
            results += _cause_lines(cause, width)
        always = ("tables", "next") if answer.status in ("FAIL", "WARN") else ("tables",)
        for label, text in answer.facts:
            if len(answers) == 1 or label in always:
                results += _wrap([(f"  {label:<{_LABEL - 2}}  ", "dim")], text, "", 2 + _LABEL, width)
    return results


def _first_line(answer: Answer, width: int | None) -> list[Line]:
    """Return the first line; a long target is cut in the middle."""
    target = printable(answer.target)
    room = len(target)
    if width is not None:
        left = width - len(answer.status) - 5  # `decides` continues in the next line
        room = max(left - _BEHIND, left - len(answer.decides))
    if len(target) > room:
        target = f"{target[: room // 3]}…{target[len(target) - (room - room // 3 - 1) :]}"
    begin = [(answer.status, STATUSES[answer.status]), (f"  {target}   ", "bold")]
    return _wrap(begin, answer.decides, "", 6, width)


def _cause_lines(cause: Cause, width: int | None) -> list[Line]:
    style = "bold yellow" if cause.warning else "bold red"
    mark = f"{'warning' if cause.warning else 'error'}[{printable(cause.code)}]"
    results = _wrap([(mark, style)], f": {cause.title}", "bold", 2, width)
    if cause.file:
        place = f"{printable(cause.file)}:{cause.line}" if cause.line else printable(cause.file)
        source = f"   {cause.source.strip()}" if cause.source else ""
        if width is not None and len(place) + len(source) > width - 6:
            source = ""
        results += _wrap([("  --> ", "dim")], f"{place}{source}", "", 6, width)
    for fact in cause.facts:
        results += _wrap([("   = ", "dim")], fact, "", 5, width)
    return results


def _wrap(
    begin: Sequence[Piece],
    text: str,
    style: str,
    indent: int,
    width: int | None,
) -> list[Line]:
    """Return the lines of a text after some pieces; later lines are indented."""
    text, taken = printable(text), sum(len(piece) for piece, _ in begin)
    if width is None or taken + len(text) <= width:
        return [[*begin, (text, style)]]
    parts = textwrap.wrap(
        text,
        max(width - indent, 20),
        initial_indent="#" * (taken - indent),  # as wide as the pieces
        break_long_words=False,
        break_on_hyphens=False,
    )
    first, *rest = parts or [""]
    return [
        [*begin, (first[max(taken - indent, 0) :], style)],
        *([(" " * indent + part, style)] for part in rest),
    ]


def plain(answers: Sequence[Answer]) -> list[str]:
    """Return the lines of answers as text without styles."""
    return ["".join(text for text, _ in line).rstrip() for line in lines(answers)]
