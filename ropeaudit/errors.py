"""Every error that ropeaudit raises on purpose.

RopeAuditError
├── UsageError        an option or argument is wrong (exit code 2)
│   ├── UnknownName   a dtype, recipe, column, ... that does not exist
│   └── BadShape      an array or a size that cannot be audited
├── BadInput          a file that cannot be read or does not hold what it should (exit code 2)
├── BadOutput         a file or stream that cannot be written (exit code 2)
├── MissingPackage    something optional that is not installed (exit code 2)
├── OutOfMemory       a device whose memory is full (exit code 2)
└── NotEmulated       a recipe that NumPy arithmetic cannot reproduce (exit code 2)

A message says what was seen, what was allowed and what to type. It is written with options, --head-dim, whose
dashes tell them from words; so the command line shows it. To Python users an error names arguments, head_dim.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator

# options that go by another name in Python; others have underscores for dashes
_ARGUMENTS = {
    "distance": "distances",
    "dtype": "dtypes",
    "impl": "implementations",
    "offset": "offsets",
    "recipe": "recipes",
    "set": "changes",
}
# options without an argument of that name in Python
_COMMAND_LINE = ("fail-if", "force-reinstall", "jobs", "resume", "scheduler", "shard", "write-wrapper")
# dependencies whose installation may be broken -> a name that only the real package has
_MARKERS = {"torch": "Tensor", "pandas": "DataFrame"}
_OPTION = re.compile(rf"(?<![\w-])--(?!(?:{'|'.join(_COMMAND_LINE)})\b)([a-z]+(?:-[a-z]+)*)")


class RopeAuditError(Exception):
    """The root: catching it catches everything that ropeaudit raises on purpose.

    fault: what was seen and allowed. In the message the place, such as a file, comes before it, and the
    remedy, which says what to type, behind it.
    after_all: whether everything else that was requested had been done when it was raised.
    """

    after_all = False

    def __init__(self, fault: str = "", remedy: str = "", where: str = "") -> None:
        super().__init__(": ".join(filter(None, (where, "; ".join(filter(None, (fault, remedy)))))))
        self.fault = fault

    @property
    def typed(self) -> str:
        """The message as the command line shows it, with options in the place of arguments."""
        return super().__str__()

    @property
    def lines(self) -> list[str]:
        """The lines of the message: the fault, then facts and remedies."""
        return re.split(r"\n(?=   = |  --> )", self.typed)

    @property
    def in_line(self) -> str:
        """The message on one line, as part of a sentence."""
        return "; ".join(line.removeprefix("   = ").removeprefix("  --> ") for line in self.lines)

    def __str__(self) -> str:
        return _OPTION.sub(lambda option: _ARGUMENTS.get(option[1], option[1].replace("-", "_")), self.typed)


class UsageError(RopeAuditError, ValueError):
    """An option or argument is wrong."""


def replacement_of(kind: str, name: str) -> str:
    """Return what replaces a withdrawn name of a kind; empty for any other name."""
    from ropeaudit import data  # in-function: it is needed for errors alone

    for replacement, old_names in data.table("help.toml")["withdrawn"].items():
        if any(f" {kind} {name}".endswith(f" {old}") for old in old_names):
            return str(replacement)
    return ""


class UnknownName(UsageError):
    """A name outside a closed list; the message has the nearest names, or what replaces it."""

    def __init__(self, kind: str, seen: str, allowed: Iterable[str], hint: str = "") -> None:
        from difflib import get_close_matches  # in-function: it is needed for errors alone

        names = list(allowed)
        typed = seen.lower().rpartition("/")[2]  # of owner/name the name
        begin = [name for name in names if len(typed) > 2 and name.lower().startswith(typed)]
        close = [name for name in begin if name.lower() == typed] or begin[:3]
        close = close or get_close_matches(typed, names, n=2, cutoff=0.6)
        tail = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        if instead := replacement_of(kind, seen):
            tail, hint = f"it was withdrawn: {instead}", ""
        super().__init__(f"unknown {kind} {seen!r}; {tail}{' ' + hint if hint else ''}")


class BadShape(UsageError):
    """An array or a size that cannot be audited."""


class BadInput(RopeAuditError, ValueError):
    """A file that cannot be read, or that does not hold what it should."""


class BadOutput(RopeAuditError, OSError):
    """A file or stream that cannot be written."""


class MissingPackage(RopeAuditError, ImportError):
    """A package that some audits need is not installed; the message says what to type."""


class OutOfMemory(RopeAuditError, MemoryError):
    """A device whose memory is full."""


class NotEmulated(RopeAuditError):
    """A recipe that NumPy arithmetic cannot reproduce faithfully."""


def parser_reason(error: Exception) -> str:
    """Return the message of a JSON or TOML parser; of a huge integer without Python's advice."""
    if "set_int_max_str_digits" in str(error):
        return f"it holds an integer of more than {sys.get_int_max_str_digits():,} digits"
    return str(error)


class ForeignError(Exception):
    """Foreign code did not return: a finding about that code, not a fault of the audit."""


class Raised(ForeignError):
    """It raised an exception. type: name of its class. file, line: the last place in foreign code."""

    def __init__(self, type: str, text: str, file: str = "", line: int = 0) -> None:
        super().__init__(text)
        self.type, self.text, self.file, self.line = type, text, file, line


class Ended(ForeignError):
    """It ended its process, closed the connection to it, or wrote something else into that."""


class Late(ForeignError):
    """It did not return in time, and its process was ended."""


def one_line(error: BaseException, longest: int = 200) -> str:
    """Return the type and message of an exception on one line, without a full stop.

    longest: characters of the message.
    """
    text = error.in_line if isinstance(error, RopeAuditError) else str(error)
    text = " ".join(text[: 8 * longest].split())[:longest].rstrip(" .")
    if isinstance(error, ForeignError):
        return text  # which says its type, or what happened instead
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def did(error: BaseException) -> str:
    """Return a clause, to follow "it", about code that did not return."""
    raised = isinstance(error, Raised) or not isinstance(error, ForeignError)
    return f"raises {one_line(error)}" if raised else one_line(error)


@contextlib.contextmanager
def required_packages(by: str = "this") -> Iterator[None]:
    """Within the block, turn errors of a package that cannot be used into MissingPackage.

    by: what needs it, for the message.
    """
    try:
        yield
    except RopeAuditError:
        raise
    except Exception as error:
        if (missing := unusable_package(error, by)) is not None:
            raise missing from error
        raise


@contextlib.contextmanager
def reported(kind: type[RopeAuditError], what: str, remedy: str = "") -> Iterator[None]:
    """Within the block, turn errors of foreign code into one of `kind`."""
    try:
        yield
    except RopeAuditError:
        raise
    except Exception as error:  # whatever code of others raises
        raise kind(f"{what} {one_line(error)}", remedy) from None


def unusable_package(error: BaseException, by: str = "this") -> MissingPackage | None:
    """Return the error to raise if an exception is due to a broken torch or pandas; else None.

    It is if it names the package or was raised within it, and importing the package fails again.
    """
    for package in _MARKERS:
        if _involves(error, package) and (why := _import_problem(package, error)):
            return MissingPackage(f"{by} needs {package}, {why}")
    return None


def check_usable(package: str, by: str) -> None:
    """Raise MissingPackage if torch or pandas cannot be imported. by: what needs it."""
    if why := _import_problem(package):
        raise MissingPackage(f"{by} needs {package}, {why}")


def _import_problem(package: str, first: BaseException | None = None) -> str:
    """Return why torch or pandas cannot be imported, and what to type; empty if it can.

    first: an earlier exception; a second import of a broken package may fail for another reason.
    """
    try:
        module = importlib.import_module(package)
    except Exception as error:  # of many kinds, by what is broken
        seen = error if first is None or isinstance(first, AttributeError) else first
        if isinstance(seen, ModuleNotFoundError) and seen.name == package:
            return f"which is not installed; type: pip install {package}"
        return f"which cannot be imported ({one_line(seen)}); type: pip install --force-reinstall {package}"
    if hasattr(module, _MARKERS[package]):
        return ""
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), module.__name__)
    return f"but {place!r} is imported in its place; rename that, or run from another folder"


def _involves(error: BaseException, package: str) -> bool:
    """Return whether an exception names or passed a package."""
    import traceback  # in-function: it is needed for errors alone

    named = getattr(error, "name", None) if isinstance(error, ImportError) else ""
    if isinstance(error, AttributeError):
        named = getattr(error.obj, "__name__", "")
    passed = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(name).partition(".")[0] == package for name in (named, *passed))
