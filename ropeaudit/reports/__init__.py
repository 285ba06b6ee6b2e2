"""One report, many forms. Each form is a small file in `forms` and a line of `REGISTRY`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ropeaudit.errors import MissingPackage, UnknownName, UsageError
from ropeaudit.reports import numbers

if TYPE_CHECKING:
    from ropeaudit.runtime.columns import Column, Columns

Row = Mapping[str, Any]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ReportForm:
    """How a report is written: `forms/NAME.py` has render(report), which returns text, or bytes if binary.

    suffixes: of the files that hold it. data: whether decode(bytes) there returns the rows of such a file.
    binary: it goes into files alone. package: what it needs, which the extra called NAME installs.
    """

    name: str
    suffixes: tuple[str, ...]
    data: bool = False
    binary: bool = False
    package: str = ""


# The one list of forms, a line each.
REGISTRY = {
    form.name: form
    for form in (
        ReportForm("table", (".txt",)),
        ReportForm("csv", (".csv",), data=True),
        ReportForm("json", (".json",), data=True),
        ReportForm("jsonl", (".jsonl", ".ndjson"), data=True),
        ReportForm("parquet", (".parquet",), data=True, binary=True, package="pyarrow"),
        ReportForm("markdown", (".md", ".markdown")),
        ReportForm("html", (".html", ".htm")),
    )
}
FORMS = tuple(form.name for form in REGISTRY.values() if not form.binary)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows and what is said around them.

    columns: those that go into data files. screen: those that a reader sees, most telling ones kept
    longest where room is short (`dispensable` names the others, the first to go first); without any, the rows
    are for data files alone.
    headline: the finding in a sentence. notes: findings with their remedies. legend: how to read it.
    further: tables of other rows by name; JSON holds them all, and people see those that have a headline.
    declared: what is known of the columns by name: how a screen shows them, which type an empty one has.
    folded: the rows of tables and of Markdown, where several are shown as one.
    constant: columns that readers are told once, beneath the table, where all rows agree on them.
    refusals: why rows have no numbers; said even where notes are not wanted.
    said_once: those columns with their text, once they are no more on the screen.
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
    folded: Sequence[Row] | None = None
    constant: Sequence[str] = ()
    refusals: Sequence[str] = ()
    said_once: Mapping[str, str] = field(default_factory=dict)

    def for_readers(self) -> Report:
        """Return the report as tables show it: rows folded, scalings in a few words, constants said once."""
        from ropeaudit.rope.scaling_names import shortened

        rows = self.rows if self.folded is None else self.folded
        if "scaling" in self.screen:
            rows = shortened(rows)
        return without_constants(replace(self, rows=rows, folded=None, constant=()), self.constant)

    def full_legend(self) -> str:
        """Return how to read the columns that are shown, after what holds in all rows."""
        from ropeaudit.reports.fitting import explained  # in-function: it builds on reports

        texts = ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in self.said_once.items())
        once = f"In all {len(self.rows)} rows: {texts}." if texts else ""
        return "\n".join(filter(None, [once, explained(self)]))

    def shown(self, name: str, value: Any) -> str:
        """Return a value of a column as a reader sees it."""
        column = self.declared.get(name)
        if column is not None and column.choices and isinstance(value, str):
            return value.replace("_", " ")  # a word of ours, as people read it
        return numbers.styled(value, column.style if column is not None else "short")


def tabulated(
    declared: Columns[Any],
    schema: int,
    rows: Sequence[Row],
    screen: Sequence[str],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return a report of declared columns, without a word yet.

    screen: what a reader sees. columns: instead, if there are any, all that is shown and written.
    """
    return Report(
        rows,
        list(columns or declared),
        list(columns or screen),
        () if columns else declared.dispensable,
        metadata={"schema": schema, **metadata},
        declared=declared,
    )


def only(results: Sequence[R]) -> R:
    """Return the one result that a report is about. Raises: UsageError for several."""
    if len(results) > 1:
        raise UsageError(
            f"a report is about one {type(results[0]).__name__}, and there are {len(results)}; give one"
        )
    return results[0]


def without_constants(report: Report, names: Iterable[str]) -> Report:
    """Return a report without those of `names` on the screen on which all rows agree."""
    rows, screen = report.rows, list(report.screen)
    alike = [name for name in names if name in screen and all(row[name] == rows[0][name] for row in rows)]
    if len(rows) < 2 or not alike:
        return report
    texts = {name: report.shown(name, rows[0][name]) for name in alike}
    left = [name for name in screen if name not in alike]
    return replace(report, screen=left, said_once={**report.said_once, **texts})


def render(form: str, report: Report) -> str:
    """Return the report as text in the named form, with a newline at its end. Raises: UnknownName."""
    if form not in FORMS:
        raise UnknownName("report format", form, FORMS)
    text: str = _module(form).render(report)
    return text


def encoded(form: str, report: Report) -> bytes:
    """Return the report as bytes of a file; bytes in names that are no text are written out.

    Raises: UnknownName.
    """
    if form in REGISTRY and REGISTRY[form].binary:
        content: bytes = _module(form).render(report)
        return content
    return render(form, report).encode("utf-8", "backslashreplace")


def decoded(form: str, content: bytes) -> Iterable[Row]:
    """Return the rows of a data file as they stand there. Damaged content raises errors of many kinds."""
    rows: Iterable[Row] = _module(form).decode(content)
    return rows


def _module(form: str) -> ModuleType:
    return import_module(f"ropeaudit.reports.forms.{form}")


def check_installed(form: str) -> None:
    """Raise MissingPackage if a form needs a package that is not there, before any work is done."""
    if form in REGISTRY and REGISTRY[form].package:
        needed(REGISTRY[form].package, f"a .{form} file", form)


def needed(package: str, what: str, extra: str) -> None:
    """Raise MissingPackage if a package is not installed; `extra` is what to type for it."""
    if find_spec(package) is None:
        raise MissingPackage(f"{what} needs {package}; type: pip install 'ropeaudit[{extra}]'")


def form_of(path: str) -> str:
    """Return the form that a file's suffix asks for. Raises: UnknownName."""
    for form in REGISTRY.values():
        if path.lower().endswith(form.suffixes):
            return form.name
    known = [suffix for form in REGISTRY.values() for suffix in form.suffixes]
    raise UnknownName("kind of file", path, known)
