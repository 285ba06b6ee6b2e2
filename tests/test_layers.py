"""A file imports only from floors below its own: the house of the design, read with `ast`."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ropeaudit"

# From the ground up: a file imports from its own room and from lower floors.
HOUSE = [
    ["_version", "data"],
    ["errors"],
    ["runtime"],
    ["door"],
    ["arithmetic", "tensor_files"],
    ["rope"],
    ["recipes", "reference", "inputs"],
    ["subjects"],
    ["engine", "bounds", "recognition"],
    ["audits"],
    ["reports", "conformance"],
    ["console"],
    ["features"],
    ["main", "rendering", "testing", "pytest_plugin", "", "__main__"],
]
# What a feature may import of others, and no other feature may: `check` asks them all.
COMPOSES = {
    "features.check": {
        "features.limit.analysis",
        "features.limit.report",
        "features.module.analysis",
        "features.module.buffers",
        "features.module.built",
        "features.module.judging",
        "features.model.analysis",
        "features.model.load",
    },
}
FLOORS = {room: level for level, rooms in enumerate(HOUSE) for room in rooms}
ROOF = len(HOUSE) - 1


def floor(module: str) -> int:
    return FLOORS[module.split(".")[0]]


def room(module: str) -> str:
    """The folder, of a feature its own; the files under the roof share one."""
    parts = module.split(".")
    return "roof" if floor(module) == ROOF else ".".join(parts[: 2 if parts[0] == "features" else 1])


def imports(path: Path) -> list[str]:
    results = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ropeaudit":
            base = node.module.removeprefix("ropeaudit").lstrip(".")
            for alias in node.names:
                child = f"{base}.{alias.name}".lstrip(".")
                there = PACKAGE / Path(*child.split("."))
                results.append(child if there.with_suffix(".py").exists() or there.is_dir() else base)
    return results


def modules(package: Path = PACKAGE) -> dict[str, list[str]]:
    """What each file imports, by its name; "" is the package itself."""
    results = {}
    for path in sorted(package.rglob("*.py")):
        own = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        results["" if own == "__init__" else own] = imports(path)
    return results


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """The groups of files that reach each other by imports."""
    reached = {}
    for own in graph:
        seen, left = set(), [own]
        while left:
            new = {other for other in graph.get(left.pop(), ()) if other} - seen
            seen |= new
            left += new
        reached[own] = seen
    groups = {
        tuple(sorted(other for other in reached[own] if own in reached.get(other, ())))
        for own in graph
        if own
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def upward(package: Path = PACKAGE) -> list[str]:
    wrong = []
    for own, others in modules(package).items():
        for other in others:
            composed = other in COMPOSES.get(room(own), ())
            if floor(other) >= floor(own) and room(other) != room(own) and other != "" and not composed:
                wrong.append(f"{own or '__init__'} ({floor(own)}) imports {other} ({floor(other)})")
    return wrong


def test_no_file_imports_from_its_own_floor_or_above() -> None:
    assert upward() == []


def test_no_files_import_each_other() -> None:
    assert circles(modules()) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": ["b", ""], "b": ["c"], "c": ["a", "d"], "d": [], "": ["a", "d"]}
    assert circles(graph) == [["a", "b", "c"]]


def test_what_may_not_be_imported_is_seen(tmp_path: Path) -> None:
    """From above, from another feature, or more of it than is named."""
    both = "features.limit import analysis, command"
    for name, other in (
        ("rope/scaling", "audits.sweep import command"),
        ("features/limit/words", "features.shift import command"),
        ("features/check/words", both),
        ("features/shift/words", both),
    ):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"from ropeaudit.{other}\n")
    assert upward(tmp_path) == [
        "features.check.words (12) imports features.limit.command (12)",
        "features.limit.words (12) imports features.shift.command (12)",
        "features.shift.words (12) imports features.limit.analysis (12)",
        "features.shift.words (12) imports features.limit.command (12)",
        "rope.scaling (5) imports audits.sweep (9)",
    ]


def test_what_is_composed_is_imported() -> None:
    for feature, named in COMPOSES.items():
        files = (PACKAGE / Path(*feature.split("."))).rglob("*.py")
        assert named == named & {other for path in files for other in imports(path)}


def test_the_judge_shares_no_rotation_code_with_the_accused() -> None:
    assert not {"rope.rotation", "rope.frequencies", "recipes"} & set(
        imports(PACKAGE / "reference" / "exact_scores.py")
    )
