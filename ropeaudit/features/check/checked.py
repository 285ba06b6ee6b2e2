"""What is requested of every target, and one check, with its place in a file."""

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
    def judged(self) -> bool:
        """Whether it passed, failed or is waived; what says that there is no more of a target did not."""
        return self.finding.status in JUDGED and self.finding.check != INTERRUPTED


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is requested of every target; what is None or empty goes by the kind of target.

    up_to: number of positions. text, tokens: what a whole model is to read, which runs it. returned: where a
    kernel wrote what a case of vectors asks for. thorough: whether what takes long is done too. head_dims:
    whether heads of other sizes are tried too. negative: whether negative positions are given too. device:
    where code is called, and a whole model runs. environments: names of those that code is called in too.
    write_wrapper: where a wrapper to edit goes, of code that is not understood. xpos: whether the lengths of
    xPos are left out of what code returns. one_layer: whether a layer type of the config was named. table:
    the code that makes the tables of code that takes some.
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
    """A thing to check as it was asked for: what each kind of it makes its checks from.

    case: the RoPE setting of the options. note: gets remarks on how it is read or called.
    """

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
        """Return a finding as a check. case: of a layer type; None without one."""
        if case is not None:
            maximum = case.maximum or 0
            more = {"setting": case.setting(maximum or 1), "up_to": maximum, "layer": case.layer, **more}
        about = {"version": self.version, "setting": None, "up_to": 0, **more}
        return Checked(self.name, self.kind, dtype=dtype, finding=finding, **about)


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
    """Return the file and line of what was checked; "" and 0 where unknown."""
    if one.finding.line:
        return shown_path(Path(one.finding.file)), one.finding.line
    path = Path(one.target.rpartition(":")[0] if one.kind == "code" else one.target)
    if one.kind != "code" and path.is_dir():
        path /= MANIFEST if one.kind == "case" else "config.json"
    return (shown_path(path), 0) if path.is_file() else ("", 0)
