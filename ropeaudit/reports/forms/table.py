"""A table for people: coloured and fitted on a terminal, plain and whole through a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ropeaudit.reports import Report, Row
from ropeaudit.reports.fitting import Layout, columns_of_terminal, fitted, is_number, whole
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.verdicts import quality

if TYPE_CHECKING:
    from rich.console import Console

Piece: TypeAlias = tuple[str, str]  # text, style

_BY_QUALITY = {"yes": "green", "no": "red", "undecided": "yellow"}
_BY_VERDICT = {"overflow": "bold red", "wrong_rotation": "bold red", "refused": "dim"}
_BY_STATUS = {"pass": "green", "fail": "bold red", "waived": "yellow", "not applicable": "dim"}
WHOLE = 10_000  # columns: no table is wider


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


def show(report: Report, console: Console) -> None:
    """Print the table to a console; columns that a narrow one has no room for are left out and named."""
    from rich.text import Text

    report = report.for_readers()
    whole = console.width >= WHOLE  # a pipe or a file: lines are not wrapped
    if report.headline and report.header:
        console.print(Text(printable(report.headline), style="bold"), soft_wrap=whole)
        if report.screen:
            console.print()
    report, layout, left_out = fitted(report, console.width)
    if layout.names:
        for line in _table(report, layout):
            console.print(Text.assemble(*line), soft_wrap=True)
    left = f"Hidden (terminal too narrow): {', '.join(left_out)}." if left_out else ""
    report = replace(report, screen=layout.names)
    report = report if whole else replace(report, legend=report.legend.replace("\n", " "))
    legend = "\n".join(filter(None, [report.full_legend(), left]))
    if report.header and legend:
        console.print()
        console.print(Text(legend, style="dim"), soft_wrap=whole)
    for other in report.further.values():
        if other.headline:
            console.print()
            show(other, console)


def _table(report: Report, layout: Layout) -> Iterator[list[Piece]]:
    """Yield the lines of the table, each as pieces with their style."""
    right = [is_number(report.rows, name) for name in layout.names]
    if report.header:
        yield from _row(layout, layout.headings, right, ["bold"] * len(right), above=True)
        yield [("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * _width(layout), "")]
    for place, row in enumerate(report.rows):
        cells = [column[place] for column in layout.cells]
        yield from _row(layout, cells, right, [_style(name, row) for name in layout.names])


def _width(layout: Layout) -> int:
    return sum(layout.widths) + layout.gap * (len(layout.widths) - 1)


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
