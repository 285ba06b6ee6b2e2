"""The rooms of the package and how large they are: `python tests/rooms.py`.

Lines are those of files; code is what is left without blank lines, comments, docstrings, imports and
signatures. Nothing fails by it: size is a matter of review.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ropeaudit"
# room -> files and folders of the package; a longer path wins over a shorter one
ROOMS = {
    "errors, runtime, arithmetic, tensor files": ("errors.py", "runtime", "arithmetic", "tensor_files"),
    "rope, recipes, reference, inputs": ("rope", "recipes.py", "recipes", "reference", "inputs"),
    "subjects, calling": ("subjects",),
    "third party": ("subjects/third_party",),
    "recognition": ("recognition",),
    "engine, bounds": ("engine", "bounds"),
    "audits": ("audits",),
    "conformance": ("conformance",),
    "reports": ("reports", "rendering.py"),
    "console, main": ("console", "main.py", "__main__.py"),
    "features": ("features",),
    "API, testing, data": ("__init__.py", "_version.py", "testing.py", "pytest_plugin.py", "data"),
}


@dataclass(slots=True)
class Size:
    """How large a room is."""

    lines: int = 0
    files: int = 0
    functions: int = 0
    classes: int = 0
    code: int = 0

    def add(self, text: str) -> None:
        """Count a file in."""
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        self.lines += text.count("\n")
        self.files += 1
        self.functions += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
        self.classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        self.code += len(lines_of_code(text, tree))

    def merge(self, other: Size) -> None:
        """Count another room in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def lines_of_code(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that are code."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    layout |= {tokenize.ENDMARKER, tokenize.ENCODING}
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in layout]
    lines = {line for one in tokens for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            lines -= set(range(first, max(node.lineno + 1, node.body[0].lineno)))
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            lines -= set(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    return lines


def room_of(path: str) -> str:
    """Return the room of a file, by its path within the package."""
    places = {place: room for room, places in ROOMS.items() for place in places}
    fitting = [place for place in places if path == place or path.startswith(f"{place}/")]
    return places[max(fitting, key=len)]


def sizes(package: Path = PACKAGE) -> dict[str, Size]:
    """Return the size of each room. Raises: ValueError for a file of no room."""
    results = {room: Size() for room in ROOMS}
    for file in sorted(package.rglob("*.py")):
        results[room_of(file.relative_to(package).as_posix())].add(file.read_text(encoding="utf-8"))
    return results


def table() -> str:
    """Return the sizes as a table in Markdown."""
    rows, whole = sizes(), Size()
    for size in rows.values():
        whole.merge(size)
    head = (
        "| room | lines | files | functions | classes | code |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
    )
    return head + "\n".join(
        f"| {room} | {one.lines:,} | {one.files} | {one.functions:,} | {one.classes} | "
        f"{one.code / one.lines:.0%} |"
        for room, one in {**rows, "**all**": whole}.items()
    )


if __name__ == "__main__":
    print(table())
