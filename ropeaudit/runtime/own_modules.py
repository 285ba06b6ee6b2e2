"""The modules of own code: its file and what it imports from its folder. They are its own.

They stand in `sys.modules`, and its folder on `sys.path`, while it is loaded and called, and neither at any
other time: no other code sees them. A name that is also that of an installed package, or of the standard
library, means its own file to its own code, as in `python file.py`, and to others what it always means.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.util
import marshal
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from ropeaudit.runtime import digests

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages
# what an audit itself computes with: never a file of own code
_SHARED = {"__main__", "ropeaudit", "numpy", "torch", "jax", "jaxlib", "ml_dtypes"}
# what any Python has loaded before it executes a file
_SHARED |= {"importlib", "encodings", *sys.builtin_module_names}
_LIBRARY = os.path.dirname(os.__file__)
_MOST_FOLLOWED = 300  # files whose imports are read to find those that a later call makes


def shown_path(path: str | Path) -> str:
    """Return how reports name a file: from this folder, from where packages are installed, else whole."""
    whole = Path(os.path.abspath(path))
    for at, part in enumerate(whole.parts):
        if part in INSTALLED:
            return "/".join(whole.parts[at + 1 :])
    try:
        return whole.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except (OSError, ValueError):
        return str(whole)


_current: OwnModules | None = None
_outside = threading.RLock()


def current() -> OwnModules | None:
    """Return the own modules that can be imported now."""
    return _current


def enter(modules: OwnModules | None) -> None:
    """Let some own modules be imported from here on instead of those that can be now; None for none."""
    global _current
    if _current is not None:
        _current.leave()
        _current = None
    if modules is not None:
        modules.enter()
    _current = modules


def of_file(path: Path, package: str = "") -> OwnModules:
    """Return the modules of a file: nothing is executed yet.

    package: the one that it belongs to; found out where it imports relative to one.
    """
    resolved = path.resolve()  # as sys.path[0] of `python file.py`
    depth = len(package.split(".")) if package else _depth(resolved)
    folder = resolved.parents[depth]
    package = package or ".".join(resolved.parts[-depth - 1 : -1])
    name = f"ropeaudit_own_{path.stem.replace('.', '_')}"
    name = f"{package}.{name}" if package else name
    return OwnModules(str(folder), name, str(path.absolute()))


def _depth(path: Path) -> int:
    """Return in how many packages a file stands that imports relative to one; 0 for any other file."""
    if path.stem == "__init__":
        return 0
    try:
        levels = [level for level, *_ in _imports(path.read_bytes())]
    except OSError:
        return 0
    depth, most = max(levels, default=0), len(path.parents) - 1
    while 0 < depth < most and (path.parents[depth] / "__init__.py").is_file():
        depth += 1
    depth = min(depth, most)
    return depth if all(folder.name.isidentifier() for folder in path.parents[:depth]) else 0


def of_module(name: str, cwd: str) -> OwnModules | None:
    """Return the modules of a module that is imported by its name, from this folder or sys.path.

    None for installed ones, those of the standard library and of this package.
    """
    root = name.partition(".")[0]
    if root in _SHARED:
        return None
    importlib.invalidate_caches()
    spec = PathFinder.find_spec(root, [cwd, *sys.path])
    if spec is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(root)
    for place in _places(spec):
        folder = os.path.dirname(os.path.abspath(place))
        if folder != _LIBRARY and not INSTALLED & set(Path(folder).parts):
            return OwnModules(folder, name, "")
    return None


def _places(spec: ModuleSpec | None) -> list[str]:
    if spec is None:
        return []
    return list(
        spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    )


@dataclass(eq=False)
class OwnModules:
    """The modules of one file or module under audit.

    folder: from which they are imported. name: of the module that is audited. file: its file, where that is
    what was named; then its folder comes first on sys.path, as for `python file.py`, else last.
    sources: file -> its bytes, as executed, or as they would be by an import within a function.
    """

    folder: str
    name: str
    file: str
    sources: dict[str, bytes] = field(default_factory=dict)
    _modules: dict[str, ModuleType] = field(default_factory=dict, init=False)
    _roots: set[str] = field(default_factory=set, init=False)  # first parts of their names
    _others: dict[str, ModuleType] = field(default_factory=dict, init=False)  # of the same names
    _offered: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)
    _path: list[str] = field(default_factory=list, init=False)
    _path_before: list[str] = field(default_factory=list, init=False)
    _import_before: Any = field(default=builtins.__import__, init=False)
    _hidden: set[str] = field(default_factory=set, init=False)  # roots, while others import the same names
    _count: int = field(default=-1, init=False)
    _digest: tuple[int, str] = field(default=(-1, ""), init=False)  # of how many sources

    def __post_init__(self) -> None:
        self._roots.add(self.name.partition(".")[0])

    def again(self) -> OwnModules:
        """Return the same modules before any was imported, with the sources as they were read before."""
        return OwnModules(self.folder, self.name, self.file, self.sources)

    def mention(self, word: bytes) -> bool:
        """Return whether a file that is imported, or may be, holds a word. Nothing is executed."""
        if self.file:
            with contextlib.suppress(OSError):
                self.source(self.file)
        else:
            for end in range(self.name.count(".") + 1):
                if found := self._file(".".join(self.name.split(".")[: end + 1])):
                    self.source(found[0])
        self._follow()
        return any(word in content for content in self.sources.values())

    @property
    def version(self) -> str:
        """The digest of the files: of one file that of its bytes; else of their names in the folder too."""
        if self._digest[0] != len(self.sources):
            self._digest = len(self.sources), _digest(self.sources, self.folder)
        return self._digest[1]

    def load(self) -> ModuleType:
        """Import the module that is audited, and return it; from here on its modules can be imported.

        Raises: ImportError, and whatever it raises.
        """
        importlib.invalidate_caches()
        enter(self)
        try:
            if not self.file:
                return importlib.import_module(self.name)
            parent = self.name.rpartition(".")[0]
            if parent:
                importlib.import_module(parent)
            spec = importlib.util.spec_from_file_location(self.name, self.file, loader=self._loader())
            if spec is None:
                raise ImportError("it is no Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.name] = module  # dataclasses look themselves up there
            self._loader().exec_module(module)
            return module
        finally:
            self._path = list(sys.path)
            self._follow()

    def _loader(self) -> _Source:
        if not self.file.endswith(".py"):
            raise ImportError("it is no Python file")
        return _Source(self.name, self.file, self)

    def enter(self) -> None:
        """Put them into sys.modules, their folder on sys.path. To be called by `enter` alone."""
        self._path_before = list(sys.path)
        sys.path[:] = self._search()
        for root in self._roots & sys.modules.keys():
            self._put_aside(root)
        sys.modules.update(self._modules)
        sys.meta_path.insert(
            next((at for at, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path)),
            self,
        )
        self._import_before = builtins.__import__
        builtins.__import__ = self._import  # type: ignore[assignment]
        self._count = len(sys.modules)

    def leave(self) -> None:
        """Take them, and those imported since, out of sys.modules. To be called by `enter` alone."""
        builtins.__import__ = self._import_before
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        if len(sys.modules) != self._count:
            self._modules = {name: module for root in self._roots for name, module in _beneath(root)}
        self._modules = {
            name: module for name in self._modules if (module := sys.modules.pop(name, None)) is not None
        }
        sys.modules.update(self._others)
        self._others.clear()
        sys.path[:] = self._path_before

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module for Python's import: an own one for own code, for others what there is elsewhere."""
        root = name.partition(".")[0]
        if root in _SHARED or root in self._hidden:
            return None if path is not None else PathFinder.find_spec(name, self._path_before)
        if path is not None:
            return self._own(PathFinder.find_spec(name, path)) if root in self._roots else None
        if root not in self._roots and not self._offers(root):
            return None
        if root not in self._roots and not self._is_own(_importing()):
            spec = PathFinder.find_spec(name, self._path_before)
            if spec is not None:
                return spec
        self._roots.add(root)
        return self._own(self._top(root))

    def _search(self) -> list[str]:
        """Return sys.path as own code sees it."""
        if _current is self:
            return sys.path
        return self._path or ([self.folder, *sys.path] if self.file else [*sys.path, self.folder])

    def _top(self, root: str) -> ModuleSpec | None:
        """Return where a name at the top leads to: the audited module's to its folder before all others."""
        first = [] if self.file or root != self.name.partition(".")[0] else [self.folder]
        return PathFinder.find_spec(root, [*first, *self._search()])

    def _own(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        if spec is not None and type(spec.loader) is SourceFileLoader and spec.origin:
            spec.loader = _Source(spec.name, spec.origin, self)
        return spec

    def _offers(self, root: str) -> bool:
        """Return whether a name at the top leads own code to its folder, or one that it put on sys.path."""
        search = self._search()
        key = root, len(search)
        if key not in self._offered:
            before = set(self._path_before if _current is self else sys.path)
            added = {self.folder, *(place for place in search if place not in before)}
            folders = {os.path.dirname(os.path.abspath(place)) for place in _places(self._top(root))}
            self._offered[key] = bool(folders & set(map(os.path.abspath, added))) and not (
                root in _SHARED or FrozenImporter.find_spec(root)
            )
        return self._offered[key]

    def _is_own(self, names: dict[str, Any] | None) -> bool:
        loader = (names or {}).get("__loader__")
        return isinstance(loader, _Source) and loader.owner is self

    def _import(
        self,
        name: str,
        globals: dict[str, Any] | None = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        """Import as `__import__` does, by a statement: what a name means depends on whose code says it."""
        root = name.partition(".")[0]
        if level == 0 and root not in _SHARED:
            if self._is_own(globals):
                if root not in self._roots and root in sys.modules and self._offers(root):
                    self._put_aside(root)
                    self._roots.add(root)
            elif root in self._roots - self._hidden and (
                root in self._others or PathFinder.find_spec(root, self._path_before) is not None
            ):
                with self._hiding(root):
                    return self._import_before(name, globals, locals, fromlist, level)
        return self._import_before(name, globals, locals, fromlist, level)

    @contextlib.contextmanager
    def _hiding(self, root: str) -> Iterator[None]:
        """Within the block, a name at the top means what it means to all others."""
        with _outside:
            own = dict(_beneath(root))
            for name in own:
                del sys.modules[name]
            sys.modules.update({name: self._others.pop(name) for name in _named(root, self._others)})
            self._hidden.add(root)
            try:
                yield
            finally:
                self._hidden.discard(root)
                self._put_aside(root)
                sys.modules.update(own)

    def _put_aside(self, root: str) -> None:
        self._others |= {name: sys.modules.pop(name) for name, _ in _beneath(root)}
        self._count = -1

    def source(self, path: str, content: bytes | None = None) -> bytes:
        """Return the bytes of a file of theirs, as they were when they were first read. Raises: OSError."""
        if path not in self.sources:
            self.sources[path] = Path(path).read_bytes() if content is None else content
        return self.sources[path]

    def _follow(self) -> None:
        """Read what the files read so far may import from the folder later, within their functions."""
        package = {name: str(getattr(module, "__package__", None) or "") for name, module in self._loaded()}
        files = {name: getattr(module, "__file__", None) for name, module in self._loaded()}
        names = {file: package[name] for name, file in files.items() if isinstance(file, str)}
        left = [(file, names.get(file, "")) for file in sorted(self.sources)]
        for file, parent in left:
            if len(left) > _MOST_FOLLOWED:
                return
            for name in _absolute(_imports(self.sources[file]), parent):
                if (found := self._file(name)) and found[0] not in self.sources:
                    with contextlib.suppress(OSError):
                        self.source(found[0])
                        left.append(found)

    def _loaded(self) -> list[tuple[str, ModuleType]]:
        return [pair for root in self._roots for pair in _beneath(root)]

    def _file(self, name: str) -> tuple[str, str] | None:
        """Return the source file of an own module by its dotted name, and its package; None where none is."""
        parts = name.split(".")
        if parts[0] not in self._roots and not self._offers(parts[0]):
            return None
        place = Path(self.folder, *parts)
        if (init := place / "__init__.py").is_file():
            return str(init), name
        file = place.with_name(f"{place.name}.py")
        return (str(file), name.rpartition(".")[0]) if file.is_file() else None


class _Source(SourceFileLoader):
    """Executes a file as it is on the disk: bytecode is told apart by whole seconds and the size alone."""

    def __init__(self, name: str, path: str, owner: OwnModules) -> None:
        super().__init__(name, path)
        self.owner = owner

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = marshal.loads(_compiled(self.owner.source(path), path))  # noqa: S302 of our own
        return code  # one of its own: torch.compile keeps what it compiled, and for which globals, with it


@lru_cache(1024)
def _compiled(source: bytes, path: str) -> bytes:
    return marshal.dumps(compile(source, path, "exec", dont_inherit=True))


@lru_cache(1024)
def _imports(source: bytes) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return what a file imports anywhere: level, module, names from it."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(0, one.name, ()) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", tuple(one.name for one in node.names)))
    return tuple(found)


def _absolute(imports: Iterable[tuple[int, str, tuple[str, ...]]], package: str) -> Iterator[str]:
    """Yield the dotted names of modules that imports of a module in a package may load."""
    for level, module, names in imports:
        above = package.split(".")[: len(package.split(".")) - level + 1] if level and package else []
        parts = [*above, *filter(None, module.split("."))]
        if level and not above:
            continue
        yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        yield from (".".join([*parts, name]) for name in names)


def _digest(sources: Mapping[str, bytes], folder: str) -> str:
    if len(sources) == 1:
        return digests.of_bytes(*sources.values())
    files = sorted((os.path.relpath(path, folder), content) for path, content in sources.items())
    lines = [f"{Path(name).as_posix()} {digests.of_bytes(content)}\n" for name, content in files]
    return digests.of_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def _importing() -> dict[str, Any] | None:
    """Return the globals of whatever asks for an import."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen importlib") and file != importlib.__file__:
            return frame.f_globals
        frame = frame.f_back
    return None


def _beneath(root: str) -> list[tuple[str, ModuleType]]:
    return [(name, sys.modules[name]) for name in _named(root, sys.modules)]


def _named(root: str, modules: Iterable[str]) -> list[str]:
    start = f"{root}."
    return [name for name in list(modules) if name == root or name.startswith(start)]
