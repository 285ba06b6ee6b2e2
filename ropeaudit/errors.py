"""Every error that ropeaudit raises on purpose.

RopeAuditError
├── UsageError        an option or argument is wrong (exit code 2)
│   ├── UnknownName   a dtype, recipe, column, ... that does not exist
│   └── BadShape      an array or a size that cannot be audited
├── BadInput          a file that cannot be read or does not hold what it should (exit code 2)
├── BadOutput         a file or stream that cannot be written (exit code 2)
├── MissingPackage    something optional that is not installed (exit code 2)
├── OutOfMemory       a device on which not even a few rows of scores fit (exit code 2)
├── EnginesDiffer    torch on a device computes otherwise than NumPy (exit code 2)
└── NotEmulated       a recipe that NumPy arithmetic cannot reproduce (exit code 2)

A message says what was seen, what was allowed and what to type. It is written with options, --head-dim, whose
dashes tell them from words; so the command line shows it. To Python users an error names arguments, head_dim.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

# options that go by another name in Python; others have underscores for dashes
_ARGUMENTS = {
    "distance": "distances",
    "dtype": "dtypes",
    "impl": "implementations",
    "offset": "offsets",
    "recipe": "recipes",
    "set": "changes",
}
_COMMAND_LINE = (
    "fail-if",
    "force-reinstall",
    "jobs",
    "resume",
    "scheduler",
    "shard",
    "write-wrapper",
)  # what no function of this package takes
_OPTION = re.compile(rf"(?<![\w-])--(?!(?:{'|'.join(_COMMAND_LINE)})\b)([a-z]+(?:-[a-z]+)*)")


class RopeAuditError(Exception):
    """The root: catching it catches everything that ropeaudit raises on purpose."""

    @property
    def typed(self) -> str:
        """The message as the command line shows it, with options in the place of arguments."""
        return super().__str__()

    def __str__(self) -> str:
        return _OPTION.sub(lambda option: _ARGUMENTS.get(option[1], option[1].replace("-", "_")), self.typed)


class UsageError(RopeAuditError, ValueError):
    """An option or argument is wrong."""


class UnknownName(UsageError):
    """A name that is not in a closed list; the message names the nearest ones."""

    def __init__(self, kind: str, seen: str, allowed: Iterable[str], hint: str = "") -> None:
        from difflib import get_close_matches  # in-function: it is needed for errors alone

        names = list(allowed)
        typed = seen.lower().rpartition("/")[2]  # of owner/name the name
        begin = [name for name in names if len(typed) > 2 and name.lower().startswith(typed)]
        close = [name for name in begin if name.lower() == typed] or begin[:3]
        close = close or get_close_matches(typed, names, n=2, cutoff=0.6)
        tail = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {seen!r}; {tail}{' ' + hint if hint else ''}")


class BadShape(UsageError):
    """An array or a size that cannot be audited."""


class BadInput(RopeAuditError, ValueError):
    """A file that cannot be read, or that does not hold what it should."""


class BadOutput(RopeAuditError, OSError):
    """A file or stream that cannot be written."""


class MissingPackage(RopeAuditError, ImportError):
    """A package that only some audits need and that is not installed; the message says what to type."""


class OutOfMemory(RopeAuditError, MemoryError):
    """A device on which not even a few rows of scores fit."""


class EnginesDiffer(RopeAuditError):
    """Two engines that must agree do not: nothing that was measured can be relied on."""


class NotEmulated(RopeAuditError):
    """A recipe that NumPy arithmetic cannot reproduce faithfully."""


def parser_reason(error: Exception) -> str:
    """Return what a parser of JSON or TOML says of a file; of a huge integer without Python's advice."""
    if "set_int_max_str_digits" in str(error):
        return f"it holds an integer of more than {sys.get_int_max_str_digits():,} digits"
    return str(error)


def one_line(error: BaseException, longest: int = 200) -> str:
    """Return the type and the message of an exception on one line, without its full stop.

    longest: characters of the message.
    """
    text = " ".join((error.typed if isinstance(error, RopeAuditError) else str(error)).split())
    text = text[:longest].rstrip(" .")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
