"""Checks that fail, with the file and the line that code hosts show them at."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path

from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.features.check.checked import Checked
from ropeaudit.reports.forms.sarif import Fault
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime.paths import shown_path
from ropeaudit.subjects.calling import own_files

_CONFIG = "config.json"


def of_checks(results: Sequence[Checked]) -> list[Fault]:
    """Return what fails and is not waived, in the order of the checks; no code is to blame for ours."""
    faults = []
    for one in results:
        if one.finding.failed and not one.finding.fault:
            found = one.finding.diagnosis  # its equals and what is there beside it are in the message
            rule = found.code if found else one.finding.check.replace(" ", "-")
            message = printable("; ".join(filter(None, (one.seen, one.explanation))))
            faults.append(Fault(rule, message, printable(one.target), one.label, *place(one)))
    return faults


def place(one: Checked) -> tuple[str, int]:
    """Return the file of a target and the line of its function; empty and 0 where they are not known.

    That is where the file that the target names binds its name, by an import if by nothing else.
    """
    if one.kind == "code":
        return _of_code(one.target)
    path = Path(one.target)
    if path.is_dir():
        path /= MANIFEST if one.kind == "case" else _CONFIG
    return (shown_path(path), 0) if path.is_file() else ("", 0)


def source(file: str, line: int) -> str:
    """Return a line of a file; empty where it cannot be read."""
    return linecache.getline(file, line).strip() if line else ""


def _of_code(target: str) -> tuple[str, int]:
    """Return the place of code: the target begins with a file's path, or with a module's name."""
    where, _, name = target.rpartition(":")
    files = [Path(where)] if where.endswith(".py") else []
    if not files and (own := own_files.of_module(where, "")):
        module = Path(own.folder).joinpath(*where.split("."))
        files = [module / "__init__.py", module.with_name(f"{module.name}.py")]
    path = next((path for path in files if path.is_file()), None)
    if path is None:  # an installed package, or a name of `list implementations`
        return "", 0
    try:
        return shown_path(path), _line(ast.parse(path.read_bytes()), name.split("."))
    except (OSError, SyntaxError, ValueError):
        return shown_path(path), 0


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
