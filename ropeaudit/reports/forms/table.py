"""A table for people: coloured and fitted on a terminal, plain and whole through a pipe.

Where a terminal is narrow: which columns it has room for, how wide, headings and cells wrapped between words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeAlias

from ropeaudit.reports import Report, ReportForm, Row, heading, without_constants
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.verdicts import quality

if TYPE_CHECKING:
    from rich.console import Console

Piece: TypeAlias = tuple[str, str]  # text, style

_BY_QUALITY = {"yes": "green", "no": "red", "undecided": "yellow"}
_BY_VERDICT = {"overflow": "bold red", "wrong_rotation": "bold red", "refused": "dim"}
_BY_STATUS = {
    "pass": "green",
    "fail": "bold red",
    "waived": "yellow",
    "left out": "dim",
    "not applicable": "dim",
}
WHOLE = 10_000  # columns: no table is wider
NARROWEST = 20  # columns: COLUMNS=0 would show nothing
# where a line of a cell may end; numbers and names stay whole
_BREAK = re.compile(r"(?<=[/,;:])|(?<=\w-)(?=[A-Za-z])|\s+")
_ANSWERS = ("status", "verdict", "within_tolerance")  # coloured: they stay though all rows agree
_LONGEST = 40  # characters of a word from which on it may be cut: paths, not names
_USUAL = 0.85  # share of the rows whose cells are not wrapped for the sake of another column
_PROSE = 32  # characters of a line that are enough for a sentence
WIDE_GAP, NARROW_GAP = 3, 2


class Layout(NamedTuple):
    """The columns of a table by name, each a heading and a cell for each row; lines end with newlines."""

    names: Sequence[str]
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    widths: Sequence[int]
    gap: int = WIDE_GAP


class _Sizes(NamedTuple):
    """The widths of a column: natural; with a wrapped heading; as most rows need it; the least there is."""

    natural: int
    wrapped: int
    usual: int
    least: int


def render(report: Report) -> str:
    """Return the plain table at its natural width, whatever that is; rich is not loaded for it."""
    parts, report = [], report.for_readers()
    if report.headline and report.header:
        parts.append(f"{printable(report.headline)}\n" + "\n" * bool(report.screen))
    if report.screen:
        lines = ("".join(text for text, _ in line) for line in _table(report, whole(report)))
        parts.append("".join(f"{line}\n" for line in lines))
    if report.header and (legend := report.full_legend()):
        parts.append(f"\n{legend}\n")
    parts += [f"\n{render(other)}" for other in report.further.values() if other.headline]
    return "".join(line.rstrip() + "\n" for line in "".join(parts).split("\n")[:-1])


def to_screen(report: Report, out: TextIO, coloured: bool) -> None:
    """Print the table to a terminal, fitted to it, or to what is none, coloured as on one."""
    from rich.console import Console

    terminal = out.isatty()
    console = Console(
        file=out,
        width=None if terminal else WHOLE,
        highlight=False,
        force_terminal=coloured,
        color_system=None if not coloured else "auto" if terminal else "standard",
        no_color=not coloured,
    )
    console.width = max(console.width, NARROWEST)
    show(report, console)


def show(report: Report, console: Console) -> None:
    """Print the table to a console; columns that a narrow one has no room for are left out and named."""
    from rich.text import Text

    report = report.for_readers()
    piped = console.width >= WHOLE  # lines are not wrapped
    if report.headline and report.header:
        console.print(Text(printable(report.headline), style="bold"), soft_wrap=piped)
        if report.screen:
            console.print()
    report, layout, left_out = fitted(report, console.width)
    if layout.names:
        for line in _table(report, layout):
            console.print(Text.assemble(*line), soft_wrap=True)
    left = f"Hidden (terminal too narrow): {', '.join(left_out)}." if left_out else ""
    report = replace(report, screen=layout.names)
    report = report if piped else replace(report, legend=report.legend.replace("\n", " "))
    legend = "\n".join(filter(None, [report.full_legend(), left]))
    if report.header and legend:
        console.print()
        console.print(Text(legend, style="dim"), soft_wrap=piped)
    for other in report.further.values():
        if other.headline:
            console.print()
            show(other, console)


def _table(report: Report, layout: Layout) -> Iterator[list[Piece]]:
    """Yield the lines of the table, each as pieces with their style."""
    right = [report.numeric(name) for name in layout.names]
    if report.header:
        yield from _row(layout, layout.headings, right, ["bold"] * len(right), above=True)
        yield [("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * _total(layout.widths, layout.gap), "")]
    for place, row in enumerate(report.rows):
        cells = [column[place] for column in layout.cells]
        yield from _row(layout, cells, right, [_style(name, row) for name in layout.names])


def _row(
    layout: Layout, cells: Sequence[str], right: Sequence[bool], styles: Sequence[str], above: bool = False
) -> Iterator[list[Piece]]:
    """Yield the lines of one row. above: short cells stand at its last line, as headings do."""
    split = [cell.split("\n") for cell in cells]
    height = max(map(len, split))
    for number in range(height):
        pieces: list[Piece] = []
        for place, lines in enumerate(split):
            line = number - (height - len(lines) if above else 0)
            text = lines[line] if 0 <= line < len(lines) else ""
            space = " " * (layout.widths[place] - columns_of_terminal(text))
            pieces.append((" " * layout.gap if place else "", ""))
            styled = (text, styles[place])
            pieces += [(space, ""), styled] if right[place] else [styled, (space, "")]
        while pieces and not pieces[-1][0].strip():
            pieces.pop()
        yield pieces


def _style(name: str, row: Row) -> str:
    if name in ("verdict", "within_tolerance"):  # the colour says whether it is good enough
        return _BY_VERDICT.get(str(row.get("verdict")), _BY_QUALITY.get(quality(row), ""))
    return _BY_STATUS.get(str(row[name]), "") if name == "status" else ""


def columns_of_terminal(text: str) -> int:
    """Return how many columns of a terminal the widest line of a text takes."""
    if text.isascii() and "\n" not in text:
        return len(text)
    if text.isascii():
        return max(map(len, text.split("\n")))
    from rich.cells import cell_len  # loads rich

    return max(map(cell_len, text.split("\n")))


def whole(report: Report) -> Layout:
    """Return the layout at its natural width."""
    cells = [[report.shown(name, row[name]) for row in report.rows] for name in report.screen]
    headings = [heading(name) for name in report.screen] if report.header else [""] * len(cells)
    widths = [
        max(map(columns_of_terminal, [title, *column])) for title, column in zip(headings, cells, strict=True)
    ]
    return Layout(report.screen, headings, cells, widths)


def fitted(report: Report, width: int) -> tuple[Report, Layout, list[str]]:
    """Return what fits into `width` columns: the report, its layout, and the columns left out.

    One after the other, until it fits: headings are wrapped; what all rows agree on is said once; columns
    leave; gaps are narrowed; cells are wrapped between words. No number and no word is broken for it: where
    even that is too wide, lines are longer than the terminal.
    """
    layout = whole(report)
    if _total(layout.widths, WIDE_GAP) <= width:
        return report, layout, []
    sizes = _sizes(report, layout)

    def usual(names: Sequence[str]) -> int:
        return _total([sizes[name].usual for name in names], WIDE_GAP)

    if usual(report.screen) > width:
        report = without_constants(report, [name for name in report.screen if name not in _ANSWERS])
    names, left_out = list(report.screen), []
    for name in report.dispensable:
        if usual(names) <= width:
            break
        if name in names:
            names.remove(name)
            left_out.append(name)
    places = [layout.names.index(name) for name in names]
    headings = [layout.headings[place] for place in places]
    cells = [layout.cells[place] for place in places]
    widths, gap = _widths([sizes[name] for name in names], width)
    wrapped = Layout(
        names,
        [_wrapped(title, to) for title, to in zip(headings, widths, strict=True)],
        [[_wrapped(cell, to) for cell in column] for column, to in zip(cells, widths, strict=True)],
        widths,
        gap,
    )
    return replace(report, screen=names), wrapped, left_out


def _sizes(report: Report, layout: Layout) -> dict[str, _Sizes]:
    results = {}
    for name, title, cells in zip(layout.names, layout.headings, layout.cells, strict=True):
        lengths = sorted(map(columns_of_terminal, cells)) or [0]
        natural, word = lengths[-1], max(map(len, title.split()), default=0)
        least = usual = natural
        if not report.numeric(name):
            longest = max(
                (columns_of_terminal(word) for cell in cells for word in _BREAK.split(cell)), default=0
            )
            least = min(longest, max(_LONGEST, word))
        if least < natural:
            usual = lengths[int(_USUAL * len(lengths))]
            if " " in max(cells, key=len):
                usual = min(usual, _PROSE)
        sizes = max(natural, len(title)), max(natural, word), max(usual, least, word), max(least, word)
        results[name] = _Sizes(*sizes)
    return results


def _widths(sizes: Sequence[_Sizes], width: int) -> tuple[list[int], int]:
    """Return the width of each column and the gap between them: headings are wrapped, then cells."""
    widths, gap = [size.wrapped for size in sizes], WIDE_GAP
    if _total(widths, gap) > width:
        gap = NARROW_GAP
    while (excess := _total(widths, gap) - width) > 0:
        place = max(range(len(widths)), key=lambda i: (widths[i] > sizes[i].least, widths[i]))
        if widths[place] <= sizes[place].least:
            break
        widths[place] = max(sizes[place].least, widths[place] - excess, widths[place] // 2)
    spare = width - _total(widths, gap)
    for place, size in enumerate(sizes):  # headings that need not be wrapped are not
        if 0 < size.natural - widths[place] <= spare and widths[place] == size.wrapped:
            spare -= size.natural - widths[place]
            widths[place] = size.natural
    return widths, gap


def _wrapped(text: str, width: int) -> str:
    return text if columns_of_terminal(text) <= width else "\n".join(_lines(text, width))


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * max(0, len(widths) - 1)


def _lines(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns; a longer word is cut."""
    if columns_of_terminal(text) <= width:
        return [text]
    lines, rest = [], text
    while columns_of_terminal(rest) > width:
        ends = [match.start() for match in _BREAK.finditer(rest) if match.start() > 0]
        fitting = [end for end in ends if columns_of_terminal(rest[:end].rstrip()) <= width]
        end = max(fitting, default=min(max(1, width), len(rest)))
        lines.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return [*lines, rest] if rest else lines


FORM = ReportForm("a table", render, finding=True, header=True, show=to_screen)
