"""One report, many forms. Each form is a small file with render(report) -> text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ropeaudit.errors import UnknownName

Row = Mapping[str, Any]

# form -> module that renders it, suffixes of files that hold it
_FORMS = {
    "table": ("table", (".txt",)),
    "csv": ("csv", (".csv",)),
    "json": ("json", (".json",)),
    "jsonl": ("jsonl", (".jsonl", ".ndjson")),
    "markdown": ("markdown", (".md", ".markdown")),
    "html": ("html", (".html", ".htm")),
}
FORMS = tuple(_FORMS)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows and what is said around them.

    columns: those that go into data files. screen: those that a reader sees, most telling ones kept
    longest where room is short (`dispensable` names the others, the first to go first); without any, the rows
    are for data files alone.
    headline: the finding in a sentence. notes: findings with their remedies. legend: how to read it.
    further: tables of other rows by name; JSON holds them all, and people see those that have a headline.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    screen: Sequence[str]
    dispensable: Sequence[str] = ()
    headline: str = ""
    notes: Sequence[str] = ()
    legend: str = ""
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    header: bool = True
    further: Mapping[str, Report] = field(default_factory=dict)


def render(form: str, report: Report) -> str:
    """Return the report as text in the named form, with a newline at its end. Raises: UnknownName."""
    if form not in _FORMS:
        raise UnknownName("report format", form, FORMS)
    module = import_module(f"ropeaudit.reports.{_FORMS[form][0]}")
    text: str = module.render(report)
    return text


def form_of(path: str) -> str:
    """Return the form that a file's suffix asks for. Raises: UnknownName."""
    for form, (_, suffixes) in _FORMS.items():
        if path.lower().endswith(suffixes):
            return form
    known = [suffix for _, suffixes in _FORMS.values() for suffix in suffixes]
    raise UnknownName("kind of output file", path, known)
