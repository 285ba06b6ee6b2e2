"""One report, many forms: a file in `forms` and a line of `REGISTRY` each."""

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
    """What is known of a form before its file is loaded; whoever treats forms differently asks this.

    suffixes: of the files that hold it.
    metadata: where those of the run stand: in the file, beside it in NAME.meta.json, nowhere.
    reads: whether it is read back; people alone read the others.
    binary: it goes into files alone, and a run that was broken off does not go on from one.
    command: the one whose reports it holds; empty where it is for all.
    finding, notes: whether who reads it on a screen reads them, so that stderr does not repeat them.
    header: whether a line above the rows can be left out.
    package: what it needs, which the extra called like the form installs.
    is_json: whether its lines are JSON, where a terminal escapes names as JSON does.
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


# forms/NAME.py has render(report); of what is read back decode(content), its rows and metadata; and, where a
# terminal gets another text, to_screen(report, out, coloured)
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
    """Rows and what is said around them.

    columns: those that go into data files.
    screen: those that a reader sees, most telling ones kept longest where room is short (`dispensable` names
    the others, the first to go first); without any, the rows are for data files alone.
    headline: the finding in a sentence.
    notes: findings with their remedies.
    legend: how to read it.
    further: tables of other rows by name; JSON holds them all, and people see those that have a headline.
    declared: what is known of the columns by name: how a screen shows them, which type an empty one has.
    faults: what fails, for code hosts; None where the command judges nothing.
    answers: what people read first, in place of the headline, which is their first line as a sentence.
    brief: whether people see the answers alone, unless it is verbose, which -v asks for.
    verbose_screen: the columns that people see then, where these are more.
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
        """Return the report as notebooks show it."""
        return cast(str, functions("html").fragment(self))

    def for_readers(self) -> Report:
        """Return the report as tables show it: scalings in a few words."""
        from ropeaudit.rope.scaling_names import shortened

        screen = self.verbose_screen if self.verbose and self.verbose_screen else self.screen
        rows = shortened(self.rows) if "scaling" in screen else self.rows
        return replace(self, rows=rows, screen=screen, verbose_screen=())

    def title(self, name: str) -> str:
        """Return the heading of a column: the one that it declares, else its name."""
        declared = self.declared.get(name)
        return (declared.title if declared is not None else "") or heading(name)

    def numeric(self, name: str) -> bool:
        """Return whether a column holds numbers, which stand to the right."""
        return any(isinstance(one, (int, float)) for one in column(self.rows, name))

    def shown(self, name: str, value: Any) -> str:
        """Return a value of a column as a reader sees it."""
        known = self.declared.get(name)
        if known is not None and known.kind is bool:
            return dict(zip((True, False, None), known.words, strict=False)).get(value, "")
        if known is not None and known.words and isinstance(value, str):
            return value.replace("_", " ")  # a word of ours, as people read it
        return numbers.styled(value, known.style if known is not None else "short")


def with_metadata(report: Report, metadata: Mapping[str, Any]) -> Report:
    """Return a report and its further tables with a run's metadata added."""
    further = {name: with_metadata(one, metadata) for name, one in report.further.items() if one.metadata}
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
    **said: Any,
) -> Report:
    """Return a report of declared columns, headed by answers.

    screen: what a reader sees.
    columns: instead, if there are any, all that is shown and written.
    dispensable: those that may leave a narrow screen, as declared by default.
    written: those that go into files, all by default.
    said: other fields of a report.
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
        **said,
    )


def only(results: Sequence[R]) -> R:
    """Return the one result that a report is about. Raises: UsageError for several."""
    if len(results) > 1:
        raise UsageError(
            f"a report is about one {type(results[0]).__name__}, and there are {len(results)}; give one"
        )
    return results[0]


def heading(name: str) -> str:
    """Return a column's name as a heading."""
    return name.replace("_", " ")


def functions(form: str) -> Any:
    """Return the file of a form, which has its functions."""
    return import_module(f"ropeaudit.reports.forms.{form}")


def render(form: str, report: Report) -> str:
    """Return the report as text in the named form, with a newline at its end. Raises: UnknownName."""
    if form not in FORMS:
        raise UnknownName("report format", form, FORMS)
    return cast(str, functions(form).render(report))


def encoded(form: str, report: Report) -> bytes:
    """Return the report as bytes of a file; bytes in names that are no text are written out.

    Raises: UnknownName.
    """
    if form not in REGISTRY:
        raise UnknownName("report format", form, REGISTRY)
    content: str | bytes = functions(form).render(report)
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")


def beside(path: str) -> str:
    """Return where the metadata of a report stand that does not hold them itself."""
    return f"{path}.meta.json"


def check_installed(form: str) -> None:
    """Raise MissingPackage if a form needs a package that is not there."""
    if form in REGISTRY and (package := REGISTRY[form].package):
        needed(package, f"a .{form} file", form)


def needed(package: str, what: str, extra: str) -> None:
    """Raise MissingPackage if a package is not installed; `extra` is what to type for it."""
    if find_spec(package) is None:
        raise MissingPackage(f"{what} needs {package}; type: pip install 'ropeaudit[{extra}]'")


def form_of(path: str) -> str:
    """Return the form that a file's suffix asks for. Raises: UnknownName."""
    for name, listed in REGISTRY.items():
        if path.lower().endswith(listed.suffixes):
            return name
    known = [suffix for listed in REGISTRY.values() for suffix in listed.suffixes]
    raise UnknownName("kind of file", path, known)
