"""The files of the user's own code: their import, as `python FILE` or `-m NAME` does it, and their digest."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ropeaudit.runtime import digests
from ropeaudit.runtime.paths import INSTALLED

_OURS = Path(__file__).parents[2]  # this package, which may lie below the user's folder

# what audits compute with, or Python loads before it executes a file: never an own file
_SHARED = {"__main__", "ropeaudit", "numpy", "torch", "jax", "jaxlib", "ml_dtypes", "importlib", "encodings"}
_SHARED |= set(sys.builtin_module_names)
_LIBRARY = os.path.dirname(os.__file__)


@dataclass(slots=True)
class OwnFiles:
    """The file or module under audit, and the files that it imports from its folder.

    name: of the module. file: its path, empty for a module named without one; with a path the folder is first
    on sys.path, else last. sources: file -> its bytes when they were first read.
    """

    folder: str
    name: str
    file: str
    sources: dict[str, bytes] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)  # modules loaded at the last look
    _version: str = ""

    def load(self) -> ModuleType:
        """Import the module. Raises: ImportError, and what the module raises."""
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
                _execute(spec)  # it comes first, before an installed one of its name
            return importlib.import_module(self.name)
        with contextlib.suppress(OSError):  # else the import says it
            self.sources[self.file] = Path(self.file).read_bytes()
        if parent := self.name.rpartition(".")[0]:
            importlib.import_module(parent)
        python = self.file.endswith(".py")
        spec = importlib.util.spec_from_file_location(self.name, self.file) if python else None
        if spec is None:
            raise ImportError("it is no Python file")
        return _execute(spec)

    def again(self) -> OwnFiles:
        """Remove own modules from sys.modules; return the files as before their import."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and self._owns(file) and name != "__main__":
                del sys.modules[name]
        return OwnFiles(self.folder, self.name, self.file, self.sources)

    @property
    def version(self) -> str:
        """The digest of the files imported so far; of several, with their names in the folder."""
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
        if file == self.file or not path.is_relative_to(self.folder) or path.is_relative_to(_OURS):
            return file == self.file
        below = path.parents[: len(path.parents) - len(Path(self.folder).parents) - 1]
        return not INSTALLED & set(path.parts) and not any(map(_holds_packages, below))


@functools.cache
def _holds_packages(folder: Path) -> bool:
    """Return whether packages were installed into a folder, as `pip install --target` does."""
    with contextlib.suppress(OSError):  # of a folder that is gone
        return any(one.name.endswith(".dist-info") for one in os.scandir(folder))
    return False


def _execute(spec: ModuleSpec) -> ModuleType:
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


def depth(path: Path) -> int:
    """Return in how many packages a file lies, by its relative imports or a package's name above it."""
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
