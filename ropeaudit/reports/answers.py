"""The answer of a command for people: what was found, why, where, what to change, what was not checked.

    FAIL  rope.py:rotate   bf16, positions 0 to 131,071   1 cause, 9 of 23 checks
    error[narrow-positions]: positions and angles are rounded to bfloat16
      --> rope.py:27   def rotate(x, positions):
       = fix: compute positions * inv_freq in float32
      not checked     torch.compile (--thorough)

Laid out here as lines of pieces, each a text and a style, for a pipe and for a terminal of some width.
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
_BEHIND = 12  # columns behind a long target for the first word of what decides


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a target fails, or what to beware of.

    code: as `ropeaudit list diagnoses CODE` explains it, or the name of what failed.
    title: what it is, in a few words.
    file, line: of the definition at fault, from 1; 0 where it is not known.
    source: that line.
    facts: consequence, how it is known, what to change, a sentence each.
    warning: whether it fails nothing.
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
    """What was found of one target.

    decides: what the status rests on, in a few words.
    causes: the largest first.
    facts: label and text: what was measured, how code was called, what was assumed, what was not checked,
        what to type next.
    """

    status: Status
    target: str
    decides: str
    causes: Sequence[Cause] = ()
    facts: Sequence[tuple[str, str]] = ()

    @property
    def headline(self) -> str:
        """The first line as a sentence, for other forms."""
        codes = f" ({', '.join(cause.code for cause in self.causes)})" if self.causes else ""
        return f"{self.status} {self.target}: {self.decides}{codes}"


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


def headline(answers: Sequence[Answer]) -> str:
    """Return one sentence for several targets: how many fail, and the first that does."""
    if len(answers) < 2:
        return answers[0].headline if answers else ""
    for status, verb in (("FAIL", "fail"), ("WARN", "warn")):
        some = [one for one in answers if one.status == status]
        if some:
            verb = f"{verb}s" if len(some) == 1 else verb
            return f"{len(some)} of {len(answers)} targets {verb}: {some[0].headline}"
    return f"{len(answers)} targets: {answers[0].headline}"


def lines(answers: Sequence[Answer], width: int | None = None) -> list[Line]:
    """Return the lines of some answers: one whole; of several a line each, with the causes of failures.

    width: columns of a terminal; None wraps and cuts nothing.
    """
    results: list[Line] = []
    for one in answers:
        results += _first(one, width)
        for cause in one.causes:
            results += _cause(cause, width)
        beside = ("tables", "next") if one.status in ("FAIL", "WARN") else ("tables",)
        for label, text in one.facts:
            if len(answers) == 1 or label in beside:
                results += _wrapped([(f"  {label:<{_LABEL - 2}}  ", "dim")], text, "", 2 + _LABEL, width)
    return results


def _first(one: Answer, width: int | None) -> list[Line]:
    """Return the first line of an answer; a long target is cut in the middle."""
    target = printable(one.target)
    room = len(target)
    if width is not None:
        left = width - len(one.status) - 5  # what decides goes on in the next line
        room = max(left - _BEHIND, left - len(one.decides))
    if len(target) > room:
        target = f"{target[: room // 3]}…{target[len(target) - (room - room // 3 - 1) :]}"
    begin = [(one.status, STATUSES[one.status]), (f"  {target}   ", "bold")]
    return _wrapped(begin, one.decides, "", 6, width)


def _cause(cause: Cause, width: int | None) -> list[Line]:
    """Return the block of a cause: code and title, where, and facts."""
    style = "bold yellow" if cause.warning else "bold red"
    mark = f"{'warning' if cause.warning else 'error'}[{printable(cause.code)}]"
    results = _wrapped([(mark, style)], f": {cause.title}", "bold", 2, width)
    if cause.file:
        place = f"{printable(cause.file)}:{cause.line}" if cause.line else printable(cause.file)
        source = f"   {cause.source.strip()}" if cause.source else ""
        if width is not None and len(place) + len(source) > width - 6:
            source = ""
        results += _wrapped([("  --> ", "dim")], f"{place}{source}", "", 6, width)
    for fact in cause.facts:
        results += _wrapped([("   = ", "dim")], fact, "", 5, width)
    return results


def _wrapped(
    begin: Sequence[Piece],
    text: str,
    style: str,
    indent: int,
    width: int | None,
) -> list[Line]:
    """Return a text behind some pieces, its further lines indented."""
    text, taken = printable(text), sum(len(piece) for piece, _ in begin)
    if width is None or taken + len(text) <= width:
        return [[*begin, (text, style)]]
    parts = textwrap.wrap(
        text,
        max(width - indent, 20),
        initial_indent="#" * (taken - indent),  # takes the place of the pieces
        break_long_words=False,
        break_on_hyphens=False,
    )
    first, *rest = parts or [""]
    return [
        [*begin, (first[max(taken - indent, 0) :], style)],
        *([(" " * indent + part, style)] for part in rest),
    ]


def plain(some: Sequence[Answer]) -> list[str]:
    """Return the lines of some answers as text."""
    return ["".join(text for text, _ in line).rstrip() for line in lines(some)]
