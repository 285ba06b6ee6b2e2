"""HTML: one page that needs no network, no server and no script to be read.

Verdicts first, then the worst cases, the notes, a chart, the table, how it was measured, and the report as
Markdown for a ticket. What comes from outside is text everywhere and never part of a script; a Content
Security Policy lets nothing run or load but the page's own style and script, by their hashes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit import data
from ropeaudit.audits import judging, records
from ropeaudit.errors import RopeAuditError
from ropeaudit.reports import Report, ReportForm, Row, heading, needed, settings
from ropeaudit.reports.forms import markdown
from ropeaudit.reports.html import ascii_only, definitions, element, listed, section, tag, text
from ropeaudit.reports.numbers import exact, setting, styled
from ropeaudit.reports.reading import record
from ropeaudit.reports.verdicts import bad, quality, sentence, severity
from ropeaudit.rope.scaling_names import shortened
from ropeaudit.runtime.columns import Style

MOST_WORST, FIRST_NOTES, MOST_NOTES, MOST_IN_TICKET = 5, 6, 100, 50
_TITLE = 120  # characters
_JUDGED = frozenset(
    {"implementation", "dtype", "offset", "verdict", "drift_rms", "drift_relative", "refused"}
)
_DRAWN = frozenset({"implementation", "dtype", "offset", "drift_rms", "verdict"})


def render(report: Report) -> str:
    """Return the page, in ASCII."""
    report = replace(report, rows=shortened(report.rows))
    style, script = data.text("report.css"), data.text("report.js")
    headline = " ".join(report.headline.split()) or "ropeaudit"
    body = [
        _top(headline),
        section("Verdicts", _verdicts(report.rows), "verdicts"),
        section("Worst cases", _worst(report.rows), "worst"),
        section("Notes", _notes(report.notes), "notes"),
        section("Drift against offset", _chart(report.rows), "drift"),
        section("All cases", _cases(report), "all"),
        *(_further(name, other) for name, other in report.further.items()),
        section("How to read it", _legend(report), "legend"),
        section("How it was measured", _measured(report), "measured"),
        section("Markdown for a ticket", _ticket(report), "ticket"),
    ]
    main = element("main", "\n".join(part for part in body if part), id="top")
    head = [
        '<meta charset="utf-8">',
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        element("title", text(textwrap.shorten(headline, _TITLE, placeholder=" …"))),
        f"<style>{style}</style>",
    ]
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{chr(10).join(head)}\n</head>\n'
        f"<body>\n{main}\n<script>{script}</script>\n</body>\n</html>\n"
    )
    return ascii_only(page)


def fragment(report: Report) -> str:
    """Return the finding, the table, the notes and the legend as a part of another page, without style."""
    shown = report.for_readers()
    names = shown.screen
    cells = [
        "".join(element("td", text(shown.shown(name, row[name])), align=_side(shown, name)) for name in names)
        for row in shown.rows
    ]
    head = "".join(
        element("th", text(heading(name)), scope="col", align=_side(shown, name)) for name in names
    )
    table = element("table", "\n".join(element("tr", inside) for inside in (head, *cells))) if names else ""
    parts = [
        element("p", element("strong", text(shown.headline))) if shown.headline else "",
        table,
        _notes(shown.notes),
        *(element("p", element("small", text(line))) for line in shown.full_legend().splitlines()),
    ]
    return ascii_only("\n".join(filter(None, parts)))


def _side(report: Report, name: str) -> str:
    return "right" if report.numeric(name) else "left"


def _policy(style: str, script: str) -> str:
    """Allow the page's own style and script, and nothing else at all."""
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _top(headline: str) -> str:
    """Return the headline and the buttons, which the script shows."""
    buttons = (
        '<button type="button" id="copy" aria-describedby="said">Copy as Markdown</button>'
        '<button type="button" id="theme" aria-pressed="false">Dark</button>'
        '<span id="said" role="status"></span>'
    )
    note = "<noscript><p>Sorting, filtering and copying need JavaScript; all else is here.</p></noscript>"
    return f'<header><h1>{text(headline)}</h1>\n<div id="buttons" hidden>{buttons}</div>{note}</header>'


def _verdicts(rows: Sequence[Row]) -> str:
    """Return how many cases are good enough, and how many have which verdict, the worst first."""
    qualities = Counter(quality(row) for row in rows)
    words = {"no": "out of tolerance", "undecided": "undecided", "yes": "within tolerance"}
    lines = [
        f'<strong>{qualities[name]:,}</strong> <span class="v w-{name}">{word}</span>'
        for name, word in words.items()
        if qualities[name]
    ]
    counts = Counter(str(row["verdict"]) for row in rows if "verdict" in row)
    known = judging.VERDICTS
    ranked = sorted(counts, key=lambda name: [*known, name].index(name), reverse=True)
    lines += [
        f"<strong>{counts[name]:,}</strong> {_verdict(name)} "
        f'<span class="meaning">{text(known.get(name, ""))}</span>'
        for name in ranked
    ]
    return listed(lines, class_="counts")


def _worst(rows: Sequence[Row]) -> str:
    """Return the worst case of each of the worst subjects and dtypes, in words; none where all is well."""
    worst: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.keys() >= _JUDGED and bad(row):
            key = str(row["implementation"]), str(row["dtype"])
            if key not in worst or severity(row) > severity(worst[key]):
                worst[key] = row
    ranked = sorted(worst.values(), key=severity, reverse=True)[:MOST_WORST]
    return listed(
        [f"{_verdict(row['verdict'], quality(row))} {text(sentence(record(row)))}" for row in ranked],
        "ol",
    )


def _notes(notes: Sequence[str]) -> str:
    """Return the first notes in full, more of them folded away, and how many there are."""
    items, more = [text(note) for note in notes[:MOST_NOTES]], len(notes) - MOST_NOTES
    hidden = items[FIRST_NOTES:] + ([f"{more:,} more like these."] if more > 0 else [])
    if not hidden:
        return listed(items)
    summary = f"<summary>{len(notes) - FIRST_NOTES:,} more</summary>"
    return f"{listed(items[:FIRST_NOTES])}<details>{summary}{listed(hidden)}</details>"


def _chart(rows: Sequence[Row]) -> str:
    """Return drift against the offset as a picture that matplotlib draws, or a line of why there is none.

    Rows without the columns that it needs have none; refused rows were not measured. The picture is an
    image: its style is its own, and no name in it can be markup of the page.
    """
    measured = [row for row in rows if row.keys() >= _DRAWN and row["verdict"] != "refused"]
    if not measured:
        return ""
    try:
        needed("matplotlib", "a chart", "plot")
        from ropeaudit.reports.charts import drift  # in-function: it loads matplotlib

        drawn, picture = drift.svg(measured)
    except RopeAuditError as error:
        return element("p", text(f"No chart: {error.typed}"))
    except (ValueError, TypeError, ArithmeticError) as error:  # what an edited file may hold
        return element("p", text(f"No chart: values cannot be drawn: {' '.join(str(error).split())}"))
    coded = base64.b64encode(drawn.encode()).decode()
    image = tag("img", alt=f"Drift against offset: {picture.title}", src=f"data:image/svg+xml;base64,{coded}")
    return element("figure", image + listed([text(note) for note in picture.notes]))


def _cases(report: Report) -> str:
    if not (report.rows and report.screen):
        return ""
    count = f"{len(report.rows):,} case{'s' * (len(report.rows) != 1)}"
    return _controls(report) + _table(report, count, sortable=True)


def _further(name: str, other: Report) -> str:
    """Return another table of the report, as people see it; none without a headline."""
    if not other.headline:
        return ""
    shown = _table(other, name.replace("_", " ")) if other.rows and other.screen else ""
    return section(
        name.replace("_", " ").capitalize(),
        f"{_paragraphs(other.headline)}{shown}{_notes(other.notes)}{_legend(other)}",
        f"further-{name}",
    )


def _paragraphs(lines: str) -> str:
    return "".join(element("p", text(line)) for line in lines.split("\n") if line)


def _legend(report: Report) -> str:
    return _paragraphs(report.full_legend().replace("\n", " "))


def _ticket(report: Report) -> str:
    """Return the report as Markdown; of many rows the worst, which is what a ticket has room for."""
    count = len(report.rows)
    if count > MOST_IN_TICKET:
        ranked = sorted(range(count), key=lambda i: severity(report.rows[i]), reverse=True)[:MOST_IN_TICKET]
        worst = [report.rows[i] for i in sorted(ranked)]
        notes = [f"The {MOST_IN_TICKET} worst of {count:,} cases are shown.", *report.notes[:MOST_NOTES]]
        report = replace(report, rows=worst, notes=notes)
    lines = "\n".join(text(line) for line in markdown.render(report).split("\n"))
    shown = element("pre", lines, id="markdown", tabindex="0")
    return f"<details><summary>Show</summary>{shown}</details>"


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
}
_STORED = 4096  # texts of cells that are remembered: most cells say what another one said


def _table(report: Report, name: str, sortable: bool = False) -> str:
    """Return the screen columns of every row; `name` stands in the caption.

    sortable: headers are buttons, and numbers carry their full precision for the script that sorts.
    """
    names = list(report.screen)
    numbers = {column for column in names if report.numeric(column)}
    head = "".join(_header(column, column in numbers, sortable) for column in names)
    body = "\n".join(_table_row(report, row, numbers, sortable) for row in report.rows)
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


def _controls(report: Report) -> str:
    """Return the filter of the sortable table; the script shows it, for it does nothing without."""
    results = {str(row["verdict"]) for row in report.rows if "verdict" in row}
    boxes = "".join(
        f'<label><input type="checkbox" name="verdict" value="{text(name)}" checked> {_verdict(name)}</label>'
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


def _verdict(name: str, within: str = "") -> str:
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


def _table_row(report: Report, row: Row, numbers: set[str], sortable: bool) -> str:
    start = tag("tr", data_verdict=row["verdict"]) if sortable and "verdict" in row else "<tr>"
    within = quality(row)
    cells = (_cell(report, name, row[name], name in numbers, sortable, within) for name in report.screen)
    return f"{start}{''.join(cells)}</tr>"


def _cell(report: Report, name: str, value: Any, number: bool, sortable: bool, within: str) -> str:
    if name == "verdict":
        return f"<td>{_verdict(str(value), within)}</td>"
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


_SHARED = (*settings.NAMES, "sample", "softmax", "anchor", "backend", "version", "device")


def _measured(report: Report) -> str:
    """Return how the rows of each file were measured, as far as it says; then the settings that all share."""
    about = report.metadata
    sources = about.get("sources")
    if not sources:
        parts = [_source(about)]
    else:
        parts = [f"<h3>{text(source['file'])}</h3>{_source(source)}" for source in sources]
        parts.append(f"<h3>This page</h3>{_source({k: v for k, v in about.items() if k != 'sources'})}")
    return "\n".join(part for part in [*parts, _shared(report.rows)] if part)


def _source(about: Mapping[str, Any]) -> str:
    """Return the command, the environment and the number formats of one run."""
    parts = []
    if lacking := about.get("lacking"):
        parts.append(element("p", text(lacking)))
    if command := about.get("command"):
        parts.append(element("pre", f"$ {text(command)}", tabindex="0", aria_label="command"))
    facts = {name: about[name] for name in ("rows", "time") if name in about} | about.get("environment", {})
    stages = {
        subject: " ".join(f"{stage}={fmt}" for stage, fmt in formats.items())
        for subject, formats in about.get("stages", {}).items()
    }
    for title, pairs in (("Environment", facts), ("Number format per stage", stages)):
        if pairs:
            parts.append(f"<details><summary>{title}</summary>{definitions(pairs)}</details>")
    return "".join(parts)


def _shared(rows: Sequence[Row]) -> str:
    """Return the settings that are the same in every row, which the table does not repeat."""
    same = {}
    for name in _SHARED:
        values = {repr(row.get(name)) for row in rows}
        if len(values) == 1 and rows[0].get(name) is not None:
            same[heading(name)] = setting(rows[0][name])
    inside = definitions(same)
    return f"<details open><summary>The same in every case</summary>{inside}</details>" if same else ""


FORM = ReportForm("HTML", render, metadata="within", errors="xmlcharrefreplace")
