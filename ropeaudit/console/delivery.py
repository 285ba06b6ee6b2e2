"""The road of a report: claim files, analyse with progress, print, write, judge.

A file that cannot be written does not stop the others; a closed pipe silences stdout alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ropeaudit.console import output, rows
from ropeaudit.door import process
from ropeaudit.errors import BadOutput, RopeAuditError
from ropeaudit.reports import REGISTRY
from ropeaudit.reports.numbers import counted

if TYPE_CHECKING:
    from ropeaudit.console.options import ReportOptions
    from ropeaudit.console.output_files import OutputFile
    from ropeaudit.reports import Report

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float], None]
Metadata: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = Mapping[str, Mapping[str, str]]  # "subject dtype" -> stage -> format
Filled: TypeAlias = Iterable[tuple["OutputFile", Callable[[], Sequence[bytes]]]]
DONE, BROKEN, BAD_USE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
_MOST_NOTES = 8
WORST_FIRST = (OUR_FAULT, INTERRUPTED, BROKEN, BAD_USE, DONE)


def worst(*codes: int) -> int:
    """Return the exit code of a run to which several things happened.

    >>> worst(0, 2, 1), worst(1, 130), worst(0, 2)
    (1, 130, 2)
    """
    return min(codes, key=WORST_FIRST.index)


def delivered(
    analysis: Callable[[OnProgress], Iterable[T]],
    report: Callable[[list[T], Metadata], Report],
    options: ReportOptions,
    *,
    stages: Stages | None = None,
    also: Sequence[tuple[OutputFile, Callable[[list[T]], Sequence[bytes]]]] = (),
    done: Callable[[list[T]], str] = lambda results: counted(len(results), "row"),
    left: Callable[[list[T]], str] = lambda results: "",
    broken: Callable[[list[T]], Iterable[str]] = lambda results: (),
) -> int:
    """Run an analysis and deliver its report; return the exit code.

    What was done before an error or a Ctrl-C is delivered too.

    analysis: takes a function that gets the share done, from 0 to 1.
    report: from the results and the metadata.
    also: files that are no reports, each with what makes its content.
    done, left: from the results, how many an interruption says are done, and a clause of what was not begun.
    broken: from the results, a line for each --fail-if that was broken.
    """
    from ropeaudit.console.output_files import opened

    errors, code = list[RopeAuditError](), DONE

    def up_to_an_error(on_progress: OnProgress) -> Iterator[T]:
        try:
            yield from analysis(on_progress)
        except RopeAuditError as error:
            errors.append(error)

    with opened(options.outputs) as files:
        results, interrupted = rows.gathered(up_to_an_error, options.quiet)
        partial = interrupted or any(not error.after_all for error in errors)
        if results or not partial:
            metadata = output.metadata(options) | ({} if stages is None else {"stages": stages})
            made = report(results, metadata)
            made = incomplete(made, done(results)) if partial else made
            others = {file: functools.partial(content, results) for file, content in also}
            kept = {file for file in (*files, *others) if partial and file.was_there()}  # an earlier report
            code = deliver(
                made,
                [file for file in files if file not in kept],
                options,
                also=[(file, content) for file, content in others.items() if file not in kept],
                broken=lambda: () if partial else broken(results),
            )
    if partial and (results or not errors):
        every = [*files, *(file for file, _ in also)]
        why = "interrupted" if interrupted else "stopped by an error"
        written = " and written" if any(file.written for file in every) else ""
        unwritten = [repr(file.path) for file in every if not file.written and file.was_there()]
        are = "is" if len(unwritten) == 1 else "are"
        as_before = f"; {', '.join(unwritten)} {are} left as before" if unwritten else ""
        output.say(f"{why}: {done(results)} done{written}{as_before}{left(results)}")
    for error in errors:
        output.say_error(error)
    return worst(code, INTERRUPTED if interrupted else DONE, BAD_USE if errors else DONE)


def deliver(
    report: Report,
    files: Sequence[OutputFile],
    options: ReportOptions,
    *,
    also: Filled = (),
    broken: Callable[[], Iterable[str]] = tuple,
    alone: bool = False,
) -> int:
    """Print a report, write its files, say its notes and which --fail-if broke; return the exit code.

    broken: makes a line for each that did, once everything is written.
    alone: whether the finding alone is printed, and which files were written is said in the place of notes.
    """
    code = output.print_report(report, options, alone)
    errors = fill([*((file, functools.partial(file.contents, report)) for file in files), *also])
    if alone and not options.quiet:
        for file in (file for file in files if file.written):
            size = "" if file.stream else f", {os.path.getsize(file.path) / 1e6:.2g} MB"
            output.say(f"wrote {file.path}: {len(report.rows)} rows{size}")
    elif not (alone or options.quiet or REGISTRY[options.form].notes):  # which shows them itself
        for note in report.notes[:_MOST_NOTES]:
            output.say(f"note: {note}")
        if len(report.notes) > _MOST_NOTES:
            output.say(f"note: {len(report.notes) - _MOST_NOTES} more notes; -f json has all")
    if options.verbose:
        for line in process.printed():
            output.say(f"printed by code: {line}")
    failures = list(broken())
    for line in failures:
        output.say(line)
    for error in errors:
        output.say_error(error)
    return worst(code, BROKEN if failures else DONE, BAD_USE if errors else DONE)


def fill(files: Filled) -> list[BadOutput]:
    """Write files whose bytes are made here; return what went wrong."""
    errors = []
    for file, contents in files:
        try:
            file.fill(contents())
        except BadOutput as error:
            errors.append(error)
    return errors


def incomplete(report: Report, done: str) -> Report:
    """Return a report that tells people and programs that it is partial.

    done: how many things it has, in words.
    """
    headline = f"Interrupted after {done}: {report.headline}" if report.headline else ""
    answers = report.answers
    if report.faults is None:  # of targets one by one it is said which was not checked to its end
        answers = [
            replace(
                one,
                decides=f"interrupted after {done}: {one.decides}",
                status=one.status if one.status == "FAIL" else "WARN",  # of a part nothing is said to be well
            )
            for one in answers
        ]
    metadata = {**report.metadata, "interrupted": f"after {done}"}
    return replace(report, headline=headline, answers=answers, metadata=metadata)
