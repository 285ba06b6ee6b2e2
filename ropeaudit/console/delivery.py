"""The road of a report: claim files, analyse with progress, print, write, judge.

A file that cannot be written does not stop the others; a closed pipe silences stdout alone. Stdout holds the
report alone, stderr notes, errors and interruptions. A Ctrl-C in the middle of a hand-over between threads
might hang, so the first one waits for a safe point. SIGTERM and SIGHUP are heard like one.
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

    with opened(options.outputs) as files:
        results, interrupted = gathered(analysis, options.quiet, errors)
        partial = interrupted or any(not error.after_all for error in errors)
        if results or not partial:
            about = metadata(options) | ({} if stages is None else {"stages": stages})
            made = report(results, about)
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
        say(f"{why}: {done(results)} done{written}{as_before}{left(results)}")
    for error in errors:
        say_error(error)
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
    code = print_report(report, options, alone)
    errors = fill([*((file, functools.partial(file.contents, report)) for file in files), *also])
    if alone and not options.quiet:
        for file in (file for file in files if file.written):
            size = "" if file.stream else f", {os.path.getsize(file.path) / 1e6:.2g} MB"
            say(f"wrote {file.path}: {len(report.rows)} rows{size}")
    elif not (alone or options.quiet or REGISTRY[options.form].notes):  # which shows them itself
        for note in report.notes[:_MOST_NOTES]:
            say(f"note: {note}")
        if len(report.notes) > _MOST_NOTES:
            say(f"note: {len(report.notes) - _MOST_NOTES} more notes; -f json has all")
    if options.verbose:
        from ropeaudit.door import process  # in-function: it loads sockets

        for line in process.printed():
            say(f"printed by code: {line}")
    failures = list(broken())
    for line in failures:
        say(line)
    for error in errors:
        say_error(error)
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


def write_ticket(file: OutputFile | None, make: Callable[[], Ticket | None]) -> int:
    """Write the ticket and say so on stderr; return the exit code, 2 where it cannot be written.

    make: returns none where nothing was judged.
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
    it = ticket.reproduction
    snippet = f"its snippet printed {it.printed} here" if it.agrees else f"it has no snippet: {it.missing}"
    say(f"ticket written to {file.path!r}{replaced}: {snippet}")
    return 0


def metadata(options: ReportOptions) -> dict[str, Any]:
    """Return the metadata of this run if a report holds them: they are slow."""
    if not options.outputs and REGISTRY[options.form].metadata != "within":
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
    form, functions = REGISTRY[screen.form], reports.functions(screen.form)
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


_LOG_SECONDS = 60.0  # between two lines of a log
_REDRAW_SECONDS = 0.1
_TENTH = 0.1  # share of the work: no guess is made before, for it starts up and fills caches


class Progress:
    """Call it with the share done, from 0 to 1."""

    def __init__(self, quiet: bool) -> None:
        """Begin; nothing is shown yet."""
        self.shown, self.silent, self.terminal = False, quiet, sys.stderr.isatty()
        doing.begin("")
        self.begun = self.last = time.monotonic()

    def __call__(self, share: float) -> None:
        """Show the share that is done and a guess of what is left, not too often."""
        now = time.monotonic()
        wait = _REDRAW_SECONDS if self.terminal else _LOG_SECONDS
        if self.silent or now - self.begun < 1.0 or now - self.last < wait or share <= 0:
            return
        self.last = now
        words = [f"{min(int(100 * share), 99):3}%"]  # 100 % is where nothing is left to wait for
        words += [doing.now()] if doing.now() else []
        if share >= _TENTH and not doing.now():  # of steps that are named nobody knows how long each takes
            words.append(f"{duration((now - self.begun) * (1 - share) / share)} to go")
        text = ", ".join(words)
        if self.terminal:
            import shutil  # in-function: it loads compressors

            width = shutil.get_terminal_size().columns - 1  # a longer line could not be taken away again
            sys.stderr.write(f"\r\033[K{f'ropeaudit: {text}'[:width]}")
            self.shown = True
        else:
            sys.stderr.write(f"ropeaudit: {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return a time in two units at most.

    >>> duration(9.4), duration(75), duration(7380)
    ('9 s', '1 min 15 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def gathered(
    run: Callable[[Callable[[float], None]], Iterable[T]],
    quiet: bool,
    errors: list[RopeAuditError] | None = None,
) -> tuple[list[T], bool]:
    """Return all that `run` yields, and whether the user broke it off.

    run takes a function that gets the share that is done, from 0 to 1. errors: takes the one that ends it,
    which is raised where it is None.
    """
    progress, results = Progress(quiet), []
    try:
        with held_back() as check:

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
def held_back() -> Iterator[Callable[[], None]]:
    """Hold the first Ctrl-C, SIGTERM or SIGHUP back until what this gives is called, which raises it.

    Waiting for code raises it too. A second one is not held back. Outside the main thread nothing is changed.
    """
    pending, of_code = False, doing.interrupted

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        check()
        if threading.get_ident() in doing.waiting:  # for code that may never return
            raise KeyboardInterrupt
        pending = True

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    heard = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread
        before = {one: signal.signal(one, handle) for one in heard if signal.getsignal(one) != signal.SIG_IGN}
    doing.interrupted = check
    try:
        yield check
    finally:
        doing.interrupted = of_code
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
