"""How a report was measured, for a page: commands, environments, formats per stage, settings of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.reports import Report, Row, settings
from ropeaudit.reports.fitting import heading
from ropeaudit.reports.html.text import definitions, element, text
from ropeaudit.reports.numbers import setting

_SHARED = (*settings.NAMES, "sample", "softmax", "anchor", "backend", "version", "device")


def render(report: Report) -> str:
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
