"""Stdout holds the report alone, stderr notes, errors and interruptions."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import replace
from typing import Any, TextIO

from ropeaudit import reports
from ropeaudit.console.options import ReportOptions, ScreenOptions
from ropeaudit.errors import RopeAuditError
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import printable, printable_json
from ropeaudit.runtime import streams


def metadata(options: ReportOptions) -> dict[str, Any]:
    """Return the metadata of this run if a report holds them: they are slow."""
    if not options.outputs and reports.REGISTRY[options.form].metadata != "within":
        return {}
    from ropeaudit.runtime.run_metadata import gather

    return gather()


def print_report(report: Report, screen: ScreenOptions, alone: bool = False) -> int:
    """Print a report to stdout, on a terminal coloured and fitted to it, or its finding alone.

    A reader that has seen enough, as `head` has, is no error: the rest goes nowhere. Return the exit code, 2
    where stdout cannot be written.
    """
    out = sys.stdout
    try:
        if alone:
            out.write(f"{printable(report.headline)}\n")
        else:
            _show(report, screen, out)
        out.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        streams.silence()
    except OSError as error:
        streams.silence()
        say(f"error: cannot write to stdout: {error.strerror or error}")
        return 2
    return 0


def _show(report: Report, screen: ScreenOptions, out: TextIO) -> None:
    form, functions = reports.REGISTRY[screen.form], reports.functions(screen.form)
    coloured = _coloured(screen.color, out)
    report = replace(report, verbose=screen.verbose)
    if screen.form == "table" and isinstance(screen, ReportOptions) and screen.quiet and not screen.outputs:
        first = [replace(one, causes=(), facts=()) for one in report.answers]
        report = replace(report, answers=first, screen=(), notes=(), legend="", further={}, header=True)
    if hasattr(functions, "to_screen") and (out.isatty() or coloured):
        functions.to_screen(report, out, coloured)
        return
    if form.reads and isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # data may be ugly, but not lost
    text = reports.render(screen.form, report)
    shown = printable_json if form.is_json else printable
    out.write("\n".join(map(shown, text.split("\n"))) if out.isatty() else text)


def say(text: str, before: str = "ropeaudit: ") -> None:
    """Print a line to stderr, wrapped on a terminal; its failure is ignored."""
    line = before + printable(text)
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            import shutil  # in-function: it loads compressors
            import textwrap

            width = shutil.get_terminal_size().columns
            line = textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
        print(line, file=sys.stderr)


def say_error(error: RopeAuditError) -> None:
    """Print an error to stderr, as the end of a run does."""
    first, *more = error.lines
    say(f"error: {first}")
    for line in more:
        say(line, before="")


def _coloured(color: bool | None, out: TextIO) -> bool:
    """Return whether to style: by --color, NO_COLOR, FORCE_COLOR, else on a terminal.

    Sources: no-color.org, force-color.org: set and not empty counts, whatever the value.
    """
    if color is not None:
        return color
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (out.isatty() and os.environ.get("TERM") != "dumb")
