"""What a snippet takes of a user's file: the lines that a function needs, or an import of it."""

from __future__ import annotations

import ast
from pathlib import Path

from ropeaudit.reports.tickets.reproduction import NoSnippet

_MOST_LINES = 20  # of own code that are written into a snippet; longer code is imported

_RESERVED = {"q", "k", "at", "x", "exact", "scores", "error", "rotate", "scaled", "values", "theta"}
_RESERVED |= {"build", "module", "normal", "generator", "np", "sys"}


def imported(place: str, name: str) -> tuple[list[str], str]:
    """Return the lines that make `name` of a file or module known, and the file that they import.

    A file's few lines are written out, so that nothing but its packages is needed. Raises: NoSnippet.
    """
    root = name.partition(".")[0]
    if not place.endswith(".py"):
        top = place.partition(".")[0]
        local = next((one for one in (top, f"{top}.py") if Path(one).exists()), "")
        found = ["import sys", 'sys.path.append(".")'] if local else []
        return [*found, f"from {place} import {root}"], local
    path = Path(place)
    try:
        lines = needed(path.read_bytes(), root)
    except OSError as error:  # the code went to another folder, or removed its file
        raise NoSnippet(f"{place} can no longer be read: {error.strerror}") from None
    if lines is not None and len(lines) <= _MOST_LINES and not _siblings(lines, path.parent):
        return lines, ""
    if not path.stem.isidentifier():
        raise NoSnippet(f"a file called {path.name} cannot be imported by its name")
    folder = f"sys.path.insert(0, {str(path.parent)!r})  # where {path.name} lies"
    return ["import sys", folder, f"from {path.stem} import {root}"], path.name


def _siblings(lines: list[str], folder: Path) -> bool:
    """Return whether lines import what lies in a folder."""
    imports = (line.split()[1] for line in lines if line.startswith(("import ", "from ")))
    tops = [one.partition(".")[0].rstrip(",") for one in imports]
    return any(not top or (folder / top).exists() or (folder / f"{top}.py").exists() for top in tops)


def needed(source: str | bytes, name: str) -> list[str] | None:
    r"""Return the lines of a file that a top-level name needs, without docstrings; None if that is unclear.

    `import torch` is left out: every snippet has it.

    >>> source = "import torch\nimport math\na = 2\ndef f(x):\n    'Twice.'\n    return a * x\n"
    >>> needed(f"{source}if __name__ == '__main__':\n    x = f(3)\n", "f")
    ['a = 2', 'def f(x):', '    return a * x']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    defining: dict[str, ast.stmt] = {}
    for node in tree.body:
        defining |= dict.fromkeys(_defined(node), node)
    wanted, taken = [name], set[int]()
    while wanted:
        needs = defining.get(wanted.pop())
        if needs is None or id(needs) in taken:
            continue
        taken.add(id(needs))
        wanted += [one.id for one in ast.walk(needs) if isinstance(one, ast.Name)]
    if name not in defining or any(id(defining[one]) in taken for one in _RESERVED & defining.keys()):
        return None
    nodes = [node for node in tree.body if id(node) in taken and ast.unparse(node) != "import torch"]
    return [line for node in nodes for line in ast.unparse(_bare(node)).splitlines() if line]


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):  # it is not run when imported
        return []
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]


def _bare(node: ast.stmt) -> ast.stmt:
    """Return a statement without the docstrings in it."""
    for one in ast.walk(node):
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(one) is not None:
            one.body = one.body[1:] or [ast.Pass()]
    return node
