"""The options of all checks, a target, and the result of one check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import INTERRUPTED, JUDGED, MARGIN, Finding
from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.reports.numbers import counted, short
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.paths import shown_path

Kind = Literal["code", "model", "config", "checkpoint", "gguf", "case"]
Progress: TypeAlias = Callable[[float], None]
Note: TypeAlias = Callable[[Sequence[str]], None]
NONE = "none"  # the dtype or layer type of a check without one
_MOST = 3  # names that a sentence lists


@dataclass(frozen=True, slots=True)
class Checked(Result):
    """The result of one check of a target. up_to: positions, 0 if they do not matter.

    version: of the target. setting: the RoPE setting; None if none could be read. layer: layer type in a
    config. device: where code was executed.
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
        """The name of the check, with its layer type and dtype."""
        layer = f" of {self.layer}" if self.layer not in (NONE, "full_attention") else ""
        return self.finding.check + layer + ("" if self.dtype == NONE else f" in {self.dtype}")

    @property
    def measurement(self) -> str:
        """What was measured and what is allowed, in words; empty without a number."""
        finding = self.finding
        if math.isnan(finding.measured):
            return ""
        word = "needed" if finding.unit == MARGIN else "allowed"
        shown = "{:,.0f}".format if finding.unit == "positions" else short
        allowed = "" if math.isnan(finding.allowed) else f", {word} {shown(finding.allowed)}"
        return f"{shown(finding.measured)} {finding.unit}{allowed}"

    @property
    def result_words(self) -> str:
        """The measurement and its place, else the detail of the finding."""
        measured = self.measurement
        return ", ".join(filter(None, [measured, self.finding.where] if measured else [self.finding.detail]))

    @property
    def judged(self) -> bool:
        """Whether it passed, failed or is waived, and is not the row of an interruption."""
        return self.finding.status in JUDGED and self.finding.check != INTERRUPTED


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options that apply to all targets; None or empty for the default of the kind of target.

    up_to: number of positions. text, tokens: input of a model, which is run with it. returned: file or folder
    that a kernel wrote for a case of vectors. thorough: whether slow checks are made too. head_dims: whether
    other head sizes are tried too. negative: whether negative positions are tried too. device: where code is
    called, and a model runs. environments: names of environments in which code is called too.
    write_wrapper: file for a wrapper of code whose call is not understood. xpos: whether the lengths of xPos
    are removed from results. one_layer: whether a layer type was named. table: code that makes the tables
    that code takes. arguments: of code, by name.
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
    negative: bool = False
    device: str | None = None
    environments: Sequence[str] = DEFAULT
    write_wrapper: str | None = None
    xpos: bool = False
    one_layer: bool = False
    table: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """A requested target. case: the RoPE setting of the options. note: takes notes."""

    name: str
    kind: Kind
    case: Case
    options: CheckOptions
    note: Note
    version: str = NONE

    def checked(
        self,
        finding: Finding,
        dtype: str = NONE,
        case: Case | None = None,
        **more: Any,
    ) -> Checked:
        """Return the result of a check. case: that of a layer type."""
        if case is not None:
            maximum = case.maximum or 0
            more = {"setting": case.setting(maximum or 1), "up_to": maximum, "layer": case.layer, **more}
        about = {"version": self.version, "setting": None, "up_to": 0, **more}
        return Checked(self.name, self.kind, dtype=dtype, finding=finding, **about)


def not_started_clause(later: Sequence[str], noun: str) -> str:
    """Return a clause, with a semicolon, that names what was not started; empty for nothing."""
    if not later:
        return ""
    were = "was" if len(later) == 1 else "were"
    return f"; {counted(len(later), noun)} {were} not begun: {first_names(later)}"


def first_names(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def place_of(check: Checked) -> tuple[str, int]:
    """Return file and line of a check; "" and 0 if unknown."""
    if check.finding.line:
        return shown_path(Path(check.finding.file)), check.finding.line
    path = Path(check.target.rpartition(":")[0] if check.kind == "code" else check.target)
    if check.kind != "code" and path.is_dir():
        path /= MANIFEST if check.kind == "case" else "config.json"
    return (shown_path(path), 0) if path.is_file() else ("", 0)
