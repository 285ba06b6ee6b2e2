"""The stages of a rotation by others' code: formats that can be changed, and what torch did in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

TABLES = ("position", "frequency", "angle", "trig", "table")  # stages of tables that code may be given
Changes: TypeAlias = Mapping[str, str]  # stage -> format name
NO_CHANGES: Changes = MappingProxyType({})


@dataclass(slots=True)
class StageLog:
    """The dtypes, in order, and operations of torch in one stage.

    products: the matrix products among them, with the dtype of their factors. narrow: the number, file and
    line of the first operation of others' code whose result has fewer bits than float32.
    """

    dtypes: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    products: dict[str, str] = field(default_factory=dict)
    narrow: tuple[int, str, int] | None = None
