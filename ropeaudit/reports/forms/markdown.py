"""Markdown: command, finding, table, notes, legend, columns and environment."""

from __future__ import annotations

from ropeaudit.reports import Report
from ropeaudit.reports.answers import plain
from ropeaudit.reports.forms.csv import written
from ropeaudit.reports.templates import render as rendered


def render(report: Report) -> str:
    """Return the report as one pastes it."""
    return rendered("report.md.j2", report=report, written=written, plain=plain).rstrip("\n") + "\n"
