"""Stdout for the report alone: what other people's code writes, even past Python, goes to stderr."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from ropeaudit.runtime import paths

PLAIN = "ropeaudit-plain"  # the error handler of text that an encoding cannot hold
_LEFT_BEHIND = 10.0  # seconds that threads and exit handlers of other people's code may take at the end
_ALIKE = {
    "-": "─━═╌–—−",
    "|": "│┃║▏▎▍▌",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯",
    "#": "█▉▊▋▇▆▅▄■",
    "_": "▁▂▃",
    "*": "·•●▲◆×",
    "o": "○",
    "x": "✗",
    "<": "≤←",
    ">": "≥→↗",
    "~": "≈",
    "'": "‘’",
    '"': "“”",
}
_ASCII = {ord(odd): plain for plain, odds in _ALIKE.items() for odd in odds} | str.maketrans(
    {"²": "^2", "³": "^3", "…": "...", "±": "+-", "Σ": "sum", "√": "sqrt", "∞": "inf", "Δ": "D", "µ": "u"}
    | {"δ": "d", "θ": "theta", "π": "pi", "✓": "ok"}
)


class _Reserved(NamedTuple):
    """Streams that `reserve` set aside. report: where the report goes. errors: stderr as it was."""

    report: TextIO
    errors: int


class _Repeats:
    """Lines that other people's code prints, up to a number: each once, and how often it came again."""

    MOST = 100  # different lines that are shown

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.hidden = 0

    def shown(self, text: str) -> str:
        """Return what is to be written of whole lines: those that were not seen before."""
        new = []
        for line in text.splitlines(keepends=True):
            if line.strip() and (line in self.seen or len(self.seen) >= self.MOST):
                self.hidden += line not in self.seen
                self.seen.update({line: self.seen[line] + 1} if line in self.seen else {})
            else:
                new.append(line)
                if line.strip():
                    self.seen[line] = 0
        return "".join(new)

    def told(self) -> list[str]:
        """Return a line for each that came again, and one for those beyond the number."""
        counts = self.seen.items()
        again = [f"printed {count:,} times more: {line.strip()[:100]}" for line, count in counts if count]
        return again + ([f"{self.hidden:,} more lines that code printed are left out"] if self.hidden else [])


_reserved: _Reserved | None = None
_repeats: _Repeats | None = None
_foreign = False  # whether other people's code has run
_left = False  # whether a call of it may still run


def reserve() -> None:
    """Reserve stdout for the report until the process ends; descriptor 1 leads to stderr from here on.

    A terminal shows both, and stays as it is; so does a stdout that is closed, or no file.
    """
    global _reserved
    out = sys.stdout
    try:
        if out is None or sys.stderr is None or out.fileno() != 1 or out.isatty():
            return
        number, errors = paths.out_of_reach(os.dup(1)), paths.out_of_reach(os.dup(2))
    except (OSError, ValueError):
        return
    report = open(number, "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115 until the end
    _reserved = _Reserved(report, errors)
    os.dup2(2, 1)
    sys.stdout = report
    if hasattr(os, "register_at_fork"):  # a child that lives on must not hold the reader of the report up
        os.register_at_fork(after_in_child=lambda: os.close(number))


def guard() -> None:
    """Remember stderr in a worker process, which has no report: other people's code may close descriptors."""
    global _reserved
    if _reserved is None and sys.stdout is not None:
        with contextlib.suppress(OSError):
            _reserved = _Reserved(sys.stdout, paths.out_of_reach(os.dup(2)))


def report() -> TextIO:
    """Return the stream of the report."""
    return sys.stdout if _reserved is None else _reserved.report


def descriptor(number: int) -> int:
    """Return the number under which an open file stands now: that of the report for 1."""
    return number if _reserved is None or number != 1 else _reserved.report.fileno()


def silence() -> None:
    """Send the rest of stdout nowhere, or the interpreter complains while it shuts down."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), report().fileno())


@contextlib.contextmanager
def collapsed() -> Iterator[None]:
    """Show each line that other people's code prints within the block once, and say at its end how often."""
    global _repeats
    before, _repeats = _repeats, _Repeats()
    try:
        yield
    finally:
        told, _repeats = _repeats.told(), before
        with contextlib.suppress(OSError, ValueError, AttributeError):
            for line in told:
                sys.stderr.write(f"ropeaudit: {line}\n")


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Send what is written to stdout within the block to stderr; closing them does no harm."""
    global _foreign
    _foreign = True
    out, errors = sys.stdout, sys.stderr
    sys.stdout = _SharedStream(errors)
    sys.stderr = _SharedStream(errors)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _SharedStream):
                begun, stream._begun = stream._begun, ""
                if begun:
                    with contextlib.suppress(OSError, ValueError):
                        stream._to.write(begun if _repeats is None else _repeats.shown(begun))
        # threads that other people's code leaves behind may print whenever they like
        sys.stdout = out if _reserved is None else _SharedStream(errors)
        sys.stderr = _reopened(errors)


def leave_behind() -> None:
    """Remember that a call of other people's code was left behind, and may still run."""
    global _left
    _left = True


def ended(code: int) -> int:
    """Return the exit code; what other people's code left running does not keep the process for ever.

    Where a call was left behind, end the process here: Python ends a thread that comes back to it while it
    shuts down, and C++ that is ended so, as torch's is, aborts.
    """

    def leave() -> None:
        time.sleep(_LEFT_BEHIND)
        os._exit(code)

    if _left:
        for stream in (report(), sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    if _foreign:
        threading.Thread(target=leave, daemon=True).start()
    return code


def _reopened(errors: TextIO) -> TextIO:
    """Put descriptors back that were closed; return stderr, opened again if need be."""
    if _reserved is None:
        return errors
    for number in (2, 1):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(_reserved.errors, number)
    if not errors.closed:
        return errors
    return open(os.dup(_reserved.errors), "w", encoding="utf-8", errors="backslashreplace")


class _SharedStream(io.TextIOBase):
    """A stream for other people's code: it writes to another, which it cannot close."""

    def __init__(self, to: TextIO) -> None:
        self._to: TextIO = to._to if isinstance(to, _SharedStream) else to
        self._begun = ""  # of a line that is not ended

    def write(self, text: str) -> int:
        size = len(text)
        if _repeats is not None:  # whole lines alone can be told apart; what goes back in a line is none
            whole, end, rest = (self._begun + text).rpartition("\r" if "\r" in text else "\n")
            self._begun, text = rest, _repeats.shown(whole + end) if end == "\n" else whole + end
        if text:
            with contextlib.suppress(OSError, ValueError):  # nobody can read it
                self._to.write(text)
        return size

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._to.flush()

    def close(self) -> None:
        """Stay open."""

    def fileno(self) -> int:
        return self._to.fileno()

    def isatty(self) -> bool:
        return self._to.isatty()

    def writable(self) -> bool:
        return True

    def reconfigure(self, **_: Any) -> None:
        """Stay as it is."""

    @property
    def buffer(self) -> Any:
        """The bytes beneath."""
        return self._to.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the other stream."""
        return self._to.encoding


def _plain_text(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII that looks alike for what an encoding cannot hold; what has none is written out."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end].translate(_ASCII)
    return piece.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(PLAIN, _plain_text)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers offline, and its progress bars and advice off the terminal."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging as library

        logging: Any = library

        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(50)  # critical
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
