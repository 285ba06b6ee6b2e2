"""One report, many forms. Each form is a small file with render(report) -> text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ropeaudit.errors import MissingPackage, UnknownName
from ropeaudit.reports import numbers

if TYPE_CHECKING:
    from ropeaudit.runtime.columns import Column

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
# The same for forms that are no text and go into files alone; each has encode(report) -> bytes, and `needs`.
_BINARY = {"parquet": ("parquet", (".parquet",))}
FORMS = tuple(_FORMS)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows and what is said around them.

    columns: those that go into data files. screen: those that a reader sees, most telling ones kept
    longest where room is short (`dispensable` names the others, the first to go first); without any, the rows
    are for data files alone.
    headline: the finding in a sentence. notes: findings with their remedies. legend: how to read it.
    further: tables of other rows by name; JSON holds them all, and people see those that have a headline.
    declared: what is known of the columns by name: how a screen shows them, which type an empty one has.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    screen: Sequence[str]
    dispensable: Sequence[str] = ()
    headline: str = ""
    notes: Sequence[str] = ()
    legend: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    header: bool = True
    further: Mapping[str, Report] = field(default_factory=dict)
    declared: Mapping[str, Column[Any]] = field(default_factory=dict)

    def shown(self, name: str, value: Any) -> str:
        """Return a value of a column as a reader sees it."""
        return numbers.styled(value, self.declared[name].style if name in self.declared else "short")


def render(form: str, report: Report) -> str:
    """Return the report as text in the named form, with a newline at its end. Raises: UnknownName."""
    if form not in _FORMS:
        raise UnknownName("report format", form, FORMS)
    module = import_module(f"ropeaudit.reports.forms.{_FORMS[form][0]}")
    text: str = module.render(report)
    return text


def encoded(form: str, report: Report) -> bytes:
    """Return the report as bytes of a file; bytes in names that are no text are written out."""
    if form not in _BINARY:
        return render(form, report).encode("utf-8", "backslashreplace")
    module = import_module(f"ropeaudit.reports.forms.{_BINARY[form][0]}")
    result: bytes = module.encode(report)
    return result


def check_installed(form: str) -> None:
    """Raise MissingPackage if a form needs a package that is not there, before any work is done."""
    if form in _BINARY:
        needed(import_module(f"ropeaudit.reports.forms.{_BINARY[form][0]}").NEEDS, f"a .{form} file", form)


def needed(package: str, what: str, extra: str) -> None:
    """Raise MissingPackage if a package is not installed; `extra` is what to type for it."""
    if find_spec(package) is None:
        raise MissingPackage(f"{what} needs {package}; type: pip install 'ropeaudit[{extra}]'")


def form_of(path: str) -> str:
    """Return the form that a file's suffix asks for. Raises: UnknownName."""
    every = _FORMS | _BINARY
    for form, (_, suffixes) in every.items():
        if path.lower().endswith(suffixes):
            return form
    known = [suffix for _, suffixes in every.values() for suffix in suffixes]
    raise UnknownName("kind of file", path, known)
