"""Loading the user's own code: package.module:name, or path/to/file.py:name.

Importing changes this process: what is on sys.path and in sys.modules stays so.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ropeaudit.errors import (
    BadInput,
    RopeAuditError,
    UnknownName,
    UsageError,
    one_line,
    reported,
    required_packages,
)
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance, digests
from ropeaudit.subjects.calling import conventions, own_files, signatures
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.own_files import OwnFiles
from ropeaudit.subjects.calling.signatures import value_of_role
from ropeaudit.subjects.calling.stages import NO_CHANGES, Changes

_DEAR = 0.5  # seconds of CPU of an import above which a file is executed once
_ROWS = 8  # of a table that shows that a factory makes one
_EXAMPLE = "try mypackage.rope:apply_rope or path/to/file.py:apply_rope"


def module_of(spec: str) -> str:
    """Return the file or module of a spec. Raises: UsageError."""
    where, _, name = spec.rpartition(":")
    if "::" in spec.strip(":"):
        raise UsageError(f"{spec!r}: use one colon: {spec.replace('::', ':', 1).replace('::', '.')}")
    if not where or not name.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{spec!r} does not say which function; {_names_in(spec.rstrip(':'))}")
    return where


def _names_in(file: str) -> str:
    """Return what to type for a function of a file, which is not run."""
    with contextlib.suppress(Exception):  # unreadable, or without names
        body = ast.parse(Path(file).read_bytes() if file.endswith(".py") else b"").body
        names = [one.name for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        known = [name for name in names if name[0] != "_"]
        likely = max(known, key=lambda name: "rope" in name or "rotary" in name)
        return f"known: {', '.join(known)}; type {file}:{likely}"
    return _EXAMPLE


def load(
    spec: str,
    order: str | None = None,
    changes: Changes = NO_CHANGES,
    device: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> tuple[OwnCode, Callable[[], OwnCode | None] | None]:
    """Import own code; return it, and a function that imports it again, None where that is slow.

    That function returns None where the file can be executed only once. Raises: UsageError, BadInput.
    """
    where, name = module_of(spec), spec.rpartition(":")[2]
    began = time.process_time()
    module, files = _import(where)
    version = "none"
    with contextlib.suppress(AttributeError, TypeError, OSError):  # a module without a file
        version = files.version if files is not None else digests.of_bytes(Path(module.__file__).read_bytes())
    printable = spec if spec.isprintable() else repr(spec)[1:-1]

    def own_code(module: Any, files: OwnFiles | None) -> OwnCode:
        with conventions.contain_exits():
            thing = _by_length(_with_arguments(_attribute(module, where, name), spec, arguments or {}))
            return OwnCode(printable, thing, order, version, changes, device, files)

    with reported(BadInput, f"{spec} cannot be looked at:"):  # whatever an attribute raises that is code
        own = own_code(module, files)
    with contextlib.suppress(Exception), conventions.contain_exits():  # of what lies beside it
        own.builders = _table_builders(module, name)
    if files is None or time.process_time() - began > _DEAR:
        return own, None

    def import_again() -> OwnCode | None:
        fresh = files.again()
        with contextlib.suppress(Exception), conventions.contain_exits():  # the second time
            return own_code(fresh.load(), fresh)
        return None

    return own, import_again


def _table_builders(module: Any, beside: str) -> list[str]:
    """Return the names of a file's functions and classes that seem to make tables."""
    own = {
        name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__
    }
    things = {name: one for name, one in own.items() if inspect.isclass(one) or inspect.isfunction(one)}
    for cls in (one for one in list(things.values()) if inspect.isclass(one) and not hasattr(one, "forward")):
        methods = (name for name, one in vars(cls).items() if inspect.isfunction(one) and name[0] != "_")
        with contextlib.suppress(ValueError):  # of a class without a signature
            things |= {f"{cls.__name__}.{name}": _class_of_method(cls, name) for name in methods}
    makers = []
    for name, one in things.items():
        with contextlib.suppress(Exception):  # of signatures that cannot be read
            if name != beside and signatures.makes_tables(one):
                makers.append(name)
    return makers


def _attribute(module: Any, where: str, name: str) -> Any:
    """Return a module's callable by its dotted name. Raises: UsageError if it is none."""
    thing = holder = module
    for part in name.split("."):
        if not hasattr(thing, part):
            if Path(where).is_dir() and getattr(module, "__file__", None) is None:
                raise BadInput(f"{where} is a folder; name a file in it, such as {where}/FILE.py:NAME")
            names = [
                known for known in dir(thing) if not known.startswith("_") and callable(getattr(thing, known))
            ]
            raise UnknownName(f"name in {where}:", part, names or ["nothing that can be called"])
        thing, holder = getattr(thing, part), thing
    if inspect.isclass(holder) and inspect.isfunction(vars(holder).get(part)):
        return _class_of_method(holder, part)
    if inspect.isclass(thing) and any(one.__module__ == "torch.autograd.function" for one in thing.__mro__):
        return _autograd_function(thing)
    if not callable(thing):
        what = f"of type {type(thing).__name__} and cannot be called"
        raise UsageError(f"{where}:{name}: it is {what}; {_EXAMPLE}")
    return thing


def _with_arguments(thing: Any, spec: str, arguments: Mapping[str, object]) -> Any:
    """Fix some arguments of a function, or of a class and its instances. Raises: UnknownName."""
    if not arguments:
        return thing
    signature = inspect.signature(thing)
    method = signatures.called_of(thing) if inspect.isclass(thing) else None
    taken = list(inspect.signature(method).parameters)[1:] if method else []  # without self
    of_calls = [name for name in taken if name not in signature.parameters]
    for name in arguments:
        if name not in (known := [*signature.parameters, *of_calls]):
            raise UnknownName(f"argument of {spec}:", name, known or ["none"])
    if not inspect.isclass(thing):
        return functools.partial(thing, **arguments)
    left = [one for name, one in signature.parameters.items() if name not in arguments]
    calling = {name: value for name, value in arguments.items() if name in of_calls}
    building = {name: value for name, value in arguments.items() if name not in of_calls}

    def new(_: Any, *plain: Any, **named: Any) -> Any:
        made: Any = thing(*plain, **named, **building)
        if calling and hasattr(made, "forward"):
            made.forward = functools.partial(made.forward, **calling)
            return made
        return functools.partial(made, **calling) if calling else made

    members = {"__new__": new, "__signature__": signature.replace(parameters=left), "__wrapped__": thing}
    return type(thing.__name__, (), members)


def _by_length(thing: Any) -> Any:
    """Turn a factory of tables into a function of the number of positions.

    Factories of callables, and everything else, are returned unchanged.
    """
    if inspect.isclass(thing) or not signatures.is_factory(thing):
        return thing
    roles = signatures.Parameters.of(thing).roles
    length = next((name for name, role in roles.items() if role == "length"), "")
    given = {
        name: value_of_role(role, RopeSetting(), thing, name, engine=signatures.engine(thing))
        for name, role in (signatures.building(thing) or {}).items()
    }
    made: Any = thing
    with contextlib.suppress(Exception):  # later calls show it
        made = thing(**given | {length: _ROWS}) if length else thing
    if callable(made) and not hasattr(made, "shape"):  # flax's arrays can be called
        return thing

    def tables(**named: Any) -> Any:
        return thing(**named)

    functools.update_wrapper(tables, thing, ("__module__", "__name__", "__qualname__"), ())
    taken = [one.replace(kind=one.KEYWORD_ONLY) for one in inspect.signature(thing).parameters.values()]
    own = [one.replace(default=one.empty) if one.name == length else one for one in taken]
    tables.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    tables.ropeaudit_roles = {length: "until"}  # type: ignore[attr-defined]
    return tables


def _autograd_function(cls: Any) -> Any:
    """Return a torch.autograd.Function's `apply`, with the signature of `forward` without context."""
    signature = inspect.signature(cls.forward)
    first, *others = signature.parameters.values()
    written = [vars(one) for one in cls.__mro__ if one.__module__ != "torch.autograd.function"]
    apart = any("setup_context" in members for members in written)  # then forward has no context
    own = signature.replace(parameters=[first, *others] if apart else others)

    def apply(*plain: Any, **named: Any) -> Any:
        return cls.apply(*own.bind(*plain, **named).args)

    functools.update_wrapper(apply, cls, ("__module__", "__name__", "__qualname__"), ())
    apply.__signature__ = own  # type: ignore[attr-defined]
    apply.__wrapped__ = cls.forward  # type: ignore[attr-defined]
    return apply


def _class_of_method(cls: type[Any], method: str) -> Any:
    """Return a class that builds an instance of `cls` and returns one of its methods."""

    def new(_: Any, *plain: Any, **named: Any) -> Any:
        return getattr(cls(*plain, **named), method)

    function, signature = getattr(cls, method), inspect.signature(cls)
    return type(method, (), {"__new__": new, "__signature__": signature, "__wrapped__": function})


def _import(where: str) -> tuple[Any, OwnFiles | None]:
    """Import a module by its name or path; return it and its files. Raises: BadInput."""
    by_path = where.endswith(".py") or os.sep in where
    if by_path and not Path(where).is_file():
        scripts = {path.stem: path for path in Path(where).parent.glob("*.py")}
        close = get_close_matches(Path(where).stem, scripts, n=1)
        meant = f"did you mean {scripts[close[0]]}?" if close else _EXAMPLE
        raise BadInput(f"{where}: there is no such file; {meant}")
    try:
        files = None if by_path else own_files.of_module(where)
        if by_path:
            resolved = Path(where).resolve()  # as sys.path[0] of `python file.py`
            depth = own_files.depth(resolved)
            package = "".join(f"{one}." for one in resolved.parts[-depth - 1 : -1])
            name = f"{package}ropeaudit_own_{Path(where).stem.replace('.', '_')}"
            files = OwnFiles(str(resolved.parents[depth]), name, str(Path(where).absolute()))
        chance.begin(0)
        with required_packages(where), conventions.contain_exits():
            return (importlib.import_module(where) if files is None else files.load()), files
    except RopeAuditError:
        raise
    except ModuleNotFoundError as error:
        if error.name and not by_path and (where == error.name or where.startswith(f"{error.name}.")):
            raise BadInput(
                f"{where}: there is no module {error.name!r} here; run from the folder that holds it, "
                f"or {_EXAMPLE}"
            ) from None
        root = (error.name or "").partition(".")[0] or "that"
        needed = f"{root} here, which wants a GPU" if root == "triton" else f"{root} here"
        beside = "from the folder that holds it, name the module: PACKAGE.MODULE:NAME"
        raise BadInput(
            f"{where} cannot be imported: {one_line(error)}; install {needed}; or {beside}; "
            "or check what it wrote with `ropeaudit vectors`"
        ) from None
    except Exception as error:  # whatever a module raises is reported
        ends = getattr(error, "type", "") == "SystemExit"
        hint = "; put what it runs behind `if __name__ == '__main__':`" if ends else ""
        raise BadInput(f"{where} cannot be imported: {one_line(error)}{hint}") from None
