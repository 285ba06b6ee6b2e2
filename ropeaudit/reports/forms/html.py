"""HTML: one page that needs no network, no server and no script to be read.

Verdicts first, then the worst cases, the notes, charts, the table, how it was measured, and the report as
Markdown for a ticket. What comes from outside is text everywhere and never part of a script; a Content
Security Policy lets nothing run or load but the page's own style and script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ropeaudit import data
from ropeaudit.audits import judging
from ropeaudit.reports import Report, Row
from ropeaudit.reports.charts import panels, svg
from ropeaudit.reports.forms import markdown
from ropeaudit.reports.html import metadata, table
from ropeaudit.reports.html.text import ascii_only, element, listed, section, tag, text
from ropeaudit.reports.reading import record
from ropeaudit.reports.verdicts import bad, quality, sentence, severity
from ropeaudit.rope.scaling_names import shortened

MOST_WORST, FIRST_NOTES, MOST_NOTES, MOST_IN_TICKET = 5, 6, 100, 50
_TITLE = 120  # characters
_JUDGED = frozenset(
    {"implementation", "dtype", "offset", "verdict", "drift_rms", "drift_relative", "refused"}
)


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
        section("Drift against offset", _charts(report), "drift"),
        section("All cases", _cases(report), "all"),
        *(_further(name, other) for name, other in report.further.items()),
        section("How to read it", _legend(report), "legend"),
        section("How it was measured", metadata.render(report), "measured"),
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
    """Return how many cases have which verdict, the worst first, and what it means."""
    counts = Counter(str(row["verdict"]) for row in rows if "verdict" in row)
    known = judging.VERDICTS
    ranked = sorted(counts, key=lambda name: [*known, name].index(name), reverse=True)
    lines = [
        f"<strong>{counts[name]:,}</strong> {table.verdict(name)} "
        f'<span class="meaning">{text(known.get(name, ""))}</span>'
        for name in ranked
    ]
    return listed([*_qualities(rows), *lines], class_="counts")


def _qualities(rows: Sequence[Row]) -> list[str]:
    """Return how many cases are good enough, and how many are not."""
    counts = Counter(quality(row) for row in rows)
    words = {"no": "out of tolerance", "undecided": "undecided", "yes": "within tolerance"}
    return [
        f'<strong>{counts[name]:,}</strong> <span class="v w-{name}">{word}</span>'
        for name, word in words.items()
        if counts[name]
    ]


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
        [f"{table.verdict(row['verdict'], quality(row))} {text(sentence(record(row)))}" for row in ranked],
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


def _charts(report: Report) -> str:
    """Return the charts of the worst subjects, with what their marks mean."""
    charts, count = panels.charts(report.rows)
    axes = svg.shared_axes(charts)
    figures = [
        element(
            "figure",
            f"<figcaption><strong>{text(chart.title)}</strong> {text(chart.caption)}</figcaption>"
            f"{svg.draw(chart, axes, number)}",
        )
        for number, chart in enumerate(charts)
    ]
    legend = (
        "Ringed: out of tolerance. "
        "Dotted, level: the floor, drift at offset 0. Dashed, upright: the offset at which the sequence "
        "reaches the first position that the position stage (of code, its dtype) cannot hold exactly. "
        "A pointer on a marker shows its value."
    )
    if count > len(charts):
        legend += f" The {len(charts)} worst of {count:,} are drawn; the table holds all."
    return f'<div class="charts">{"".join(figures)}</div><p>{text(legend)}</p>' if charts else ""


def _cases(report: Report) -> str:
    if not (report.rows and report.screen):
        return ""
    count = f"{len(report.rows):,} case{'s' * (len(report.rows) != 1)}"
    return table.controls(report) + table.table(report, count, sortable=True)


def _further(name: str, other: Report) -> str:
    """Return another table of the report, as people see it; none without a headline."""
    if not other.headline:
        return ""
    shown = table.table(other, name.replace("_", " ")) if other.rows and other.screen else ""
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
