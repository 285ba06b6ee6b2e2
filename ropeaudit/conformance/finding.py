"""Provisional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["pass", "fail", "not applicable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    check: str
    status: Status
    detail: str = ""
    measured: float = float("nan")
    allowed: float = float("nan")
    unit: str = ""
    where: str = ""
    resembles: str = ""
    differing: float = float("nan")
