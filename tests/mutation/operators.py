"""Small faults of a source file, made with `ast`: one mutant each, spliced into the text as it stands."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_SWAPPED = [("all", "any"), ("min", "max"), ("minimum", "maximum"), ("floor", "ceil"), ("cos", "sin"),
            ("argmin", "argmax"), ("amin", "amax"), ("nanmin", "nanmax"), ("sum", "max")]  # fmt: skip
_CALLED = dict(_SWAPPED) | {b: a for a, b in _SWAPPED if b != "max"}
_DROPPED = {"abs", "round", "float", "int", "sorted", "reversed", "set"}  # f(x) -> x


@dataclass(frozen=True)
class Mutant:
    """One fault. before, after: the text of its line.

    scope, names: lines, or what is named on the lines, whose tests see it; for code that runs at import.
    """

    file: str
    line: int
    operator: str
    before: str
    after: str
    start: int
    end: int
    put: str
    scope: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what names it wherever its line stands."""
        return self.file, self.before, self.after, self.operator

    def applied(self, source: bytes) -> bytes | None:
        """Return the source with the fault in it; None if it does not parse, or means the same."""
        changed = source[: self.start] + self.put.encode() + source[self.end :]
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except SyntaxError:
            return None
        return None if same else changed


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a file, in the order of its lines."""
    tree = ast.parse(source)
    parents = _parents(tree)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    built: dict[tuple[int, int, str], Mutant] = {}
    for node in _mutable(tree, parents):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for operator, new in _faults(node, parents[node][1]):
            put = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(node, ast.expr) and not isinstance(
                new, ast.Constant | ast.Name | ast.Call | ast.Slice
            ):
                put = f"({put})"
            if put.encode() == source[begin:end]:
                continue
            line, scope = source.splitlines()[node.lineno - 1], _seen_by(node, parents)
            before = line.decode().strip()
            alone = node.lineno == node.end_lineno
            head, tail = line[: node.col_offset], line[node.end_col_offset :] if alone else b" ..."
            after = f"{head.decode()}{put}{tail.decode()}".strip()
            built.setdefault(
                (begin, end, put), Mutant(file, node.lineno, operator, before, after, begin, end, put, *scope)
            )
    return sorted(built.values(), key=lambda one: (one.line, one.start, one.put))


Parents: TypeAlias = dict[ast.AST, tuple[ast.AST, str]]


def _parents(tree: ast.AST) -> Parents:
    """Return what every node stands in, and as what."""
    results: Parents = {}
    for node in ast.walk(tree):
        for role, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    results[child] = node, role
    return results


def _above(node: ast.AST, parents: Parents) -> Iterator[tuple[ast.AST, str]]:
    """Yield what a node stands in, from the inside out."""
    while node in parents:
        node, role = parents[node]
        yield node, role


def _mutable(tree: ast.AST, parents: Parents) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that mean something at run time: no annotations, decorators, f-strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and not any(
            _inert(*above) for above in _above(node, parents)
        ):
            yield node


def _inert(parent: ast.AST, role: str) -> bool:
    if role in ("annotation", "returns", "decorator_list"):
        return True
    if isinstance(parent, ast.JoinedStr):
        return True
    if isinstance(parent, ast.If) and role == "body" and ast.unparse(parent.test) == "TYPE_CHECKING":
        return True
    if isinstance(parent, ast.Assign) and ast.unparse(parent.targets[0]) in ("__all__", "__version__"):
        return True
    return isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("TypeVar", "cast", "ParamSpec")


def _seen_by(node: ast.AST, parents: Parents) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return for code that runs at import the lines, and the names, whose users see it; else nothing.

    A default belongs to the body of its function. A constant belongs to whoever names it, a field to
    whoever names its class.
    """
    named: list[str] = []
    for parent, role in _above(node, parents):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if role == "body":
                return (), ()
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            return tuple(range(body[0].lineno, (body[-1].end_lineno or 0) + 1)), ()
        if isinstance(parent, ast.ClassDef) and role == "body":
            named.append(parent.name)
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        targets = [parent.target] if isinstance(parent, ast.AnnAssign | ast.AugAssign) else targets
        named += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return (), tuple(named) or ("",)


def _faults(node: ast.expr | ast.stmt, role: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield (operator, what stands in the node's place)."""
    if isinstance(node, ast.Slice):
        yield from _slices(node)
    elif isinstance(node, ast.expr):
        if role in ("test", "ifs") and isinstance(node, ast.Name | ast.Call | ast.Attribute):
            yield "condition", ast.UnaryOp(ast.Not(), copy.deepcopy(node))
        yield from _expressions(node)
    else:
        yield from _statements(node)


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for place, sign in enumerate(node.ops):
            for other in _COMPARED[type(sign)]:
                yield "comparison", _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in _COMPUTED
        and not _text(node.left) | _text(node.right)
    ):
        yield "arithmetic", _with(node, op=_COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        if len(node.values) > 1:
            for place in range(len(node.values)):
                rest = [copy.deepcopy(value) for at, value in enumerate(node.values) if at != place]
                yield "operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield "unary", copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant):
        yield from (("constant", ast.Constant(value)) for value in _values(node.value))
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value > 0 else [value + 1]
    if isinstance(value, float):
        return [value * 2] if value and value * 2 != value else [1.0]
    return []


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _with(node: ast.AST, **changed: object) -> ast.AST:
    new = copy.deepcopy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    function, given = node.func, node.args
    name = getattr(function, "id", getattr(function, "attr", ""))
    if name in _CALLED:
        other = {"attr": _CALLED[name]} if isinstance(function, ast.Attribute) else {"id": _CALLED[name]}
        yield "call", _with(node, func=_with(function, **other))
    if name in _DROPPED and isinstance(function, ast.Name) and len(given) == 1 and not node.keywords:
        yield "call", copy.deepcopy(given[0])
    plain = len(given) >= 2 and not any(isinstance(one, ast.Starred) for one in given[:2])
    if (
        plain
        and name not in ("min", "max", "isinstance", "maximum", "minimum", "hypot")
        and not _text(given[0])
    ):
        yield "arguments", _with(node, args=[given[1], given[0], *given[2:]])


def _slices(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    for end in ("lower", "upper", "step"):
        if getattr(node, end) is not None:
            yield "slice", _with(node, **{end: None})


def _statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return", ast.Return(ast.Constant(None))
        if isinstance(node.value, ast.BinOp | ast.Call):
            yield "return", ast.Return(ast.Constant(0))
    elif isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED and not _text(node.value):
        yield "arithmetic", _with(node, op=_COMPUTED[type(node.op)]())
        yield "statement", ast.Pass()
    elif _removable(node):
        yield "statement", ast.Pass()


def _removable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript | ast.Attribute)
    return isinstance(node, ast.Raise | ast.Break | ast.Continue)
