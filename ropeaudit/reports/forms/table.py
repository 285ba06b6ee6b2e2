"""The answer and rows for people, fitted to a terminal."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

from ropeaudit.audits.records import UNKNOWN
from ropeaudit.reports import Report, Row, answers
from ropeaudit.reports.answers import Line
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.reports.verdicts import quality_of
from ropeaudit.runtime.rows import Rows, column

_BY_QUALITY = {"yes": "green", "no": "red", "undecided": "yellow"}
_BY_VERDICT = {"overflow": "bold red", "wrong_rotation": "bold red", "refused": "dim"}
_BY_STATUS = {
    "pass": "green",
    "fail": "bold red",
    "waived": "yellow",
    "not checked": "dim",
    "not applicable": "dim",
}
NARROWEST = 20  # columns: COLUMNS=0 would show nothing
MOST_ROWS, MOST_NOTES = 40, 3  # on a terminal, and beneath rows, without -v
_WRAPPED = 20  # columns to which texts of several words are wrapped before columns leave
_LONGEST = 40  # characters of a word from which on it may be cut: paths, not names
_GAP = "   "


def render(report: Report) -> str:
    """Return answer and rows at their natural width, without loading rich."""
    return "".join(f"{''.join(text for text, _ in line).rstrip()}\n" for line in lines(report, None))


def to_screen(report: Report, out: TextIO, coloured: bool) -> None:
    """Print answer and rows, fitted to a terminal where `out` is one."""
    from rich.console import Console
    from rich.text import Text

    terminal = out.isatty()
    console = Console(
        file=out,
        highlight=False,
        force_terminal=coloured,
        color_system=None if not coloured else "auto" if terminal else "standard",
        no_color=not coloured,
    )
    console.width = max(console.width, NARROWEST)
    width = console.width if terminal else None
    console.print(Text("\n").join(Text.assemble(*line) for line in lines(report, width)), soft_wrap=True)


def lines(report: Report, width: int | None) -> Iterator[Line]:
    """Yield answer, rows, legend and notes, parted by empty lines.

    width: of a terminal; None where lines are not wrapped.
    """
    begun = False
    for block in _blocks(report, width):
        for number, line in enumerate(block):
            if begun and not number:
                yield []
            begun = True
            yield line


def _blocks(report: Report, width: int | None) -> Iterator[Iterable[Line]]:
    report = report.for_readers()
    shows_rows = report.verbose or not report.brief
    if report.header:
        said = answers.lines(report.answers, width)
        yield said or _styled([report.headline] * bool(report.headline), "bold", width)
    if report.screen and shows_rows:
        rows = report.rows if width is None or report.verbose else report.rows[:MOST_ROWS]
        names, hidden = fitted(report, rows, width)
        yield _table(report, rows, names, width)
        more, titles = len(report.rows) - len(rows), ", ".join(map(report.title, hidden))
        below = [f"{counted(more, 'more row')}: -v, or through a pipe"] * (more > 0)
        below += report.legend.splitlines()
        below += [f"Hidden (terminal too narrow): {titles}"] * bool(hidden)
        yield _styled(below if report.header else [], "dim", width)
    if shows_rows:
        shown = report.notes if report.verbose else report.notes[:MOST_NOTES]  # without -v the first few
        more = len(report.notes) - len(shown)
        notes = [*(f"note: {note}" for note in shown), *[f"{counted(more, 'more note')}: -v"] * (more > 0)]
        yield _styled(notes if report.header else [], "dim", width)
        for other in report.further.values():
            yield from _blocks(other, width) if other.headline else ()


def _styled(texts: Sequence[str], style: str, width: int | None) -> list[Line]:
    return [[(part, style)] for text in texts for part in _wrapped(printable(text), width)]


class Shown(NamedTuple):
    """A column of a table. natural, least: its width, and what it has to have."""

    name: str
    cells: list[str]
    number: bool
    natural: int
    least: int


def _shown(report: Report, rows: Sequence[Row], name: str) -> Shown:
    cells = [report.title(name)] * report.header
    cells += [report.shown(name, value) for value in column(rows, name)]
    natural, number = max(map(width_of, cells), default=0), report.numeric(name)
    words = (len(word) for cell in cells for word in cell.split())
    least = natural if number else min(max(words, default=1), _LONGEST)
    return Shown(name, cells, number, natural, least)


def fitted(report: Report, rows: Sequence[Row], width: int | None) -> tuple[list[Shown], list[str]]:
    """Return the columns that fit a terminal, at least one, and the names of those left out."""
    shown, hidden = {name: _shown(report, rows, name) for name in report.screen}, list[str]()
    for name in (*report.dispensable, *reversed(report.screen)):
        needed = (min(field.natural, max(field.least, _WRAPPED)) + len(_GAP) for field in shown.values())
        if width is None or len(shown) <= 1 or sum(needed) - len(_GAP) <= width:
            break
        if shown.pop(name, None) is not None:
            hidden.append(name)
    return list(shown.values()), hidden


def _table(
    report: Report,
    rows: Sequence[Row],
    shown: Sequence[Shown],
    width: int | None,
) -> Iterator[Line]:
    widths = [field.natural for field in shown]
    room = sum(widths) if width is None else width - len(_GAP) * (len(shown) - 1)
    while sum(widths) > room and (loose := [i for i, field in enumerate(shown) if widths[i] > field.least]):
        widths[max(loose, key=widths.__getitem__)] -= 1
    styles = [["bold"] * report.header + _styles(field.name, rows) for field in shown]
    looks = zip(*styles, strict=True)
    for cells, look in zip(zip(*(field.cells for field in shown), strict=True), looks, strict=True):
        parts: Iterable[Sequence[str]] = [cells]  # lines
        if width is not None:
            wrapped = [_wrapped(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
            parts = itertools.zip_longest(*wrapped, fillvalue="")
        for texts in parts:
            line: Line = []
            for field, text, wide, style in zip(shown, texts, widths, look, strict=True):
                space, gap = " " * (wide - width_of(text)), _GAP * bool(line)
                before, behind = (space, "") if field.number else ("", space)
                line += [(gap + before, ""), (text, style), (behind, "")]
            yield line if width is None else _cut(line, width)


def _cut(line: Line, width: int) -> Line:
    """Return a line without what a terminal has no room for, where one column is left."""
    ends = itertools.accumulate((len(text) for text, _ in line), initial=0)
    return [(text[: max(width - begin, 0)], style) for (text, style), begin in zip(line, ends, strict=False)]


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None or width_of(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # loads rich

    return cell_len(text)


def _styles(name: str, rows: Sequence[Row]) -> list[str]:
    if name in ("verdict", "within_tolerance"):  # the colour says whether it is good enough
        held = Rows.of(rows)
        judged = zip(held.column("within_tolerance", UNKNOWN), held.column("verdict"), strict=True)
        return [_BY_VERDICT.get(str(one[1]), _BY_QUALITY.get(quality_of(*one), "")) for one in judged]
    if name == "status":
        return [_BY_STATUS.get(str(one), "") for one in column(rows, name)]
    return [""] * len(rows)
