"""HTML: one page that needs no network, no server and no script to be read.

`data/templates/page.html.j2` has its parts in their order. Names are text, never part of a script; a Content
Security Policy allows the page's own style and script alone, by their hashes.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ropeaudit import data
from ropeaudit.audits import judging
from ropeaudit.errors import RopeAuditError
from ropeaudit.reports import Report, Row, answers, drift, heading, needed, settings, templates
from ropeaudit.reports.forms import markdown
from ropeaudit.reports.numbers import setting
from ropeaudit.reports.reading import record
from ropeaudit.reports.verdicts import bad, quality, severity

_MOST_WORST, _MOST_NOTES, _MOST_IN_TICKET = 5, 100, 50
_DRAWN = frozenset({"implementation", "dtype", "offset", "drift_rms", "verdict"})
_JUDGED = _DRAWN | {"drift_relative", "refused"}
_SHARED = (*settings.NAMES, "sample", "softmax", "anchor", "backend", "version", "device")


def render(report: Report) -> str:
    """Return the page, in ASCII: it reads the same in any encoding."""
    rows, report = report.rows, replace(report, verbose=True).for_readers()
    headline = " ".join(report.headline.split()) or "ropeaudit"
    counts = Counter(str(row["verdict"]) for row in report.rows if "verdict" in row)
    unknown = [name for name in counts if name not in judging.VERDICTS]
    shared = {}  # the settings that are the same in every row
    for name in _SHARED:
        values = {repr(row.get(name)) for row in rows}
        if len(values) == 1 and rows[0].get(name) is not None:
            shared[heading(name)] = setting(rows[0][name])
    worst: dict[tuple[str, str], Row] = {}  # of each subject and dtype
    judged = [row for row in rows if row.keys() >= _JUDGED and bad(row)]
    for row in sorted(judged, key=severity, reverse=True):
        worst.setdefault((str(row["implementation"]), str(row["dtype"])), row)
    most = list(worst.values())[:_MOST_WORST]
    page = templates.render(
        "page.html.j2",
        report=report,
        headline=headline,
        answer=answers.plain(report.answers),
        style=data.text("report.css"),
        script=data.text("report.js"),
        qualities=Counter(known for row in report.rows if (known := quality(row))),
        verdicts={name: counts[name] for name in (*unknown, *reversed(judging.VERDICTS)) if counts[name]},
        meanings=judging.VERDICTS,
        worst=[(row, drift.answer([record(row)]).headline) for row in most],
        chart=_chart(rows),
        shared=shared,
        ticket=_ticket(report).split("\n"),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def fragment(report: Report) -> str:
    """Return the report as a part of another page, without style."""
    part = templates.render("fragment.html.j2", report=report)
    return part.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _chart(rows: Sequence[Row]) -> dict[str, Any]:
    """Return drift against the offset as a picture that matplotlib draws, or why there is none.

    Rows without the columns that it needs have none; refused rows were not measured. The picture is an
    image: its style is its own, and no name in it can be markup of the page.
    """
    measured = [row for row in rows if row.keys() >= _DRAWN and row["verdict"] != "refused"]
    if not measured:
        return {}
    try:
        needed("matplotlib", "a chart", "plot")
        from ropeaudit.reports import charts  # in-function: it loads matplotlib

        with charts.sized(None):
            picture = charts.drift(measured, "")  # the page says the finding
            picture.figure.set_figheight(picture.height)
            drawn = charts.encoded(picture, "svg")
    except RopeAuditError as error:
        return {"missing": error.typed}
    except (ValueError, TypeError, ArithmeticError) as error:  # what an edited file may hold
        return {"missing": f"values cannot be drawn: {' '.join(str(error).split())}"}
    return {"notes": picture.notes, "image": base64.b64encode(drawn).decode()}


def _ticket(report: Report) -> str:
    """Return the report as Markdown, of many rows with the worst alone."""
    count = len(report.rows)
    if count > _MOST_IN_TICKET:
        ranked = sorted(range(count), key=lambda i: severity(report.rows[i]), reverse=True)[:_MOST_IN_TICKET]
        worst = [report.rows[i] for i in sorted(ranked)]
        notes = [f"The {_MOST_IN_TICKET} worst of {count:,} cases are shown.", *report.notes[:_MOST_NOTES]]
        report = replace(report, rows=worst, notes=notes)
    return markdown.render(report)
