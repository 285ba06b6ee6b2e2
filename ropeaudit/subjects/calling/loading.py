"""Finding the user's own code: package.module:name, or path/to/file.py:name."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError, one_line, required_packages
from ropeaudit.runtime import digests, own_modules, process_state
from ropeaudit.runtime.own_modules import OwnModules
from ropeaudit.subjects.calling import anew
from ropeaudit.subjects.calling.anew import Source
from ropeaudit.subjects.calling.code import NO_CHANGES, Changes
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.timeout import patiently

_EXAMPLE = "try mypackage.rope:apply_rope or path/to/file.py:apply_rope"


def load(
    spec: str,
    order: str | None = None,
    changes: Changes = NO_CHANGES,
    alone: bool = False,
    device: str | None = None,
) -> OwnCode:
    """Return the implementation that a spec names; its module is imported. Raises: UsageError, BadInput.

    changes: of the stages of tables that it is given; alone: whether there is nothing else to change.
    device: where it is called; None for the CPU, or where a module lies.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{spec!r} does not say which function; {_EXAMPLE}")
    module, home = _import(where)
    modules = home["modules"]
    version = modules.version if modules is not None else _version(module)
    printable = spec if spec.isprintable() else repr(spec)[1:-1]
    try:
        with process_state.contained():
            thing = _named(module, where, name)
            own = OwnCode(printable, thing, order, version, changes, home, alone, device)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever an attribute raises that is code
        raise BadInput(f"{spec} cannot be looked at: {one_line(error)}") from None
    if _by_path(where):
        own.source = Source(modules, spec.rpartition(":")[2])
    return own


def _named(module: Any, where: str, name: str) -> Any:
    """Return what has a dotted name in a module. Raises: UsageError where it is not there, or not called."""
    thing = module
    for part in name.split("."):
        if not hasattr(thing, part):
            names = [
                known for known in dir(thing) if not known.startswith("_") and callable(getattr(thing, known))
            ]
            raise UnknownName(f"name in {where}:", part, names or ["nothing that can be called"])
        thing = getattr(thing, part)
    if not callable(thing):
        what = f"of type {type(thing).__name__} and cannot be called"
        raise UsageError(f"{where}:{name}: it is {what}; {_EXAMPLE}")
    return thing


def _by_path(where: str) -> bool:
    return where.endswith(".py") or os.sep in where


def _import(where: str) -> tuple[Any, process_state.State]:
    """Return a module imported by its name or its path, and the state in which it leaves the process."""
    by_path = _by_path(where)
    if by_path and not Path(where).is_file():
        raise BadInput(f"{where}: there is no such file; {_EXAMPLE}")
    try:
        return imported(where)
    except RopeAuditError:
        raise
    except ModuleNotFoundError as error:
        if error.name and not by_path and (where == error.name or where.startswith(f"{error.name}.")):
            raise BadInput(
                f"{where}: there is no module {error.name!r} here; run from the folder that holds it, "
                f"or {_EXAMPLE}"
            ) from None
        raise BadInput(f"{where} cannot be imported: {one_line(error)}") from None
    except Exception as error:  # whatever a module raises is reported
        raise BadInput(f"{where} cannot be imported: {one_line(error)}") from None


def imported(where: str, endless: bool = False) -> tuple[Any, process_state.State]:
    """Return what is imported by its name, from this folder too, or by its path, and the state it leaves.

    endless: wait for ever. Raises: UsageError, MissingPackage (of torch or pandas), and whatever
    importing it raises.
    """

    def executed() -> tuple[Any, process_state.State]:
        modules = _modules(where)
        if modules is not None and modules.mention(b"torch"):  # loaded first, it can be seeded
            with contextlib.suppress(ImportError):
                import torch  # noqa: F401
        process_state.now()  # what functions are before it replaces some
        process_state.seed()
        module = importlib.import_module(where) if modules is None else modules.load()
        process_state.seed_if_chance()
        return module, process_state.now()

    with required_packages(where):
        return patiently(executed, f"import of {where}", endless)  # type: ignore[no-any-return]


def _modules(where: str) -> OwnModules | None:
    """Return the own modules of a file or of a module by its name; None for those of a package."""
    if _by_path(where):
        return own_modules.of_file(Path(where))
    try:
        return own_modules.of_module(where, os.getcwd())
    except OSError:  # a folder that is gone
        return own_modules.of_module(where, "")


def _version(module: Any) -> str:
    """Return the digest of the file that a module was made from; none where there is no such file."""
    try:
        return digests.of_bytes(Path(module.__file__).read_bytes())
    except (AttributeError, TypeError, OSError):
        return "none"


def source_of(thing: Any) -> Source | None:
    """Return the file that makes what was given as an object, and its name there.

    None where the object has no name at the top level of an imported file, or is of an installed package or
    of the script that runs.
    """
    where = getattr(thing, "__module__", None)
    module = sys.modules.get(where) if isinstance(where, str) and where != "__main__" else None
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or not Path(file).is_file():
        return None
    path = Path(file).absolute()
    if own_modules.INSTALLED & set(path.parts):
        return None
    held = [name for name, value in list(vars(module).items()) if value is thing]
    qualified = str(getattr(thing, "__qualname__", ""))
    for name in (qualified, *held):
        with contextlib.suppress(AttributeError):
            if name and anew.named(module, name) is thing:
                package = getattr(module, "__package__", None) or ""
                return Source(own_modules.of_file(path, package), name)
    return None
