"""What is requested of every target, and one check of a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits.results import Result
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import Finding
from ropeaudit.features.check.targets import Kind
from ropeaudit.rope.setting import RopeSetting

Progress: TypeAlias = Callable[[float], None]
Note: TypeAlias = Callable[[Sequence[str]], None]
NONE = "none"  # a dtype or a layer type where a check has none


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


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is requested of every target; what is None or empty goes by the kind of target.

    up_to: number of positions. text, tokens: what a whole model is to read, which runs it. returned: where a
    kernel wrote what a case of vectors asks for. thorough: whether what takes long is done too. head_dims:
    whether heads of other sizes are tried too. device: where code is called, and a whole model runs.
    environments: names of those that code is called in too. write_wrapper: where a wrapper to edit goes, of
    code that is not understood.
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
