"""The answer and rows for people: whole in a pipe, styled and fitted on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ropeaudit.reports import Report, Row, answers
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.reports.verdicts import quality

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
MOST_ROWS, MOST_NOTES = 40, 3  # on a terminal, and beneath rows, without -v
_WRAPPED = 20  # columns to which texts of several words are wrapped before columns leave
_LONGEST = 40  # characters of a word from which on it may be cut: paths, not names
_GAP = "   "


def render(report: Report) -> str:
    """Return answer and rows at their natural width, without loading rich."""
    report = report.for_readers()
    parts = []
    if report.header:
        said = answers.plain(report.answers) or [printable(report.headline)] * bool(report.headline)
        parts.append("".join(f"{line}\n" for line in said))
    if report.screen and report.shows_rows:
        parts.append("".join(f"{line.rstrip()}\n" for line in _plain_table(report)))
        if report.header and report.legend:
            parts.append(f"{report.legend}\n")
    if report.header:
        parts.append("".join(f"{line}\n" for line in _notes(report)))
    parts += [render(other) for other in report.further.values() if report.shows_rows and other.headline]
    return "\n".join(filter(None, parts))


def _notes(report: Report) -> list[str]:
    """Return the notes of the rows that are shown: without -v the first few."""
    if not report.shows_rows:
        return []
    shown = report.notes if report.verbose else report.notes[:MOST_NOTES]
    more = len(report.notes) - len(shown)
    return [
        *(f"note: {printable(note)}" for note in shown),
        *[f"{counted(more, 'more note')}: -v"] * (more > 0),
    ]


def _plain_table(report: Report) -> list[str]:
    """Return the lines of a table, numbers to the right."""
    cells = [[report.shown(name, row[name]) for name in report.screen] for row in report.rows]
    right = [report.numeric(name) for name in report.screen]
    if report.header:
        cells.insert(0, [report.title(name) for name in report.screen])
    widths = [max(map(width_of, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        spaces = [" " * (wide - width_of(cell)) for cell, wide in zip(row, widths, strict=True)]
        sided = zip(row, spaces, right, strict=True)
        lines.append(_GAP.join(space + cell if number else cell + space for cell, space, number in sided))
    return lines


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # loads rich

    return cell_len(text)


def to_screen(report: Report, out: TextIO, coloured: bool) -> None:
    """Print answer and rows, fitted to a terminal where `out` is one."""
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
    """Print answer and rows; columns without room are left out and named."""
    from rich.text import Text

    report = report.for_readers()
    piped = console.width >= WHOLE  # lines are not wrapped
    if report.header:
        for line in answers.lines(report.answers, None if piped else console.width):
            console.print(Text.assemble(*line), soft_wrap=True)
        if report.headline and not report.answers:
            console.print(Text(printable(report.headline), style="bold"), soft_wrap=piped)
    if report.screen and report.shows_rows:
        if report.header and (report.answers or report.headline):
            console.print()
        rows = report.rows if piped or report.verbose else report.rows[:MOST_ROWS]
        table, hidden = fitted(report, rows, console)
        console.print(table)
        more = len(report.rows) - len(rows)
        below = [f"{counted(more, 'more row')}: -v, or through a pipe" if more else "", report.legend]
        titles = ", ".join(map(report.title, hidden))
        below.append(f"Hidden (terminal too narrow): {titles}" if hidden else "")
        if report.header and any(below):
            console.print()
            console.print(Text("\n".join(filter(None, below)), style="dim"), soft_wrap=piped)
    if report.header and (notes := _notes(report)):
        console.print()
        console.print(Text("\n".join(notes), style="dim"), soft_wrap=piped)
    for other in report.further.values() if report.shows_rows else ():
        if other.headline:
            console.print()
            show(other, console)


def fitted(report: Report, rows: Sequence[Row], console: Console) -> tuple[Table, list[str]]:
    """Return the table that fits a console, and the columns left out."""
    names, hidden = list(report.screen), list[str]()
    options = console.options.update(max_width=WHOLE)
    for name in report.dispensable:
        if console.measure(_table(report, rows, names, _WRAPPED), options=options).maximum <= console.width:
            break
        if name in names:
            names.remove(name)
            hidden.append(name)
    return _table(report, rows, names), hidden


def _table(
    report: Report,
    rows: Sequence[Row],
    names: Sequence[str],
    widest: int | None = None,
) -> Table:
    """Return the table of some columns. widest: columns of a text whose words need no more."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None,
        padding=(0, len(_GAP), 0, 0),
        pad_edge=False,
        show_header=report.header,
        header_style="bold",
    )
    for name in names:
        number = report.numeric(name)
        words = [word for row in rows for word in report.shown(name, row[name]).split()]
        words += report.title(name).split() if report.header else []
        least = min(max(map(len, words), default=1), _LONGEST)
        table.add_column(
            Text(report.title(name)),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            min_width=least,
            max_width=None if number or widest is None else max(least, widest),
        )
    for row in rows:
        table.add_row(*(Text(report.shown(name, row[name]), style=_style(name, row)) for name in names))
    return table


def _style(name: str, row: Row) -> str:
    if name in ("verdict", "within_tolerance"):  # the colour says whether it is good enough
        return _BY_VERDICT.get(str(row.get("verdict")), _BY_QUALITY.get(quality(row), ""))
    return _BY_STATUS.get(str(row[name]), "") if name == "status" else ""
