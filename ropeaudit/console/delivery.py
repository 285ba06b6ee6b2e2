"""How a command delivers: run the analysis with progress, print the report, write files, exit code.

Stdout has the report alone; notes, errors and interruptions go to stderr. A file that cannot be written does
not stop the others. The first Ctrl-C waits for a safe point, as threads might hang otherwise; SIGTERM and
SIGHUP are treated like it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, TypeVar

from ropeaudit import reports
from ropeaudit.console.options import ReportOptions, ScreenOptions
from ropeaudit.errors import BadOutput, RopeAuditError
from ropeaudit.reports import REGISTRY, Report
from ropeaudit.reports.numbers import counted, printable, printable_json
from ropeaudit.runtime import doing, streams

if TYPE_CHECKING:
    from ropeaudit.console.output_files import OutputFile
    from ropeaudit.reports.tickets import Ticket

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float], None]
Metadata: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = Mapping[str, Mapping[str, str]]  # "subject dtype" -> stage -> format
Contents: TypeAlias = Iterable[tuple["OutputFile", Callable[[], Sequence[bytes]]]]
DONE, BROKEN, BAD_USE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
_MOST_NOTES = 8
WORST_FIRST = (OUR_FAULT, INTERRUPTED, BROKEN, BAD_USE, DONE)


def worst(*codes: int) -> int:
    """Return the exit code that takes precedence.

    >>> worst(0, 2, 1), worst(1, 130), worst(0, 2)
    (1, 130, 2)
    """
    return min(codes, key=WORST_FIRST.index)


def run_and_deliver(
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

    Results before an error or a Ctrl-C are delivered too.

    analysis: its argument takes the share that is done, from 0 to 1.
    report: makes the report of results and metadata.
    also: files that are no reports, each with a function that makes its content.
    done, left: how many results are done, and a clause about the others, for an interruption.
    broken: yields a line for each --fail-if that is broken.
    """
    from ropeaudit.console.output_files import opened

    errors, code = list[RopeAuditError](), DONE
    with opened(options.outputs) as files:
        results, interrupted = run_analysis(analysis, options.quiet, errors)
        partial = interrupted or any(not error.after_all for error in errors)
        if results or not partial:
            about = metadata(options) | ({} if stages is None else {"stages": stages})
            made = report(results, about)
            made = marked_incomplete(made, done(results)) if partial else made
            others = {file: functools.partial(content, results) for file, content in also}
            earlier = {file for file in (*files, *others) if partial and file.was_there()}
            code = deliver(
                made,
                [file for file in files if file not in earlier],
                options,
                also=[(file, content) for file, content in others.items() if file not in earlier],
                broken=lambda: () if partial else broken(results),
            )
    if partial and (results or not errors):
        every = [*files, *(file for file, _ in also)]
        why = "interrupted" if interrupted else "stopped by an error"
        written = " and written" if any(file.written for file in every) else ""
        unwritten = [repr(file.path) for file in every if not file.written and file.was_there()]
        are = "is" if len(unwritten) == 1 else "are"
        as_before = f"; {', '.join(unwritten)} {are} left as before" if unwritten else ""
        say(f"{why}: {done(results)} done{written}{as_before}{left(results)}")
    for error in errors:
        say_error(error)
    return worst(code, INTERRUPTED if interrupted else DONE, BAD_USE if errors else DONE)


def deliver(
    report: Report,
    files: Sequence[OutputFile],
    options: ReportOptions,
    *,
    also: Contents = (),
    broken: Callable[[], Iterable[str]] = tuple,
    alone: bool = False,
) -> int:
    """Print a report, write its files, print notes and broken --fail-if; return the exit code.

    broken: called once everything is written; returns a line for each --fail-if that is broken.
    alone: whether only the finding is printed, and the names of the written files instead of notes.
    """
    code = print_report(report, options, alone)
    errors = write_files([*((file, functools.partial(file.contents, report)) for file in files), *also])
    if alone and not options.quiet:
        for file in (file for file in files if file.written):
            size = "" if file.stream else f", {os.path.getsize(file.path) / 1e6:.2g} MB"
            say(f"wrote {file.path}: {len(report.rows)} rows{size}")
    elif not (alone or options.quiet or REGISTRY[options.form].notes):
        for note in report.notes[:_MOST_NOTES]:
            say(f"note: {note}")
        if len(report.notes) > _MOST_NOTES:
            say(f"note: {len(report.notes) - _MOST_NOTES} more notes; -f json has all")
    if options.verbose:
        from ropeaudit.door import process  # in-function: it loads sockets

        for line in process.take_printed():
            say(f"printed by code: {line}")
    failures = list(broken())
    for line in failures:
        say(line)
    for error in errors:
        say_error(error)
    return worst(code, BROKEN if failures else DONE, BAD_USE if errors else DONE)


def write_files(files: Contents) -> list[BadOutput]:
    """Write files, each with the bytes that its function makes; return the errors."""
    errors = []
    for file, contents in files:
        try:
            file.fill(contents())
        except BadOutput as error:
            errors.append(error)
    return errors


def marked_incomplete(report: Report, done: str) -> Report:
    """Return a report that says, to people and programs, that it is partial.

    done: how many results it has, in words.
    """
    headline = f"Interrupted after {done}: {report.headline}" if report.headline else ""
    answers = report.answers
    if report.faults is None:  # `check` says it of each target
        answers = [
            replace(
                each,
                decides=f"interrupted after {done}: {each.decides}",
                status=each.status if each.status == "FAIL" else "WARN",  # a part is no pass
            )
            for each in answers
        ]
    metadata = {**report.metadata, "interrupted": f"after {done}"}
    return replace(report, headline=headline, answers=answers, metadata=metadata)


def write_ticket(file: OutputFile | None, make: Callable[[], Ticket | None]) -> int:
    """Write the ticket and print that to stderr; return the exit code, 2 if it cannot be written.

    make: returns None where nothing was judged.
    """
    if file is None:
        return 0
    from ropeaudit.runtime import run_metadata
    from ropeaudit.subjects import third_party

    ticket = make()
    if ticket is None:
        say("no ticket was written: nothing was judged to its end")
        return 0
    audited = tuple(entry.package for entry in third_party.ENTRIES.values())
    text = ticket.text(run_metadata.environment() | run_metadata.hardware(audited))
    replaced = ", in place of the file that was there" if file.was_there() else ""
    try:
        file.fill([text.encode("utf-8", "backslashreplace")])
    except BadOutput as error:
        say_error(error)
        return 2
    snippet = f"it has no snippet: {ticket.reproduction.missing}"
    if ticket.reproduction.agrees:
        snippet = f"its snippet printed {ticket.reproduction.printed} here"
    say(f"ticket written to {file.path!r}{replaced}: {snippet}")
    return 0


def metadata(options: ReportOptions) -> dict[str, Any]:
    """Return the metadata of this run, which are slow; none if no report has them."""
    if not options.outputs and REGISTRY[options.form].metadata != "within":
        return {}
    from ropeaudit.runtime.run_metadata import gather

    return gather()


def print_report(report: Report, screen: ScreenOptions, alone: bool = False) -> int:
    """Print a report, or its finding alone, to stdout; return the exit code, 2 if that fails.

    On a terminal it is coloured and fitted to the width. A closed pipe is no error.
    """
    out = sys.stdout
    try:
        if alone:
            out.write(f"{printable(report.headline)}\n")
        else:
            _show(report, screen, out)
        out.flush()
    except BrokenPipeError:  # such as `head`
        streams.discard_stdout()
    except OSError as error:
        streams.discard_stdout()
        say(f"error: cannot write to stdout: {error.strerror or error}")
        return 2
    return 0


def _show(report: Report, screen: ScreenOptions, out: TextIO) -> None:
    form, functions = REGISTRY[screen.form], reports.functions(screen.form)
    coloured = _coloured(screen.color, out)
    report = replace(report, verbose=screen.verbose)
    if screen.form == "table" and isinstance(screen, ReportOptions) and screen.quiet and not screen.outputs:
        first = [replace(each, causes=(), facts=()) for each in report.answers]
        report = replace(report, answers=first, screen=(), notes=(), legend="", further={}, header=True)
    if hasattr(functions, "to_screen") and (out.isatty() or coloured):
        functions.to_screen(report, out, coloured)
        return
    if form.reads and isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # so that no data are lost
    text = reports.render(screen.form, report)
    shown = printable_json if form.is_json else printable
    out.write("\n".join(map(shown, text.split("\n"))) if out.isatty() else text)


def say(text: str, before: str = "ropeaudit: ") -> None:
    """Print a line to stderr, wrapped on a terminal; errors are ignored."""
    line = before + printable(text)
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            import shutil  # in-function: it loads compressors
            import textwrap

            width = shutil.get_terminal_size().columns
            line = textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
        print(line, file=sys.stderr)


def say_error(error: RopeAuditError) -> None:
    """Print the lines of an error to stderr."""
    first, *more = error.lines
    say(f"error: {first}")
    for line in more:
        say(line, before="")


def _coloured(color: bool | None, out: TextIO) -> bool:
    """Return whether to print colours: by --color, NO_COLOR, FORCE_COLOR, else on a terminal.

    Sources: no-color.org, force-color.org: any value that is not empty counts.
    """
    if color is not None:
        return color
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (out.isatty() and os.environ.get("TERM") != "dumb")


_LOG_SECONDS = 60.0  # between two lines of a log
_REDRAW_SECONDS = 0.1
_TENTH = 0.1  # share of the work before which start-up would spoil a guess


class Progress:
    """A progress line on stderr; call it with the share that is done, from 0 to 1."""

    def __init__(self, quiet: bool) -> None:
        """Start the clock; nothing is shown yet."""
        self.shown, self.silent, self.terminal = False, quiet, sys.stderr.isatty()
        doing.begin("")
        self.started = self.last = time.monotonic()

    def __call__(self, share: float) -> None:
        """Show the share and a guess of the time that is left, unless it was just shown."""
        now = time.monotonic()
        wait = _REDRAW_SECONDS if self.terminal else _LOG_SECONDS
        if self.silent or now - self.started < 1.0 or now - self.last < wait or share <= 0:
            return
        self.last = now
        words = [f"{min(int(100 * share), 99):3}%"]
        words += [doing.now()] if doing.now() else []
        if share >= _TENTH and not doing.now():  # named steps take unknown times
            words.append(f"{duration((now - self.started) * (1 - share) / share)} to go")
        text = ", ".join(words)
        if self.terminal:
            import shutil  # in-function: it loads compressors

            width = shutil.get_terminal_size().columns - 1  # a longer line could not be erased
            sys.stderr.write(f"\r\033[K{f'ropeaudit: {text}'[:width]}")
            self.shown = True
        else:
            sys.stderr.write(f"ropeaudit: {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return a time in words, in one unit or two.

    >>> duration(9.4), duration(75), duration(7380)
    ('9 s', '1 min 15 s', '2 h 3 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def run_analysis(
    run: Callable[[Callable[[float], None]], Iterable[T]],
    quiet: bool,
    errors: list[RopeAuditError] | None = None,
) -> tuple[list[T], bool]:
    """Return all results of an analysis, and whether the user interrupted it.

    run: its argument reports the share that is done, from 0 to 1. errors: gets the error that ends it; None
    raises that.
    """
    progress, results = Progress(quiet), []
    try:
        with deferred_signals() as check:

            def on_progress(share: float) -> None:
                check()
                progress(share)

            for row in run(on_progress):
                results.append(row)
    except KeyboardInterrupt:
        return results, True
    except RopeAuditError as error:
        if errors is None:
            raise
        errors.append(error)
    finally:
        progress.clear()
    return results, False


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defer the first Ctrl-C, SIGTERM or SIGHUP until the yielded function is called, which raises it.

    It is raised at once while foreign code is awaited, and so is a second one. Outside the main thread
    nothing changes.
    """
    pending, on_interrupt = False, doing.interrupted

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        check()
        if threading.get_ident() in doing.waiting:  # foreign code may never return
            raise KeyboardInterrupt
        pending = True

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    deferred = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread
        before = {number: signal.signal(number, handle) for number in deferred}
    doing.interrupted = check
    try:
        yield check
    finally:
        doing.interrupted = on_interrupt
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
