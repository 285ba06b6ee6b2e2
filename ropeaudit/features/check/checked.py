"""What is requested of every target, and one check of a target, with the place that code hosts show it at."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits.results import Result
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import INTERRUPTED, JUDGED, MARGIN, Finding
from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.reports.numbers import counted, short
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.paths import shown_path
from ropeaudit.subjects.calling import own_files

Kind = Literal["code", "model", "config", "checkpoint", "gguf", "case"]
Progress: TypeAlias = Callable[[float], None]
Note: TypeAlias = Callable[[Sequence[str]], None]
NONE = "none"  # a dtype or a layer type where a check has none
_MOST = 3  # names that a sentence lists


@dataclass(frozen=True, slots=True)
class Checked(Result):
    """One check of a target. up_to: positions, 0 where they do not matter. version: of what was checked.

    setting: the RoPE setting, None where none could be read. layer: its layer type in a config.
    device: where it was executed; none where nothing was.
    """

    report_module: ClassVar[str] = "ropeaudit.features.check.report"
    target: str
    kind: Kind
    version: str
    dtype: str
    setting: RopeSetting | None
    up_to: int
    finding: Finding
    layer: str = NONE
    device: str = NONE

    @property
    def label(self) -> str:
        """The name of the check, with the layer type and the dtype that it is of."""
        layer = f" of {self.layer}" if self.layer not in (NONE, "full_attention") else ""
        return self.finding.check + layer + ("" if self.dtype == NONE else f" in {self.dtype}")

    @property
    def measured_words(self) -> str:
        """What was measured and what is allowed; empty where there is no number."""
        finding = self.finding
        if math.isnan(finding.measured):
            return ""
        word = "needed" if finding.unit == MARGIN else "allowed"
        shown = "{:,.0f}".format if finding.unit == "positions" else short
        allowed = "" if math.isnan(finding.allowed) else f", {word} {shown(finding.allowed)}"
        return f"{shown(finding.measured)} {finding.unit}{allowed}"

    @property
    def seen(self) -> str:
        """What was measured, and where; what was seen where that is no number."""
        measured = self.measured_words
        return ", ".join(filter(None, [measured, self.finding.where] if measured else [self.finding.detail]))

    @property
    def explanation(self) -> str:
        """What it behaves like and what to change; empty where neither is known."""
        found, behaves = self.finding.diagnosis, self.finding.resembles
        if found is not None and found.explains:
            near = "nothing that was tried explains it; the nearest"
            behaves = f"{near if found.certainty == 'resembles' else 'behaves like'}: {behaves}"
        return "; ".join(filter(None, (behaves, self.finding.advice)))

    @property
    def judged(self) -> bool:
        """Whether it passed, failed or is waived; what says that there is no more of a target did not."""
        return self.finding.status in JUDGED and self.finding.check != INTERRUPTED


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is requested of every target; what is None or empty goes by the kind of target.

    up_to: number of positions. text, tokens: what a whole model is to read, which runs it. returned: where a
    kernel wrote what a case of vectors asks for. thorough: whether what takes long is done too. head_dims:
    whether heads of other sizes are tried too. device: where code is called, and a whole model runs.
    environments: names of those that code is called in too. write_wrapper: where a wrapper to edit goes, of
    code that is not understood. table: the code that makes the tables of code that takes some.
    arguments: of code, by name, which nothing else fills then.
    """

    dtypes: tuple[Format, ...] = ()
    up_to: int | None = None
    recipe: str | None = None
    order: str | None = None
    seed: int = 0
    text: str | None = None
    tokens: str | None = None
    returned: str | None = None
    thorough: bool = False
    head_dims: bool = False
    device: str | None = None
    environments: Sequence[str] = DEFAULT
    write_wrapper: str | None = None
    table: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


def interrupted(finding: Finding, later: Sequence[str], noun: str) -> Finding:
    """Return a finding; that of an interruption also names what was not begun."""
    if finding.check != INTERRUPTED:
        return finding
    return replace(finding, detail=finding.detail + not_begun(later, noun))


def not_begun(later: Sequence[str], noun: str) -> str:
    """Return a clause, with its semicolon, that names what was not begun; "" for nothing."""
    if not later:
        return ""
    return f"; {counted(len(later), noun)} {'was' if len(later) == 1 else 'were'} not begun: {listed(later)}"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def place(one: Checked) -> tuple[str, int]:
    """Return the file of a target and the line of its function; "" and 0 where unknown.

    That is where the file that the target names binds its name, by an import if by nothing else.
    """
    if one.finding.line:
        return shown_path(Path(one.finding.file)), one.finding.line
    if one.kind == "code":
        return _of_code(one.target)
    path = Path(one.target)
    if path.is_dir():
        path /= MANIFEST if one.kind == "case" else "config.json"
    return (shown_path(path), 0) if path.is_file() else ("", 0)


def _of_code(target: str) -> tuple[str, int]:
    """Return the file and line of code, from the path or module in its target."""
    where, _, name = target.rpartition(":")
    files = [Path(where)] if where.endswith(".py") else []
    if not files and (own := own_files.of_module(where, "")):
        module = Path(own.folder).joinpath(*where.split("."))
        files = [module / "__init__.py", module.with_name(f"{module.name}.py")]
    path = next((path for path in files if path.is_file()), None)
    if path is None:  # an installed package, or a name of `list implementations`
        return "", 0
    line = 0
    try:
        tree: ast.AST = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return shown_path(path), line
    for part in name.split("."):  # to the innermost part of a dotted name that is there
        found = [node for node in _defined(tree) if part in _bound(node)]
        if not found:
            break
        tree, line = found[-1], found[-1].lineno
    return shown_path(path), line


def _defined(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a body, also under conditions, not within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _defined(node)


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines, imports or assigns to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
