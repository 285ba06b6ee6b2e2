"""Where a report goes: stdout and files. Files are opened before the work and replaced whole."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ropeaudit import reports
from ropeaudit.errors import BadOutput, UsageError
from ropeaudit.reports import Report


class OutputFile:
    """A file to be: its bytes go beside it, and under its name only once they are all there."""

    def __init__(self, path: str) -> None:
        """Claim the path. Raises: BadOutput if it cannot be written, UnknownName for its suffix."""
        self.path, self.form = Path(path), reports.form_of(path)
        if self.path.is_dir():
            raise BadOutput(f"-o {path!r} is a folder; give a file's name")
        self.file = self._open(self.path)

    def _open(self, target: Path) -> IO[str]:
        try:
            folder = target.parent
            return tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", newline="", dir=folder, prefix=f".{target.name}.", delete=False
            )
        except OSError as error:
            raise BadOutput(f"-o {str(target)!r} cannot be written: {error.strerror}") from None

    def write(self, report: Report) -> None:
        """Write the report; beside a CSV its circumstances go to NAME.meta.json. Raises: BadOutput."""
        self._replace(self.file, self.path, reports.render(self.form, report))
        if self.form == "csv":
            beside = self.path.with_name(self.path.name + ".meta.json")
            text = json.dumps(report.circumstances, indent=2, ensure_ascii=False) + "\n"
            self._replace(self._open(beside), beside, text)

    def _replace(self, file: IO[str], target: Path, text: str) -> None:
        try:
            with file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, target)
        except OSError as error:
            self._remove(file)
            raise BadOutput(f"-o {str(target)!r} cannot be written: {error.strerror}") from None

    def discard(self) -> None:
        """Leave nothing behind of a file that was not written."""
        self._remove(self.file)

    @staticmethod
    def _remove(file: IO[str]) -> None:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(file.name)


@contextlib.contextmanager
def opened(paths: Sequence[str]) -> Iterator[list[OutputFile]]:
    """Claim all output files; whatever is not written by the end is removed again."""
    if len(set(map(os.path.abspath, paths))) < len(paths):
        raise UsageError("-o names the same file twice")
    files: list[OutputFile] = []
    try:
        for path in paths:
            files.append(OutputFile(path))
        yield files
    finally:
        for file in files:
            file.discard()


def print_report(report: Report, form: str, color: bool | None) -> None:
    """Print a report to stdout; a table on a terminal is coloured and fitted to it."""
    if form == "table" and (sys.stdout.isatty() or color):
        from rich.console import Console

        from ropeaudit.reports import table

        width = None if sys.stdout.isatty() else 10_000
        table.show(report, Console(**_colours(color), width=width, highlight=False))
    else:
        sys.stdout.write(reports.render(form, report))
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line to stderr."""
    print(f"ropeaudit: {text}", file=sys.stderr)


def _colours(color: bool | None) -> dict[str, Any]:
    if color is None:  # rich itself heeds NO_COLOR and FORCE_COLOR
        return {}
    return {"force_terminal": True, "no_color": False} if color else {"no_color": True}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
