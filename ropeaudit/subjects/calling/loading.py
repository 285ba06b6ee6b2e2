"""Finding the user's own code: package.module:name, or path/to/file.py:name.

It is found as `python FILE` or `-m NAME` does, and has a digest of its files.
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
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
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
from ropeaudit.runtime.paths import INSTALLED
from ropeaudit.subjects.calling import conventions, signatures
from ropeaudit.subjects.calling.code import NO_CHANGES, Changes
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.signatures import building_argument

_DEAR = 0.5  # seconds of CPU of an import above which a file is executed once
_ROWS = 8  # of a table that shows that a factory makes one
_EXAMPLE = "try mypackage.rope:apply_rope or path/to/file.py:apply_rope"
# what audits compute with, or Python loads before it executes a file: never an own file
_SHARED = {"__main__", "ropeaudit", "numpy", "torch", "jax", "jaxlib", "ml_dtypes", "importlib", "encodings"}
_SHARED |= set(sys.builtin_module_names)
_LIBRARY = os.path.dirname(os.__file__)


def checked(spec: str) -> str:
    """Return the file or module of a spec. Raises: UsageError."""
    where, _, name = spec.rpartition(":")
    if not where or not name.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{spec!r} does not say which function; {_EXAMPLE}")
    return where


def here(
    spec: str,
    order: str | None = None,
    changes: Changes = NO_CHANGES,
    device: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> tuple[OwnCode, Callable[[], OwnCode | None] | None]:
    """Return the same, imported here, and what imports it once more; None where that is dear.

    That returns None where it can be executed but once. Raises: UsageError, BadInput.
    """
    where, name = checked(spec), spec.rpartition(":")[2]
    began = time.process_time()
    module, files = _import(where)
    version = "none"
    with contextlib.suppress(AttributeError, TypeError, OSError):  # of what has no file
        version = files.version if files is not None else digests.of_bytes(Path(module.__file__).read_bytes())
    printable = spec if spec.isprintable() else repr(spec)[1:-1]

    def made(module: Any, files: OwnFiles | None) -> OwnCode:
        with conventions.contained():
            thing = _counted(_given(_named(module, where, name), spec, arguments or {}))
            return OwnCode(printable, thing, order, version, changes, device, files)

    with reported(BadInput, f"{spec} cannot be looked at:"):  # whatever an attribute raises that is code
        own = made(module, files)
    with contextlib.suppress(Exception), conventions.contained():  # of what lies beside it
        own.builders = _builders(module, name)
    if files is None or time.process_time() - began > _DEAR:
        return own, None

    def again() -> OwnCode | None:
        fresh = files.again()
        with contextlib.suppress(Exception), conventions.contained():  # the second time
            return made(fresh.load(), fresh)
        return None

    return own, again


def _builders(module: Any, beside: str) -> list[str]:
    """Return the names of a file's functions and classes that look as if they made tables."""
    own = {
        name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__
    }
    things = {name: one for name, one in own.items() if inspect.isclass(one) or inspect.isfunction(one)}
    for cls in (one for one in list(things.values()) if inspect.isclass(one) and not hasattr(one, "forward")):
        methods = (name for name, one in vars(cls).items() if inspect.isfunction(one) and name[0] != "_")
        with contextlib.suppress(ValueError):  # of a class without a signature
            things |= {f"{cls.__name__}.{name}": _bound(cls, name) for name in methods}
    makers = []
    for name, one in things.items():
        with contextlib.suppress(Exception):  # of signatures that cannot be read
            if name != beside and signatures.makes_tables(one):
                makers.append(name)
    return makers


def _named(module: Any, where: str, name: str) -> Any:
    """Return a module's object by dotted name. Raises: UsageError if not callable."""
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
        return _bound(holder, part)
    if inspect.isclass(thing) and any(one.__module__ == "torch.autograd.function" for one in thing.__mro__):
        return _applied(thing)
    if not callable(thing):
        what = f"of type {type(thing).__name__} and cannot be called"
        raise UsageError(f"{where}:{name}: it is {what}; {_EXAMPLE}")
    return thing


def _given(thing: Any, spec: str, arguments: Mapping[str, object]) -> Any:
    """Return what is called or built with some arguments. Raises: UnknownName."""
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


def _counted(thing: Any) -> Any:
    """Return a factory whose tables are of a largest length as a function of how many positions they hold.

    What makes what can be called, and all else, stays as it is.
    """
    if inspect.isclass(thing) or not signatures.is_factory(thing):
        return thing
    roles = signatures.Parameters.of(thing).roles
    length = next((name for name, role in roles.items() if role == "length"), "")
    given = {
        name: building_argument(role, RopeSetting(), thing, name, engine=signatures.engine(thing))
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


def _applied(cls: Any) -> Any:
    """Return the function of a torch.autograd.Function: it takes what `forward` does but the context."""
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


def _bound(cls: type[Any], method: str) -> Any:
    """Return a class that is built as another, and gives a method of the new instance."""

    def new(_: Any, *plain: Any, **named: Any) -> Any:
        return getattr(cls(*plain, **named), method)

    function, signature = getattr(cls, method), inspect.signature(cls)
    return type(method, (), {"__new__": new, "__signature__": signature, "__wrapped__": function})


def _import(where: str) -> tuple[Any, OwnFiles | None]:
    """Return a module imported by its name or its path, and its files."""
    by_path = where.endswith(".py") or os.sep in where
    if by_path and not Path(where).is_file():
        raise BadInput(f"{where}: there is no such file; {_EXAMPLE}")
    try:
        files = None if by_path else of_module(where)
        if by_path:
            resolved = Path(where).resolve()  # as sys.path[0] of `python file.py`
            depth = _depth(resolved)
            package = "".join(f"{one}." for one in resolved.parts[-depth - 1 : -1])
            name = f"{package}ropeaudit_own_{Path(where).stem.replace('.', '_')}"
            files = OwnFiles(str(resolved.parents[depth]), name, str(Path(where).absolute()))
        chance.begin(0)
        with required_packages(where), conventions.contained():
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


@dataclass(slots=True)
class OwnFiles:
    """The file or module under audit, and what it imports from its folder.

    folder: from which it imports. name: of the module. file: where one was named; its folder is then first on
    sys.path, else last. sources: file -> its bytes when they were first read.
    """

    folder: str
    name: str
    file: str
    sources: dict[str, bytes] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)  # modules loaded at the last look
    _version: str = ""

    def load(self) -> ModuleType:
        """Import the module. Raises: ImportError, and whatever it raises."""
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        sys.path.insert(0 if self.file else len(sys.path), self.folder)
        names = [self.name.partition(".")[0]] if not self.file else list(sys.modules)
        for name in names:  # modules whose names hide files of the folder are unloaded
            if name in _SHARED or "." in name or name not in sys.modules or FrozenImporter.find_spec(name):
                continue
            place = Path(self.folder, name)
            places = [one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()]
            if places and str(places[0]) != getattr(sys.modules[name], "__file__", None):
                for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
                    del sys.modules[loaded]
        if not self.file:
            root = self.name.partition(".")[0]
            spec = PathFinder.find_spec(root, [self.folder])
            if spec is not None and spec.loader is not None and root not in sys.modules:
                _executed(spec)  # it comes first, before an installed one of its name
            return importlib.import_module(self.name)
        with contextlib.suppress(OSError):  # else the import says it
            self.sources[self.file] = Path(self.file).read_bytes()
        if parent := self.name.rpartition(".")[0]:
            importlib.import_module(parent)
        python = self.file.endswith(".py")
        spec = importlib.util.spec_from_file_location(self.name, self.file) if python else None
        if spec is None:
            raise ImportError("it is no Python file")
        return _executed(spec)

    def again(self) -> OwnFiles:
        """Return the files as before import, with modules out of sys.modules."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and self._owns(file) and name != "__main__":
                del sys.modules[name]
        return OwnFiles(self.folder, self.name, self.file, self.sources)

    @property
    def version(self) -> str:
        """The digest of files imported by now; of several, with their names in the folder."""
        if len(self._seen) != len(sys.modules):
            for name in sys.modules.keys() - self._seen:
                file = getattr(sys.modules.get(name), "__file__", None)
                if isinstance(file, str) and file.endswith(".py") and self._owns(file):
                    with contextlib.suppress(OSError):
                        self.sources[file] = self.sources.get(file) or Path(file).read_bytes()
            self._seen, files = set(sys.modules), self.sources.items()
            named = sorted((os.path.relpath(path, self.folder), content) for path, content in files)
            lines = [f"{Path(name).as_posix()} {digests.of_bytes(content)}\n" for name, content in named]
            whole = "".join(lines).encode("utf-8", "surrogateescape")
            self._version = digests.of_bytes(named[0][1] if len(named) == 1 else whole)
        return self._version

    def _owns(self, file: str) -> bool:
        path = Path(os.path.abspath(file))
        if file == self.file or not path.is_relative_to(self.folder):
            return file == self.file
        below = path.parents[: len(path.parents) - len(Path(self.folder).parents) - 1]
        return not INSTALLED & set(path.parts) and not any(map(_holds_packages, below))


@functools.cache
def _holds_packages(folder: Path) -> bool:
    """Return whether packages were installed into a folder, as `pip install --target` does."""
    with contextlib.suppress(OSError):  # of a folder that is gone
        return any(one.name.endswith(".dist-info") for one in os.scandir(folder))
    return False


def _executed(spec: ModuleSpec) -> ModuleType:
    module, arguments = importlib.util.module_from_spec(spec), sys.argv
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    sys.argv = [str(spec.origin)]
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    finally:
        sys.argv = arguments
    return module


def of_module(name: str) -> OwnFiles | None:
    """Return the files of a module that is imported by its name, from this folder or sys.path.

    None for installed ones, those of the standard library and of this package.
    """
    root, folder = name.partition(".")[0], ""
    if root in _SHARED:
        return None
    with contextlib.suppress(OSError):  # of a folder that is gone
        folder = os.getcwd()
    importlib.invalidate_caches()
    spec = PathFinder.find_spec(root, [folder, *sys.path])
    if spec is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(root)
    origin = [spec.origin] if spec and spec.has_location and spec.origin else []
    for place in (spec and spec.submodule_search_locations) or origin:
        found = os.path.dirname(os.path.abspath(place))
        if found != _LIBRARY and not INSTALLED & set(Path(found).parts):
            return OwnFiles(found, name, "")
    return None


def _depth(path: Path) -> int:
    """Return how many packages hold a file, by relative imports or the name of a package above it."""
    if path.stem == "__init__":
        return 0
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return 0
    depth = max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    roots, most = {name.partition(".")[0] for name in names} - _SHARED, len(path.parents) - 1
    holding = (
        number
        for number, folder in enumerate(path.parents, 1)
        if folder.name in roots and (folder / "__init__.py").is_file()
    )
    depth = max(depth, next(holding, 0))
    while 0 < depth < most and (path.parents[depth] / "__init__.py").is_file():
        depth += 1
    depth = min(depth, most)
    return depth if all(folder.name.isidentifier() for folder in path.parents[:depth]) else 0
