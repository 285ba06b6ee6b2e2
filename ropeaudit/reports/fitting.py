"""What of a table fits into a terminal: which columns, how wide, headings and cells wrapped between words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ropeaudit.reports import Report, Row, without_constants

_BREAK = re.compile(
    r"(?<=[/,;:])|(?<=\w-)(?=[A-Za-z])|\s+"
)  # where a line of a cell may end; numbers and names stay whole
_ANSWERS = ("status", "verdict", "within_tolerance")  # coloured: they stay though all rows agree
_LONGEST = 40  # characters of a word from which on it may be cut: paths, not names
_USUAL = 0.85  # share of the rows whose cells are not wrapped for the sake of another column
_PROSE = 32  # characters of a line that are enough for a sentence
WIDE_GAP, NARROW_GAP = 3, 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table by name, each a heading and a cell for each row; lines end with newlines."""

    names: Sequence[str]
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    widths: Sequence[int]
    gap: int = WIDE_GAP


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The widths of a column: natural; with a wrapped heading; as most rows need it; the least there is."""

    natural: int
    wrapped: int
    usual: int
    least: int


def columns_of_terminal(text: str) -> int:
    """Return how many columns of a terminal the widest line of a text takes."""
    if text.isascii() and "\n" not in text:
        return len(text)
    if text.isascii():
        return max(map(len, text.split("\n")))
    from rich.cells import cell_len  # loads rich

    return max(map(cell_len, text.split("\n")))


def heading(name: str) -> str:
    """Return a column's name as a heading."""
    return name.replace("_", " ")


def is_number(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column holds numbers, which stand to the right."""
    return any(isinstance(row[name], (int, float)) for row in rows)


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
        if not is_number(report.rows, name):
            longest = max((columns_of_terminal(word) for cell in cells for word in _words(cell)), default=0)
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


def _words(text: str) -> list[str]:
    return [word for word in _BREAK.split(text) if word]


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


def explained(report: Report) -> str:
    """Return the legend of a report without what it says of declared columns that are not shown.

    It explains "heading: words", one behind the other, with a semicolon or a full stop; a heading may be the
    beginning of those of several columns.
    """
    shown = [heading(name) for name in (*report.screen, *report.said_once)]
    hidden = [heading(name) for name in report.declared]
    text, gone = "", False
    for part, space in re.findall(r"(.+?(?:[;.](?=\s)|$))(\s*)", report.legend, re.DOTALL):
        word, colon, _ = part.lower().partition(":")
        if colon:
            gone = any(name.startswith(word) for name in hidden) and not any(
                name.startswith(word) for name in shown
            )
        elif part[:1].isupper():  # a sentence of its own
            gone = False
        text += "" if gone else part + space
    text = text.rstrip()
    return f"{text[:-1]}." if text.endswith(";") else text
