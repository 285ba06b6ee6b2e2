"""Where a report goes: stdout and files. Files are opened before the work and replaced whole."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ropeaudit import beside, reports, streams
from ropeaudit.errors import BadOutput, UsageError
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import printable

_MOST_NOTES = 8
_NARROWEST = 20  # columns of a terminal
_LOSSLESS = dict.fromkeys(("csv", "json", "jsonl"), "backslashreplace") | {"html": "xmlcharrefreplace"}
_CURVES = 48  # columns of a curve where no terminal says its width


class OutputFile:
    """A file to be: its bytes go beside it, and under its name only once they are all there."""

    def __init__(self, path: str, form: str) -> None:
        """Claim the path for a form. Raises: BadOutput if it cannot be written, MissingPackage."""
        self.form = form
        reports.check_installed(self.form)
        self.targets = _targets(path, self.form)
        self.files: list[IO[bytes]] = []
        try:
            for target in self.targets:
                self.files.append(_beside(target))
        except BaseException:
            self.discard()
            raise

    def write(self, report: Report) -> None:
        """Write the report; beside a CSV its circumstances go to NAME.meta.json. Raises: BadOutput."""
        contents = [reports.encoded(self.form, report)]
        if self.form == "csv":
            about = json.dumps(report.circumstances, indent=2, ensure_ascii=False) + "\n"
            contents.append(about.encode("utf-8", "backslashreplace"))
        self.fill(contents)

    def fill(self, contents: Sequence[bytes]) -> None:
        """Write the bytes of each target and put them under their names. Raises: BadOutput."""
        try:
            for file, content in zip(self.files, contents, strict=True):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o666 & ~_umask())
            for target, file in zip(self.targets, self.files, strict=True):
                beside.put(file, target)
        except OSError as error:
            name = str(self.targets[0])
            raise BadOutput(f"-o {name!r} cannot be written: {error.strerror}; give another place") from None

    def discard(self) -> None:
        """Leave nothing behind of a file that was not written."""
        for file in self.files:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                os.unlink(file.name)


def _targets(path: str, form: str) -> list[Path]:
    """The files that a path stands for: itself, and beside a CSV its circumstances."""
    return [Path(path), Path(path + ".meta.json")][: 2 if form == "csv" else 1]


def _beside(target: Path) -> IO[bytes]:
    """Open a file in the folder of `target`. Raises: BadOutput."""
    try:
        if target.is_dir():
            raise BadOutput(f"-o {str(target)!r} is a folder; give a file's name")
        return beside.opened(target)
    except BadOutput:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"-o {str(target)!r} cannot be written: {reason}; give another place") from None


@contextlib.contextmanager
def opened(
    paths: Sequence[str], form_of: Callable[[str], str] = reports.form_of
) -> Iterator[list[OutputFile]]:
    """Claim all output files; whatever is not written by the end is removed again.

    form_of: from a path to what the file is to hold.
    """
    named = [os.path.abspath(target) for path in paths for target in _targets(path, form_of(path))]
    if len(set(named)) < len(named):
        raise UsageError("-o names the same file twice")
    files: list[OutputFile] = []
    try:
        for path in paths:
            files.append(OutputFile(path, form_of(path)))
        yield files
    finally:
        for file in files:
            file.discard()


def circumstances(options: dict[str, Any]) -> dict[str, Any]:
    """Return the circumstances of this run, none if no report asked for holds them: they take a while."""
    if not options["outputs"] and options["form"] in ("table", "csv", "jsonl"):
        return {}
    from ropeaudit.circumstances import gather

    return gather()


def print_report(report: Report, form: str, color: bool | None) -> None:
    """Print a report to stdout; a table on a terminal is coloured and fitted to it."""
    out = streams.report()
    if form == "table" and (out.isatty() or color):
        from rich.console import Console

        from ropeaudit.reports import table

        width = None if out.isatty() else 10_000
        console = Console(**_colours(color), file=out, width=width, highlight=False)
        console.width = max(console.width, _NARROWEST)  # COLUMNS=0 would show nothing
        table.show(report, console)
    else:
        if form in _LOSSLESS and isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors=_LOSSLESS[form])  # data may be ugly, but not lost
        out.write(reports.render(form, report))
    out.flush()


def deliver(report: Report, files: Sequence[OutputFile], options: dict[str, Any]) -> None:
    """Write the files, then stdout, then the notes: a closed pipe must not lose the files."""
    for file in files:
        file.write(report)
    print_report(report, options["form"], options["color"])
    say_notes(report, options)


def deliver_drawn(
    report: Report,
    draw: Callable[[int, bool], str],
    files: Sequence[OutputFile],
    options: dict[str, Any],
) -> None:
    """Deliver a report with curves before its legend, in tables alone. draw: from width, ASCII or not."""
    write_drawn(report, draw, files)
    out = streams.report()
    width = min(72, max(16, shutil.get_terminal_size().columns - 12)) if out.isatty() else _CURVES
    plain = not (getattr(out, "encoding", None) or "utf-8").lower().startswith("utf")
    shown = _with_curves(report, draw(width, plain)) if options["form"] == "table" else report
    print_report(shown, options["form"], options["color"])
    say_notes(report, options)


def write_drawn(report: Report, draw: Callable[[int, bool], str], files: Sequence[OutputFile]) -> None:
    """Write the files, tables with curves. Raises: BadOutput."""
    for file in files:
        file.write(_with_curves(report, draw(_CURVES, False)) if file.form == "table" else report)


def _with_curves(report: Report, curves: str) -> Report:
    return replace(report, legend="\n\n".join(filter(None, [curves, report.legend])))


def say_notes(report: Report, options: dict[str, Any]) -> None:
    """Print the first notes of a report to stderr, unless it shows them itself."""
    if options["quiet"] or options["form"] == "markdown":
        return
    for note in report.notes[:_MOST_NOTES]:
        say(f"note: {note}")
    if len(report.notes) > _MOST_NOTES:
        say(f"note: {len(report.notes) - _MOST_NOTES} more like these")


def say(text: str) -> None:
    """Print a line to stderr; where nobody can read it, the report and the exit code still count."""
    with contextlib.suppress(OSError):
        print(f"ropeaudit: {printable(text)}", file=sys.stderr)


def _colours(color: bool | None) -> dict[str, Any]:
    if color is None:  # rich itself heeds NO_COLOR and FORCE_COLOR
        return {}
    return {"force_terminal": True, "no_color": False} if color else {"no_color": True}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
