"""Markdown: what one pastes into a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ropeaudit.reports import Report, ReportForm, heading
from ropeaudit.reports.forms.csv import written
from ropeaudit.reports.numbers import printable


def render(report: Report) -> str:
    """Return the command, the finding, the table, the notes, the legend, the columns and the environment."""
    parts, report = [], report.for_readers()
    if report.headline:
        parts.append(f"**{_escaped(report.headline)}**")
    sources = report.metadata.get("sources") or [report.metadata]
    if commands := [f"$ {printable(one['command'])}" for one in sources if one.get("command")]:
        parts.append("```console\n" + "\n".join(commands) + "\n```")
    parts += [_table(report)] if report.screen else []
    if report.notes:
        parts.append("\n".join(f"- {_escaped(note)}" for note in report.notes))
    if legend := report.full_legend():
        parts.append(_escaped(legend.replace("\n", " ")))
    parts += [columns_explained(report)] if report.rows and report.declared else []
    parts += [render(other).rstrip("\n") for other in report.further.values() if other.headline]
    for blocks in dict.fromkeys(tuple(_environment(one)) for one in sources):
        parts += blocks
    return "\n\n".join(parts) + "\n"


def columns_explained(report: Report) -> str:
    """Return a folded list of the columns that the CSV of a report has, with their units and meanings."""
    lines = []
    for name in written(report):
        column = report.declared.get(name)
        unit = f" ({_escaped(column.unit)})" if column is not None and column.unit else ""
        lines.append(f"- `{name}`{unit}: {_escaped(column.meaning)}" if column is not None else f"- `{name}`")
    return "\n".join(["<details>", "<summary>Columns of the CSV</summary>", "", *lines, "", "</details>"])


def _table(report: Report) -> str:
    names = report.screen
    lines = [_line(heading(name) for name in names)]
    lines.append(_line("---:" if report.numeric(name) else "---" for name in names))
    lines += [_line(_escaped(report.shown(name, row[name])) for name in names) for row in report.rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _environment(metadata: Mapping[str, Any]) -> list[str]:
    environment = metadata.get("environment")
    if not environment:
        return []
    rows = {key: metadata[key] for key in ("time",) if key in metadata} | environment
    lines = "\n".join(printable(f"{key}: {value}") for key, value in rows.items())
    stages = "\n".join(
        printable(f"{subject}: " + " ".join(f"{stage}={fmt}" for stage, fmt in formats.items()))
        for subject, formats in metadata.get("stages", {}).items()
    )
    blocks = [f"Environment:\n\n```text\n{lines}\n```"]
    return [*blocks, f"Number format per stage:\n\n```text\n{stages}\n```"] if stages else blocks


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is."""
    text = printable(text)
    for mark in "\\|<>*_`[]&":
        text = text.replace(mark, "\\" + mark)
    return text


FORM = ReportForm("Markdown", render, metadata="within", finding=True, notes=True)
