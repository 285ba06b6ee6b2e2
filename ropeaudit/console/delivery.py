"""The one road of the commands: claim files, analyse with progress, deliver the report, say how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ropeaudit.console import output, rows
from ropeaudit.errors import RopeAuditError
from ropeaudit.reports.numbers import counted

if TYPE_CHECKING:
    from ropeaudit.console.options import ReportOptions
    from ropeaudit.console.output_files import OutputFile
    from ropeaudit.reports import Report

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float], None]
Metadata: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = Mapping[str, Mapping[str, str]]  # "subject dtype" -> stage -> format
DONE, BROKEN, INTERRUPTED = 0, 1, 130


def delivered(
    analysis: Callable[[OnProgress], Iterable[T]],
    report: Callable[[list[T], Metadata], Report],
    options: ReportOptions,
    *,
    stages: Stages | None = None,
    also: Sequence[tuple[OutputFile, Callable[[list[T]], bytes]]] = (),
    done: Callable[[list[T]], str] = lambda results: counted(len(results), "row"),
    left: Callable[[list[T]], str] = lambda results: "",
    broken: Callable[[list[T]], Iterable[str]] = lambda results: (),
    proportional: bool = True,
) -> int:
    """Run an analysis and deliver its report; return the exit code.

    What was done before an error is delivered too, as before a Ctrl-C, and then the error is raised.

    analysis: takes a function that gets the share done, from 0 to 1. report: from the results and the
    metadata. also: files that are no reports, each with what makes its content.
    done, left: from the results, how many an interruption says are done, and a clause of what was not begun.
    broken: from the results, a line for each --fail-if that was broken. proportional: whether the share done
    is proportional to work, so that what is left can be guessed.
    """
    with output.opened(options.outputs) as files:
        errors = list[RopeAuditError]()
        run = _up_to_an_error(analysis, errors)
        results, interrupted = rows.gathered(run, options.quiet, proportional=proportional)
        interrupted = interrupted or bool(errors)
        if results or not interrupted:
            metadata = output.metadata(options) | ({} if stages is None else {"stages": stages})
            made = report(results, metadata)
            made = output.incomplete(made, done(results)) if interrupted else made
            output.write(made, output.replaceable(files, interrupted))
            for file, content in also:
                if output.replaceable([file], interrupted):
                    file.fill([content(results)])
            output.deliver(made, (), options)
    if interrupted and (results or not errors):
        output.say_interrupted(done(results), [*files, *(file for file, _ in also)], left(results))
    if errors:
        raise errors[0]
    return INTERRUPTED if interrupted else judged(broken(results))


def _up_to_an_error(
    analysis: Callable[[OnProgress], Iterable[T]], errors: list[RopeAuditError]
) -> Callable[[OnProgress], Iterator[T]]:
    """Return an analysis that ends where another one raises, and puts what that raised into `errors`."""

    def run(on_progress: OnProgress) -> Iterator[T]:
        try:
            yield from analysis(on_progress)
        except RopeAuditError as error:
            errors.append(error)

    return run


def delivered_at_once(report: Callable[[Metadata], Report], options: ReportOptions, code: int = DONE) -> int:
    """Deliver a report that takes no time worth a progress bar, from the metadata; return `code`."""
    with output.opened(options.outputs) as files:
        output.deliver(report(output.metadata(options)), files, options)
    return code


def judged(broken: Iterable[str]) -> int:
    """Say which --fail-if were broken; return the exit code."""
    lines = list(broken)
    for line in lines:
        output.say(line)
    return BROKEN if lines else DONE
