"""Tables of HTML: whole without a script, sorted and filtered with one."""

from __future__ import annotations

import functools
from typing import Any

from ropeaudit.audits import records
from ropeaudit.reports import Report, Row
from ropeaudit.reports.fitting import heading, is_number
from ropeaudit.reports.html.text import element, tag, text
from ropeaudit.reports.numbers import exact, styled
from ropeaudit.reports.verdicts import quality
from ropeaudit.runtime.columns import Style

# verdict -> a mark that tells it from the others without its colour
SYMBOLS = {
    "overflow": "∞",
    "wrong_rotation": "⤨",
    "broken": "✗",
    "growing": "↗",
    "coarse": "≉",
    "sound": "≈",
    "exact": "=",
    "refused": "–",
    "decorrelated": "✗",
    "floor": "⌊",
}
_STORED = 4096  # texts of cells that are remembered: most cells say what another one said


def table(report: Report, name: str, sortable: bool = False) -> str:
    """Return the screen columns of every row; `name` stands in the caption.

    sortable: headers are buttons, and numbers carry their full precision for the script that sorts.
    """
    names = list(report.screen)
    numbers = {column for column in names if is_number(report.rows, column)}
    head = "".join(_header(column, column in numbers, sortable) for column in names)
    body = "\n".join(_row(report, row, numbers, sortable) for row in report.rows)
    caption = element("caption", text(name))
    inside = f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return element(
        "div",
        element("table", inside, id="cases" if sortable else None),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=name,
    )


def controls(report: Report) -> str:
    """Return the filter of the sortable table; the script shows it, for it does nothing without."""
    results = {str(row["verdict"]) for row in report.rows if "verdict" in row}
    boxes = "".join(
        f'<label><input type="checkbox" name="verdict" value="{text(name)}" checked> {verdict(name)}</label>'
        for name in [*SYMBOLS, *sorted(results - SYMBOLS.keys())]
        if name in results
    )
    verdicts = f"<fieldset><legend>Verdicts</legend>{boxes}</fieldset>" if len(results) > 1 else ""
    search = '<label class="search">Filter <input type="search" id="filter" autocomplete="off"></label>'
    pages = (
        '<div class="pages"><span id="count" role="status"></span>'
        '<button type="button" id="previous">Previous</button>'
        '<button type="button" id="next">Next</button></div>'
    )
    return f'<form id="controls" role="search" hidden>{search}{verdicts}{pages}</form>'


def verdict(name: str, within: str = "") -> str:
    """Return a verdict with its mark, in the colour of `within`; an unknown one is plain text."""
    if name not in SYMBOLS:
        return text(name)
    mark = f'<span aria-hidden="true">{SYMBOLS[name]}</span>'
    colour = f" w-{within}" if within else ""
    return f'<span class="v v-{name}{colour}">{mark} {name}</span>'


def _header(column: str, number: bool, sortable: bool) -> str:
    message = text(heading(column))
    inside = f'<button type="button">{message}</button>' if sortable else message
    return element(
        "th",
        inside,
        scope="col",
        class_="n" if number else None,
        title=records.COLUMNS[column].meaning if column in records.COLUMNS else None,
        aria_sort="none" if sortable else None,
    )


def _row(report: Report, row: Row, numbers: set[str], sortable: bool) -> str:
    start = tag("tr", data_verdict=row["verdict"]) if sortable and "verdict" in row else "<tr>"
    within = quality(row)
    cells = (_cell(report, name, row[name], name in numbers, sortable, within) for name in report.screen)
    return f"{start}{''.join(cells)}</tr>"


def _cell(report: Report, name: str, value: Any, number: bool, sortable: bool, within: str) -> str:
    if name == "verdict":
        return f"<td>{verdict(str(value), within)}</td>"
    style = report.declared[name].style if name in report.declared else "short"
    message = _message(style, value, type(value).__name__)
    if not number:
        return f"<td>{message}</td>"
    full = exact(value)
    return (
        f'<td class="n" data-v="{text(full)}">{message}</td>'
        if sortable and full != message
        else f'<td class="n">{message}</td>'
    )


@functools.lru_cache(_STORED)
def _message(style: Style, value: Any, kind: str) -> str:
    """Return the cell of a value; `kind` keeps 1 and 1.0 apart."""
    return text(styled(value, style))
