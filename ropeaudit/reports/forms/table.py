"""A table for people: coloured and fitted on a terminal, plain and whole through a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeaudit.reports import Report, Row
from ropeaudit.reports.numbers import printable
from ropeaudit.reports.verdicts import quality

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_BY_QUALITY = {"yes": "green", "no": "red", "undecided": "yellow"}
_BY_VERDICT = {"overflow": "bold red", "misplaced": "bold red", "refused": "dim"}
_BY_STATUS = {"pass": "green", "fail": "bold red", "waived": "yellow", "not applicable": "dim"}
_BETWEEN = "   "  # what rich too puts between columns
WHOLE = 10_000  # columns: no table is wider


def render(report: Report) -> str:
    """Return the plain table at its natural width, whatever that is; rich is not loaded for it."""
    parts, report = [], report.for_readers()
    if report.headline and report.header:
        parts.append(f"{printable(report.headline)}\n" + "\n" * bool(report.screen))
    names, left_out = _fitting(report, WHOLE)
    if names:
        parts.append(_plain(report, names))
    if report.header and (legend := _legend(report, left_out)):
        parts.append(f"\n{legend}\n")
    parts += [f"\n{render(other)}" for other in report.further.values() if other.headline]
    return "".join(line.rstrip() + "\n" for line in "".join(parts).split("\n")[:-1])


def _legend(report: Report, left_out: Sequence[str]) -> str:
    legend = [report.legend] if report.legend else []
    if left_out:
        legend.append(f"Left out for want of room: {', '.join(left_out)}.")
    return "\n".join(legend)


def show(report: Report, console: Console) -> None:
    """Print the table to a console; columns that a narrow one has no room for are left out and named."""
    from rich.text import Text

    report = report.for_readers()
    whole = console.width >= WHOLE  # a pipe or a file: lines are not wrapped
    if report.headline and report.header:
        console.print(Text(printable(report.headline), style="bold"), soft_wrap=whole)
        if report.screen:
            console.print()
    names, left_out = _fitting(report, console.width)
    if names:
        console.print(_table(report, names))
    if report.header and (legend := _legend(report, left_out)):
        console.print()
        console.print(Text(legend, style="dim"), soft_wrap=whole)
    for other in report.further.values():
        if other.headline:
            console.print()
            show(other, console)


def _table(report: Report, names: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=report.header)
    for name in names:
        number = is_number(report.rows, name)
        table.add_column(heading(name), justify="right" if number else "left", overflow="fold")
    for row in report.rows:
        table.add_row(*(_cell(report, name, row) for name in names))
    return table


def _plain(report: Report, names: Sequence[str]) -> str:
    """Return the table without colours: rich takes half a millisecond for a row, which thousands feel."""
    columns = []
    for name in names:
        cells = [report.shown(name, row[name]) for row in report.rows]
        cells = [heading(name), *cells] if report.header else cells
        width, right = max(map(_cells, cells), default=0), is_number(report.rows, name)
        padded = [(" " * (width - _cells(cell)), cell) for cell in cells]
        columns.append([space + cell if right else cell + space for space, cell in padded])
    lines = [_BETWEEN.join(cells) for cells in zip(*columns, strict=True)]
    if report.header:
        lines.insert(1, "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * len(lines[0]))
    return "".join(line + "\n" for line in lines)


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # loads rich

    return cell_len(text)


def heading(name: str) -> str:
    """Return a column's name as a heading."""
    return name.replace("_", " ")


def is_number(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column holds numbers, which stand to the right."""
    return any(isinstance(row[name], (int, float)) for row in rows)


def _cell(report: Report, name: str, row: Row) -> Text:
    from rich.text import Text

    style = ""
    if name in ("verdict", "within_tolerance"):  # the colour says whether it is good enough
        style = _BY_VERDICT.get(str(row.get("verdict")), _BY_QUALITY.get(quality(row), ""))
    if name == "status":
        style = _BY_STATUS.get(str(row[name]), "")
    return Text(report.shown(name, row[name]), style=style)


def _fitting(report: Report, width: int) -> tuple[list[str], list[str]]:
    """Return the columns that fit into `width` and those left out for it."""
    names, left_out = list(report.screen), []
    for name in report.dispensable:
        if _width(report, names) <= width:
            break
        if name in names:
            names.remove(name)
            left_out.append(name)
    return names, left_out


def _width(report: Report, names: Sequence[str]) -> int:
    widths = [
        max([len(heading(name)), *(len(report.shown(name, row[name])) for row in report.rows)])
        for name in names
    ]
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)
