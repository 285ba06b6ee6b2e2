"""Where a report goes: stdout, and files of `console.output_files`, which are opened before the work."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

from ropeaudit import reports
from ropeaudit.console.options import ReportOptions, ScreenOptions
from ropeaudit.console.output_files import OutputFile
from ropeaudit.console.output_files import opened as opened
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime import streams

_MOST_NOTES = 8


def metadata(options: ReportOptions) -> dict[str, Any]:
    """Return the metadata of this run, none if no report asked for holds them: they take a while."""
    if not options.outputs and reports.form_named(options.form).metadata != "within":
        return {}
    from ropeaudit.runtime.run_metadata import gather

    return gather()


def print_report(report: Report, screen: ScreenOptions) -> None:
    """Print a report to stdout; a table on a terminal is coloured and fitted to it."""
    out, form = streams.report(), reports.form_named(screen.form)
    coloured = _coloured(screen.color, out)
    if form.show and (out.isatty() or coloured):
        form.show(report, out, coloured)
    else:
        if form.errors and isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors=form.errors)  # data may be ugly, but not lost
        out.write(reports.render(screen.form, report))
    out.flush()


def deliver(report: Report, files: Sequence[OutputFile], options: ReportOptions) -> None:
    """Write the files, then stdout, then the notes: a closed pipe must not lose the files."""
    write(report, files)
    print_report(report, options)
    say_notes(report, options)


def write(report: Report, files: Sequence[OutputFile]) -> None:
    """Write the files. Raises: BadOutput."""
    for file in files:
        file.write(report)


def incomplete(report: Report, done: str) -> Report:
    """Return a report that says that it is a part of what was asked for, to people and to programs.

    done: how many things it has, as `say_interrupted` takes it.
    """
    headline = f"Interrupted after {done}: {report.headline}" if report.headline else ""
    return replace(report, headline=headline, metadata={**report.metadata, "interrupted": f"after {done}"})


def replaceable(files: Sequence[OutputFile], interrupted: bool) -> list[OutputFile]:
    """Return the files to write: a report that was there is not replaced by one that is not complete."""
    return [file for file in files if not (interrupted and file.was_there())]


def say_interrupted(done: str, files: Sequence[OutputFile], hint: str = "") -> None:
    """Say that the user broke it off, how much was done, and which reports were left as they were.

    done: a number of things, such as "3 rows". files: all that the run would have written.
    """
    written = " and written" if any(file.written for file in files) or not files else ""
    left = [repr(file.path) for file in files if not file.written and file.was_there()]
    message = f"; {', '.join(left)} {'is' if len(left) == 1 else 'are'} left as before" if left else ""
    say(f"interrupted: {done} done{written}{message}{hint}")


def say_notes(report: Report, options: ReportOptions) -> None:
    """Print the first notes of a report to stderr, unless it shows them itself."""
    if reports.form_named(options.form).notes:
        return
    if options.quiet:
        for text in report.refusals[:_MOST_NOTES]:
            say(text)
        return
    for note in report.notes[:_MOST_NOTES]:
        say(f"note: {note}")
    if len(report.notes) > _MOST_NOTES:
        say(f"note: {len(report.notes) - _MOST_NOTES} more notes; -f json has all")


def say(text: str) -> None:
    """Print a line to stderr; where nobody can read it, the report and the exit code still count."""
    with contextlib.suppress(OSError):
        print(f"ropeaudit: {printable(text)}", file=sys.stderr)


def _coloured(color: bool | None, out: TextIO) -> bool:
    """Return whether to write colours, bold and dim: by --color, NO_COLOR, FORCE_COLOR, else on a terminal.

    Sources: no-color.org, force-color.org: set and not empty counts, whatever the value.
    """
    if color is not None:
        return color
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (out.isatty() and os.environ.get("TERM") != "dumb")
