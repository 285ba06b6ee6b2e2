"""torch and pandas: installed with this package, and yet missing, broken or hidden on some machines.

What needs neither runs without them; what does ends with a sentence instead of a traceback.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ropeaudit.errors import MissingPackage, RopeAuditError, one_line

_TELLING = {"torch": "Tensor", "pandas": "DataFrame"}  # package -> a name that it has, and no other package


@contextlib.contextmanager
def required(by: str = "this") -> Iterator[None]:
    """Within the block, raise MissingPackage for any error that comes of a package that cannot be used.

    by: what needs it, as the message says.
    """
    try:
        yield
    except RopeAuditError:
        raise
    except Exception as error:
        if (missing := unusable(error, by)) is not None:
            raise missing from error
        raise


def unusable(error: BaseException, by: str = "this") -> MissingPackage | None:
    """Return what to say where an error comes of torch or pandas that cannot be used; None for any other.

    It comes of one of them if it names it, or was raised within it, and importing that fails again.
    """
    for package in _TELLING:
        if _concerns(error, package) and (again := failure(package)) is not None:
            # a second import of what is broken may fail for another reason than the first
            first = again if isinstance(again, Hidden) or isinstance(error, AttributeError) else error
            return MissingPackage(f"{by} needs {package}, {_remedy(package, first)}")
    return None


def check(package: str, by: str) -> None:
    """Raise MissingPackage if torch or pandas cannot be used. by: what needs it."""
    if (error := failure(package)) is not None:
        raise MissingPackage(f"{by} needs {package}, {_remedy(package, error)}")


class Hidden(ImportError):
    """A module of the user's that has the name of a package."""


def failure(package: str) -> Exception | None:
    """Return why torch or pandas cannot be imported; None where it can."""
    try:
        module = importlib.import_module(package)
    except Exception as error:  # of many kinds, by what is broken
        return error
    return None if hasattr(module, _TELLING[package]) else Hidden(_place(module), name=package)


def _remedy(package: str, error: BaseException) -> str:
    if isinstance(error, Hidden):
        return f"but {error} is imported in its place; rename that, or run from another folder"
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"which is not installed; type: pip install {package}"
    return f"which cannot be imported ({one_line(error)}); type: pip install --force-reinstall {package}"


def _place(module: Any) -> str:
    """Return where a module lies that is not the package of its name."""
    file = getattr(module, "__file__", None)
    return repr(file or next(iter(getattr(module, "__path__", ())), module.__name__))


def _concerns(error: BaseException, package: str) -> bool:
    named = getattr(error, "name", None) if isinstance(error, ImportError) else ""
    if isinstance(error, AttributeError):
        named = getattr(error.obj, "__name__", "")
    if str(named).partition(".")[0] == package:
        return True
    return any(name.partition(".")[0] == package for name in _modules(error.__traceback__))


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    """Yield the names of the modules that an error passed through."""
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
