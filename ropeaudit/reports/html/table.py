"""Tables of HTML: whole without a script, sorted and filtered with one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.reports import Report, Row
from ropeaudit.reports.forms.table import heading, is_number, shown
from ropeaudit.reports.html.text import element, tag, text
from ropeaudit.reports.numbers import exact
from ropeaudit.reports.verdicts import quality

# verdict -> a sign that tells it from the others without its colour
SYMBOLS = {
    "overflow": "∞",
    "misplaced": "⤨",
    "broken": "✗",
    "growing": "↗",
    "coarse": "≉",
    "sound": "≈",
    "exact": "=",
    "refused": "–",
    "decorrelated": "✗",
    "floor": "⌊",
}
_CACHED = 4096  # texts of cells: most cells show what another one shows


def table(report: Report, name: str, sortable: bool = False) -> str:
    """Return the screen columns of every row; `name` stands in the caption.

    sortable: headers are buttons, and numbers carry their full precision for the script that sorts.
    """
    names = list(report.screen)
    numbers = {column for column in names if is_number(report.rows, column)}
    head = "".join(_header(column, column in numbers, sortable) for column in names)
    body = "\n".join(_row(row, names, numbers, sortable) for row in report.rows)
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
    """Return the filter of the sortable table, which the script shows."""
    present = {str(row["verdict"]) for row in report.rows if "verdict" in row}
    boxes = "".join(
        f'<label><input type="checkbox" name="verdict" value="{text(name)}" checked> {verdict(name)}</label>'
        for name in [*SYMBOLS, *sorted(present - SYMBOLS.keys())]
        if name in present
    )
    verdicts = f"<fieldset><legend>Verdicts</legend>{boxes}</fieldset>" if len(present) > 1 else ""
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


def explained(name: str) -> str:
    """Return what a column holds, where it is one of an audit's."""
    return records.COLUMNS.get(name, "")


def _header(column: str, number: bool, sortable: bool) -> str:
    name = text(heading(column))
    inside = f'<button type="button">{name}</button>' if sortable else name
    return element(
        "th",
        inside,
        scope="col",
        class_="n" if number else None,
        title=explained(column) or None,
        aria_sort="none" if sortable else None,
    )


def _row(row: Row, names: Sequence[str], numbers: set[str], sortable: bool) -> str:
    start = tag("tr", data_verdict=row["verdict"]) if sortable and "verdict" in row else "<tr>"
    within = quality(row)
    cells = (_cell(name, row[name], name in numbers, sortable, within) for name in names)
    return f"{start}{''.join(cells)}</tr>"


def _cell(name: str, value: Any, number: bool, sortable: bool, within: str) -> str:
    if name == "verdict":
        return f"<td>{verdict(str(value), within)}</td>"
    content = _shown(name, value, type(value).__name__)
    if not number:
        return f"<td>{content}</td>"
    full = exact(value)
    return (
        f'<td class="n" data-v="{text(full)}">{content}</td>'
        if sortable and full != content
        else f'<td class="n">{content}</td>'
    )


@functools.lru_cache(_CACHED)
def _shown(name: str, value: Any, kind: str) -> str:
    """Return the text of a value; `kind` tells 1 from 1.0."""
    return text(shown(name, value))
