"""No code reads the sentence of a diagnosis: it reads codes and values. Read with `ast`.

A sentence is what `wording` returns, a finding's `resembles`, `remedy` and `text`, and what is made of one in
the same function. It may be shown, joined and asked whether there is one; not compared, searched or taken
apart.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeaudit.recognition.diagnosis import Diagnosis

PACKAGE = Path(__file__).parent.parent.parent / "ropeaudit"
WORDING = PACKAGE / "recognition" / "wording.py"
WRITERS = ("sentence", "remedy", "option", "arithmetic", "title")  # functions of wording
FIELDS = ("resembles", "remedy", "advice")
READING = {
    *("split", "rsplit", "splitlines", "partition", "rpartition", "replace", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "translate"),
}
KEEPING = ("str", "printable", "repr")  # functions that return the text that they are given


def readings(source: str) -> list[int]:
    """Return the lines of a module that read a sentence."""
    module = ast.parse(source)
    found = list(_of_scope(module, _imported(module), set()))
    return sorted(set(found))


def _imported(module: ast.Module) -> set[str]:
    """Return the names by which functions of `wording` are imported."""
    return {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("recognition.wording")
        for alias in node.names
    }


def _of_scope(scope: ast.AST, writers: set[str], known: set[str]) -> Iterator[int]:
    """Yield the lines of a module or a function, and of functions within it, that read a sentence."""
    inner, nodes = [], []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner.append(node)
        else:
            nodes.append(node)
            waiting.extend(ast.iter_child_nodes(node))
    known, before = set(known), -1
    while len(known) != before:  # a name that is made of a name that is made of a sentence
        before = len(known)
        known |= {name for node in nodes for name in _named(node, writers, known)}
    yield from (node.lineno for node in nodes if _reads(node, writers, known))
    for function in inner:
        yield from _of_scope(function, writers, known)


def _named(node: ast.AST, writers: set[str], known: set[str]) -> Iterator[str]:
    """Yield the names that are given a sentence."""
    if isinstance(node, ast.Assign):
        targets, values = node.targets, [node.value] * len(node.targets)
        if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            targets, values = targets[0].elts, node.value.elts
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        targets, values = [node.target], [node.value]
    elif isinstance(node, ast.For | ast.comprehension):
        targets, values = [node.target], [node.iter]
    else:
        return
    for target, value in zip(targets, values, strict=False):
        if isinstance(target, ast.Name) and _is_sentence(value, writers, known):
            yield target.id


def _is_sentence(node: ast.AST, writers: set[str], known: set[str]) -> bool:
    """Return whether an expression is a sentence, or holds one as text or as an element."""

    def some(parts: list[ast.expr]) -> bool:
        return any(_is_sentence(part, writers, known) for part in parts)

    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.Attribute):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        return (node.attr in FIELDS and of != "wording") or (of, node.attr) == ("finding", "text")
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in writers or (function.id in KEEPING and some(node.args))
        if isinstance(function, ast.Attribute):
            of = function.value.id if isinstance(function.value, ast.Name) else ""
            return (of == "wording" and function.attr in WRITERS) or _is_sentence(
                function.value, writers, known
            )
        return False
    if isinstance(node, ast.BoolOp):
        return some(node.values)
    if isinstance(node, ast.IfExp):
        return some([node.body, node.orelse])
    if isinstance(node, ast.BinOp):
        return some([node.left, node.right])
    if isinstance(node, ast.JoinedStr):
        return some([part.value for part in node.values if isinstance(part, ast.FormattedValue)])
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return some(node.elts)
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return some([node.elt])
    return False


def _reads(node: ast.AST, writers: set[str], known: set[str]) -> bool:
    """Return whether an expression compares a sentence, searches it or takes it apart."""

    def sentence(part: ast.AST) -> bool:
        return _is_sentence(part, writers, known)

    if isinstance(node, ast.Compare):
        nothing = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        return not nothing and any(map(sentence, [node.left, *node.comparators]))
    if isinstance(node, ast.Subscript):
        return sentence(node.value) and ast.unparse(node.slice) not in (":1", "1:")  # its first letter
    if isinstance(node, ast.Match):
        return sentence(node.subject)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = node.func.value
        if isinstance(of, ast.Name) and of.id == "re":
            return any(map(sentence, node.args))
        if node.func.attr in READING and sentence(of):
            return True
        return node.func.attr in ("match", "search", "fullmatch") and any(map(sentence, node.args))
    return False


@pytest.mark.parametrize(
    "path", [path for path in sorted(PACKAGE.rglob("*.py")) if path != WORDING], ids=lambda path: path.stem
)
def test_no_code_reads_a_sentence(path):
    lines = readings(path.read_text(encoding="utf-8"))
    assert not lines, f"{path.relative_to(PACKAGE)}: lines {lines} read what a diagnosis says; read its code"


READS = [
    'if "base" in wording.sentence(found): pass',
    'x = wording.sentence(found) == "no rotation"',
    'x = finding.resembles.startswith("no")',
    'x = one.finding.resembles.split(" or ")',
    'x = record.resembles.replace("no rotation", "")',
    'words = finding.resembles\nx = words.partition(":")',
    'words = wording.sentence(found)\nlonger = f"{words}."\nx = longer.endswith("right")',
    'def f(finding):\n    text = finding.resembles or "none"\n    return text.removeprefix("q alone: ")',
    'import re\nx = re.search("base (.*)", finding.remedy)',
    "x = PATTERN.match(finding.resembles)",
    "x = finding.text[:10]",
    "for text in [finding.text]:\n    x = 'base' in text",
    'from ropeaudit.recognition.wording import sentence as said\nx = "base" in said(found)',
    'x = [one for one in rows if "alone" in one.resembles]',
    'x = [text for text in [one.resembles for one in rows] if text.count("or")]',
    'x = max(rows, key=lambda one: one.resembles.count(" or "))',
    'match finding.resembles:\n    case "no rotation": pass',
    "x = str(finding.resembles) != other",
    'text = head\ntext += finding.remedy\nx = "float32" in text',
]
SHOWS = [
    'text = f"it resembles {printable(record.resembles)}" if record.resembles else ""',
    'text = "; ".join(filter(None, [finding.detail, finding.resembles, finding.remedy]))',
    "if finding.resembles is not None: print(finding.resembles)",
    "found = wording.remedy(diagnosis, dtype, 10)\nrows.append(found)",
    "text = wording.remedy(diagnosis, dtype, 10)\nx = text[:1].upper() + text[1:]",
    "x = replace(finding, remedy=wording.remedy(found, dtype, 10))",
    'x = finding.diagnosis.code == "wrong-base"',
    'x = record.diagnosis.split("|")',
    'names = [name for name in names if name != "resembles"]',
    'def f(finding):\n    text = finding.resembles\n    print(text)\ndef g(text):\n    return "a" in text',
]


@pytest.mark.parametrize("source", READS)
def test_the_guard_sees_what_reads_a_sentence(source):
    assert readings(source)


@pytest.mark.parametrize("source", SHOWS)
def test_the_guard_lets_code_show_a_sentence(source):
    assert not readings(source)


@pytest.mark.parametrize(
    "value",
    [
        "",
        ", as where it is left out",
        "i and i + d/2",
        "the long divisors",
        ("q and k",),
        None,
        ["hf"],
        "hf,",
    ],
)
def test_no_value_of_a_diagnosis_is_a_clause(value):
    """`conftest` sees to it in every test: of each diagnosis that is made."""
    with pytest.raises(AssertionError, match="known-recipe holds"):
        Diagnosis("known-recipe", {"x": value})


@pytest.mark.parametrize("value", [1, 0.5, "bfloat16", "llama3(factor=8 low=1)", (), ("hf", "meta"), (1, 2)])
def test_a_value_of_a_diagnosis_is_a_number_a_name_or_several(value):
    assert Diagnosis("known-recipe", {"x": value}).values["x"] == value


def test_wording_itself_is_not_guarded_and_there():
    assert WORDING.is_file()
    assert not readings("")
