"""The report of a command, and the registry of its forms (files in `forms`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from ropeaudit.errors import MissingPackage, UnknownName, UsageError
from ropeaudit.reports import numbers
from ropeaudit.runtime.rows import Row as Row
from ropeaudit.runtime.rows import column

if TYPE_CHECKING:
    from ropeaudit.reports.answers import Answer, Fault
    from ropeaudit.runtime.columns import Column, Columns

R = TypeVar("R")


class Form(NamedTuple):
    """Properties of a form, known without loading its file.

    suffixes: of its files.
    metadata: whether those of the run are within the file, beside it in NAME.meta.json, or nowhere.
    reads: whether ropeaudit can read it.
    binary: whether it is written to files only; --resume does not read it.
    command: the only command that writes it; empty for all.
    finding, notes: whether it shows them, so that stderr need not.
    header: whether --no-header applies.
    package: a package that it needs; the extra has the name of the form.
    is_json: whether its lines are JSON, in which names are escaped on a terminal.
    """

    suffixes: tuple[str, ...]
    metadata: Literal["within", "beside", "nowhere"] = "nowhere"
    reads: bool = False
    binary: bool = False
    command: str = ""
    finding: bool = False
    notes: bool = False
    header: bool = False
    package: str = ""
    is_json: bool = False


# forms/NAME.py has render(report); if ropeaudit reads it, decode(content), which returns rows and metadata;
# and, for another text on terminals, to_screen(report, out, coloured)
REGISTRY = {
    "table": Form((".txt",), finding=True, notes=True, header=True),
    "csv": Form((".csv",), "beside", True, header=True),
    "json": Form((".json",), "within", True, notes=True, is_json=True),
    "jsonl": Form((".jsonl", ".ndjson"), reads=True, is_json=True),
    "parquet": Form((".parquet",), "within", True, binary=True, package="pyarrow"),
    "markdown": Form((".md", ".markdown"), "within", finding=True, notes=True),
    "html": Form((".html", ".htm"), "within"),
    "sarif": Form((".sarif",), command="check", is_json=True),
}
FORMS = tuple(name for name, listed in REGISTRY.items() if not listed.binary)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows, with answers, notes and a legend.

    columns: those of data files.
    screen: those that people see; empty if rows are for data files only.
    dispensable: those that may leave a narrow screen, the first to leave first.
    headline: the finding in a sentence.
    notes: findings with their remedies.
    legend: how to read the rows.
    further: reports of other rows by name; JSON has all, people see those with a headline.
    declared: columns by name: how a screen shows them, and the type of empty ones.
    faults: failures for code hosts; None if the command judges nothing.
    answers: what people read first, instead of the headline.
    brief: whether people see only the answers, unless `verbose` (-v).
    verbose_screen: the columns that people see with -v, if these differ.
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
    declared: Mapping[str, Column] = field(default_factory=dict)
    faults: Sequence[Fault] | None = None
    answers: Sequence[Answer] = ()
    brief: bool = False
    verbose: bool = False
    verbose_screen: Sequence[str] = ()

    def _repr_html_(self) -> str:
        return cast(str, functions("html").fragment(self))

    def for_readers(self) -> Report:
        """Return the report as tables show it: with columns for the screen and short scalings."""
        from ropeaudit.rope.scaling_names import shortened

        screen = self.verbose_screen if self.verbose and self.verbose_screen else self.screen
        rows = shortened(self.rows) if "scaling" in screen else self.rows
        return replace(self, rows=rows, screen=screen, verbose_screen=())

    def title(self, name: str) -> str:
        """Return the heading of a column: its declared title, else its name."""
        declared = self.declared.get(name)
        return (declared.title if declared is not None else "") or heading(name)

    def numeric(self, name: str) -> bool:
        """Return whether a column holds numbers, which are aligned right."""
        return any(isinstance(value, (int, float)) for value in column(self.rows, name))

    def shown(self, name: str, value: Any) -> str:
        """Return a value of a column as text for people."""
        declared = self.declared.get(name)
        if declared is not None and declared.kind is bool:
            return dict(zip((True, False, None), declared.words, strict=False)).get(value, "")
        if declared is not None and declared.words and isinstance(value, str):
            return value.replace("_", " ")
        return numbers.styled(value, declared.style if declared is not None else "short")


def with_metadata(report: Report, metadata: Mapping[str, Any]) -> Report:
    """Add metadata of a run to a report, and to its further reports that have some."""
    further = {
        name: with_metadata(other, metadata) for name, other in report.further.items() if other.metadata
    }
    about = {**metadata, **report.metadata}
    return replace(report, metadata=about, further={**report.further, **further})


def tabulated(
    declared: Columns,
    schema: int,
    rows: Sequence[Row],
    screen: Sequence[str],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    answers: Sequence[Answer] = (),
    dispensable: Sequence[str] | None = None,
    written: Sequence[str] | None = None,
    **fields: Any,
) -> Report:
    """Return a report of declared columns, headed by answers.

    screen: columns that people see.
    columns: if not empty, the only columns that are shown and written.
    dispensable: columns that may leave a narrow screen, by default as declared.
    written: columns of files, by default all.
    fields: other fields of the report.
    """
    from ropeaudit.reports.answers import headline  # in-function: `--help` answers nothing

    return Report(
        rows,
        list(columns or (declared if written is None else written)),
        list(columns or screen),
        () if columns else declared.dispensable if dispensable is None else dispensable,
        headline=headline(answers),
        metadata={"schema": schema, **metadata},
        declared=declared,
        answers=answers,
        **fields,
    )


def only(results: Sequence[R]) -> R:
    """Return the single result of a report. Raises: UsageError for several."""
    if len(results) > 1:
        raise UsageError(
            f"a report is about one {type(results[0]).__name__}, and there are {len(results)}; give one"
        )
    return results[0]


def heading(name: str) -> str:
    """Return the name of a column as a heading."""
    return name.replace("_", " ")


def functions(form: str) -> Any:
    """Import the module of a form."""
    return import_module(f"ropeaudit.reports.forms.{form}")


def render(form: str, report: Report) -> str:
    """Return the report as text in a form, which ends in a newline. Raises: UnknownName."""
    if form not in FORMS:
        raise UnknownName("report format", form, FORMS)
    return cast(str, functions(form).render(report))


def encoded(form: str, report: Report) -> bytes:
    """Return the report as bytes of a file; undecodable bytes in names are escaped.

    Raises: UnknownName.
    """
    if form not in REGISTRY:
        raise UnknownName("report format", form, REGISTRY)
    content: str | bytes = functions(form).render(report)
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")


def beside(path: str) -> str:
    """Return the path of the metadata file beside a report."""
    return f"{path}.meta.json"


def check_installed(form: str) -> None:
    """Raise MissingPackage if a package that a form needs is not installed."""
    if form in REGISTRY and (package := REGISTRY[form].package):
        needed(package, f"a .{form} file", form)


def needed(package: str, what: str, extra: str) -> None:
    """Raise MissingPackage if a package is not installed; `extra` is what to type for it."""
    if find_spec(package) is None:
        raise MissingPackage(f"{what} needs {package}; type: pip install 'ropeaudit[{extra}]'")


def form_of(path: str) -> str:
    """Return the form of a file by its suffix. Raises: UnknownName."""
    for name, listed in REGISTRY.items():
        if path.lower().endswith(listed.suffixes):
            return name
    known = [suffix for listed in REGISTRY.values() for suffix in listed.suffixes]
    raise UnknownName("kind of file", path, known)
