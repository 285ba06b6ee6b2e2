"""Finding the user's own code: package.module:name, or path/to/file.py:name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError
from ropeaudit.runtime import digests, process_state
from ropeaudit.subjects.calling import anew
from ropeaudit.subjects.calling.anew import Source
from ropeaudit.subjects.calling.conventions import NO_CHANGES, Changes
from ropeaudit.subjects.calling.implementation import one_line
from ropeaudit.subjects.calling.own_code import Own
from ropeaudit.subjects.calling.timeout import patiently

_EXAMPLE = "try --impl mypackage.rope:apply_rope or --impl path/to/file.py:apply_rope"


def load(
    spec: str,
    order: str | None = None,
    changes: Changes = NO_CHANGES,
    alone: bool = False,
    device: str | None = None,
) -> Own:
    """Return the implementation that a spec names; its module is imported. Raises: UsageError, BadInput.

    changes: of the stages of tables that it is given; alone: whether there is nothing else to change.
    device: where it is called; None for the CPU, or where a module lies.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"--impl {spec!r} does not say which function; {_EXAMPLE}")
    module, home = _import(where)
    thing = module
    for part in name.split("."):
        if not hasattr(thing, part):
            names = [
                known for known in dir(thing) if not known.startswith("_") and callable(getattr(thing, known))
            ]
            raise UnknownName(f"name in {where}:", part, names or ["nothing that can be called"])
        thing = getattr(thing, part)
    if not callable(thing):
        raise UsageError(
            f"--impl {spec}: it is of type {type(thing).__name__} and cannot be called; {_EXAMPLE}"
        )
    name = spec if spec.isprintable() else repr(spec)[1:-1]
    own = Own(name, thing, order, _version(module), changes, home, alone, device)
    if _by_path(where):
        own.source = Source(Path(where).absolute(), spec.rpartition(":")[2], execute)
    return own


def _by_path(where: str) -> bool:
    return where.endswith(".py") or os.sep in where


def _import(where: str) -> tuple[Any, process_state.State]:
    """Return a module imported by its name or its path, and the state in which it leaves the process.

    Raises: BadInput.
    """
    by_path = _by_path(where)
    path = Path(where)
    if by_path and not path.is_file():
        raise BadInput(f"--impl {where}: there is no such file; {_EXAMPLE}")
    with contextlib.suppress(OSError):  # a folder that is gone
        if not by_path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())

    def imported() -> tuple[Any, process_state.State]:
        if by_path and b"torch" in path.read_bytes():  # loaded first, it can be seeded
            with contextlib.suppress(ImportError):
                import torch  # noqa: F401
        process_state.seed()
        module = execute(path) if by_path else importlib.import_module(where)
        process_state.seed_if_chance()
        return module, process_state.now()

    try:
        return patiently(imported, f"import of {where}")  # type: ignore[no-any-return]
    except RopeAuditError:
        raise
    except ModuleNotFoundError as error:
        if error.name and not by_path and (where == error.name or where.startswith(f"{error.name}.")):
            raise BadInput(
                f"--impl {where}: there is no module {error.name!r} here; run from the folder that holds it, "
                f"or {_EXAMPLE}"
            ) from None
        raise BadInput(f"--impl {where} cannot be imported: {one_line(error)}") from None
    except Exception as error:  # whatever a module raises is reported
        raise BadInput(f"--impl {where} cannot be imported: {one_line(error)}") from None


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
    if anew.INSTALLED & set(path.parts):
        return None
    held = [name for name, value in list(vars(module).items()) if value is thing]
    qualified = str(getattr(thing, "__qualname__", ""))
    for name in (qualified, *held):
        with contextlib.suppress(AttributeError):
            if name and anew.named(module, name) is thing:
                package = getattr(module, "__package__", None) or ""
                return Source(path, name, partial(execute, package=package))
    return None


def execute(path: Path, package: str = "") -> Any:
    """Return the module that a file makes, executed so that it sees its own folder. Raises: ImportError.

    package: the one that it belongs to, where it may import relative to that.
    """
    name = f"{package}.ropeaudit_own_{path.stem}" if package else f"ropeaudit_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    folder = str(path.resolve().parent)  # the module may go to another one
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module
