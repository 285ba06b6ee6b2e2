"""Checks that fail, with the file and the line that code hosts show them at."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.features.check.checked import Checked
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.reports.faults import Fault
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime import own_modules

_CONFIG = "config.json"


def of_checks(results: Sequence[Checked]) -> list[Fault]:
    """Return what fails and is not waived, in the order of the checks; no code is to blame for ours."""
    return [_fault(one) for one in results if one.finding.failed and not one.finding.fault]


def _fault(one: Checked) -> Fault:
    file, line = place(one)
    return Fault(
        _rule(one.finding.diagnosis, one.finding.check),
        printable("; ".join(filter(None, (one.seen, one.explanation)))),
        printable(one.target),
        one.label,
        file,
        line,
    )


def _rule(diagnosis: Diagnosis | None, check: str) -> str:
    """Return the code of the diagnosis alone: its equals and what is there beside it are in the message."""
    return check.replace(" ", "-") if diagnosis is None else diagnosis.code


def place(one: Checked) -> tuple[str, int]:
    """Return the file of a target and the line of its function; empty and 0 where they are not known.

    That is where the file that the target names binds its name, by an import if by nothing else.
    """
    if one.kind == "code":
        return _of_code(one.target)
    path = Path(one.target)
    if path.is_dir():
        path /= MANIFEST if one.kind == "case" else _CONFIG
    return (_relative(path), 0) if path.is_file() else ("", 0)


def source(file: str, line: int) -> str:
    """Return a line of a file; empty where it cannot be read."""
    return linecache.getline(file, line).strip() if line else ""


def _of_code(target: str) -> tuple[str, int]:
    where, _, name = target.rpartition(":")
    path = next((path for path in _files(where) if path.is_file()), None)
    if path is None:  # an installed package, or a name of `list implementations`
        return "", 0
    try:
        return _relative(path), _line(ast.parse(path.read_bytes()), name.split("."))
    except (OSError, SyntaxError, ValueError):
        return _relative(path), 0


def _files(where: str) -> list[Path]:
    """Return the files that a target's code may be in: it is a file's path, or a module's name."""
    if where.endswith(".py"):
        return [Path(where)]
    own = own_modules.of_module(where, "")
    if own is None:
        return []
    place = Path(own.folder).joinpath(*where.split("."))
    return [place / "__init__.py", place.with_name(f"{place.name}.py")]


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
    """Return whether a statement defines a name, imports it or assigns to it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return name in [one.asname or one.name for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _relative(path: Path) -> str:
    """Return a path from this folder, with slashes, where it is in it; else the whole one."""
    try:
        return path.resolve().relative_to(Path(os.getcwd()).resolve()).as_posix()
    except (OSError, ValueError):
        return os.path.normpath(path.absolute())
