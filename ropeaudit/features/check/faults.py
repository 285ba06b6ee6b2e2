"""Checks that fail, with the file and the line that code hosts show them at."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.features.check import sentences
from ropeaudit.features.check.checked import Checked
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.reports.faults import Fault
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime import own_modules

_CONFIG = "config.json"


def of_checks(results: Sequence[Checked]) -> list[Fault]:
    """Return what fails and is not waived, in the order of the checks."""
    return [_fault(one) for one in results if one.finding.failed]


def _fault(one: Checked) -> Fault:
    file, line = place(one)
    return Fault(
        _rule(one.finding.diagnosis, one.finding.check),
        printable(sentences.seen(one)),
        printable(one.target),
        sentences.place(one),
        file,
        line,
    )


def _rule(diagnosis: Diagnosis | None, check: str) -> str:
    """Return the code of the diagnosis alone: its equals and what is there beside it are in the message."""
    return check.replace(" ", "-") if diagnosis is None else diagnosis.code


def place(one: Checked) -> tuple[str, int]:
    """Return the file of a target and the line of its function; empty and 0 where they are not known.

    That is where its name is bound by something else than an import: of all names of it the same place.
    """
    if one.kind == "code":
        return _of_code(one.target)
    path = Path(one.target)
    if path.is_dir():
        path /= MANIFEST if one.kind == "case" else _CONFIG
    return (_relative(path), 0) if path.is_file() else ("", 0)


def _of_code(target: str) -> tuple[str, int]:
    where, _, name = target.rpartition(":")
    files = [Path(where)] if where.endswith(".py") else _absolute(where, "")
    path = next((path for path in files if path.is_file()), None)
    if path is None:  # an installed package, or a name of `list implementations`
        return "", 0
    return _bound(path, name.split("."), set()) or (_relative(path), 0)


def _bound(path: Path, parts: Sequence[str], seen: set[tuple[str, ...]]) -> tuple[str, int] | None:
    """Return the file that binds a dotted name, and the line of the innermost part that it defines.

    Imports are followed to the files of this folder; that of a name from elsewhere is where it is bound.
    seen: the files and names on the way.
    """
    here = (str(path.resolve()), *parts)
    if here in seen:
        return None
    seen.add(here)
    try:
        statements = list(_defined(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return None
    for node in reversed(statements):
        if _names(node, parts[0]):
            return _relative(path), _line(node, parts[1:]) or node.lineno
        for file, names in _imported(node, path, parts):
            found = _bound(file, names, seen)
            if found is not None and not os.path.isabs(found[0]):  # other files are none of the repository's
                return found
        if isinstance(node, ast.ImportFrom) and any(
            (one.asname or one.name) == parts[0] for one in node.names
        ):
            return _relative(path), node.lineno
    return None


def _imported(node: ast.stmt, path: Path, parts: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the files that a statement may import a dotted name from, each with its name there."""
    if isinstance(node, ast.Import) and len(parts) > 1:
        modules = [one.name for one in node.names if one.asname == parts[0]]
        yield from ((file, list(parts[1:])) for name in modules for file in _files(name, 0, path))
    if not isinstance(node, ast.ImportFrom):
        return
    for one in node.names:
        if one.name == "*" or (one.asname or one.name) == parts[0]:
            module, name = node.module or "", parts[0] if one.name == "*" else one.name
            yield from ((file, [name, *parts[1:]]) for file in _files(module, node.level, path))
            if len(parts) > 1:
                submodule = f"{module}.{name}".lstrip(".")
                yield from ((file, list(parts[1:])) for file in _files(submodule, node.level, path))


def _files(module: str, level: int, path: Path) -> Iterator[Path]:
    """Yield the files that a module may be in which a file imports; level: of dots before its name."""
    folders = path.resolve().parents
    if level:
        yield from (file for one in folders[level - 1 : level] for file in _module(one, module))
        return
    root = next(folder for folder in folders if not (folder / "__init__.py").is_file())
    for folder in dict.fromkeys((str(root), "", str(folders[0]))):
        yield from _absolute(module, folder)


def _absolute(module: str, folder: str) -> Iterator[Path]:
    own = own_modules.of_module(module, folder) if module else None
    if own is not None:
        yield from _module(Path(own.folder), module)


def _module(folder: Path, name: str) -> Iterator[Path]:
    place = folder.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    yield from (file for file in files if file.is_file())


def _line(tree: ast.AST, parts: Sequence[str]) -> int:
    """Return the line of a dotted name, of the innermost part that the file defines; 0 where of none."""
    line = 0
    for part in parts:
        last = [node for node in _defined(tree) if _names(node, part)]
        if not last:
            break
        tree, line = last[-1], last[-1].lineno
    return line


def _defined(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those under conditions too, and none of functions within."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _defined(node)


def _names(node: ast.stmt, name: str) -> bool:
    """Return whether a statement defines a name, or assigns to it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _relative(path: Path) -> str:
    """Return a path from this folder, with slashes, where it is in it; else the whole one."""
    try:
        return path.resolve().relative_to(Path(os.getcwd()).resolve()).as_posix()
    except (OSError, ValueError):
        return os.path.normpath(path.absolute())
