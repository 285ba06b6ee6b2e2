"""A file imports only from floors below its own: the house of the design, read with `ast`."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ropeaudit"

# First match wins; names are module paths below the package.
FLOORS = [
    ("errors", 0),
    ("formats", 1),
    ("doubledouble", 1),
    ("circumstances", 1),
    ("data", 1),
    ("rope.setting", 2),
    ("rope", 3),
    ("masks", 3),
    ("captured", 3),
    ("reference", 4),
    ("recipes", 4),
    ("inputs", 4),
    ("subjects.emulated", 6),
    ("subjects", 5),
    ("scores", 6),
    ("metrics", 6),
    ("measure", 7),
    ("records", 7),
    ("audit", 8),
    ("reports.numbers", 9),
    ("reports.drift", 11),
    ("reports.table", 11),
    ("reports.json", 11),
    ("reports.markdown", 12),
    ("reports.jsonl", 12),
    ("reports.csv", 12),
    ("reports", 10),
    ("cli.main", 16),
    ("cli.options", 13),
    ("cli.values", 13),
    ("cli.gates", 13),
    ("cli.progress", 13),
    ("cli.output", 14),
    ("cli.shift", 15),
    ("cli.list", 15),
    ("cli.env", 15),
    ("cli", 13),
    ("__main__", 17),
    ("", 17),
]


def floor(module: str) -> int:
    return next(
        level for name, level in FLOORS if not name or module == name or module.startswith(name + ".")
    )


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ropeaudit":
            base = node.module.removeprefix("ropeaudit").lstrip(".")
            for alias in node.names:
                child = f"{base}.{alias.name}".lstrip(".")
                there = PACKAGE / Path(*child.split("."))
                found.append(child if there.with_suffix(".py").exists() or there.is_dir() else base)
    return found


def upward(package: Path = PACKAGE) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        own = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        own = "" if own == "__init__" else own
        for other in imports(path):
            if floor(other) >= floor(own) and other != "":
                wrong.append(f"{own or '__init__'} ({floor(own)}) imports {other} ({floor(other)})")
    return wrong


def test_no_file_imports_from_its_own_floor_or_above() -> None:
    assert upward() == []


def test_the_check_sees_an_upward_import(tmp_path: Path) -> None:
    (tmp_path / "formats.py").write_text("from ropeaudit.audit import shift\n")
    assert upward(tmp_path) == ["formats (1) imports audit (8)"]


def test_the_judge_shares_no_rotation_code_with_the_accused() -> None:
    assert not {"rope.rotation", "rope.frequencies", "recipes"} & set(imports(PACKAGE / "reference.py"))
