"""RopeSetting: what a model says about its rotary embedding, apart from any number format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ropeaudit.errors import BadShape, UnknownName, UsageError

Layout: TypeAlias = Literal["half", "interleaved"]
LAYOUTS: tuple[str, ...] = get_args(Layout)


@dataclass(frozen=True, slots=True)
class RopeSetting:
    """The rotary embedding of one attention layer.

    head_dim: dimensions of a head. rotary_dim: how many of them, the first ones, are rotated.
    base: theta of the frequencies base^(-2i/rotary_dim), radians per token.
    layout: "half" pairs dims i and i + rotary_dim/2, "interleaved" pairs 2i and 2i + 1.
    scale: the softmax scale that multiplies q·k; taken as exact.
    Raises: BadShape, UsageError, UnknownName.
    """

    head_dim: int = 128
    rotary_dim: int = 128
    base: float = 10000.0
    layout: Layout = "half"
    scale: float = 128**-0.5

    @classmethod
    def of(
        cls,
        head_dim: int = 128,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        layout: Layout = "half",
        scale: float | None = None,
    ) -> RopeSetting:
        """Make a setting; rotary_dim defaults to head_dim and scale to 1/sqrt(head_dim)."""
        _check_dim("head_dim", head_dim)
        if scale is None:
            scale = 1.0 / math.sqrt(head_dim)
        return cls(head_dim, head_dim if rotary_dim is None else rotary_dim, base, layout, scale)

    def __post_init__(self) -> None:
        _check_dim("head_dim", self.head_dim)
        if self.rotary_dim != 0:
            _check_dim("rotary_dim", self.rotary_dim)
        if self.rotary_dim > self.head_dim:
            raise BadShape(
                f"rotary_dim {self.rotary_dim} is larger than head_dim {self.head_dim}; "
                f"give --rotary-dim {self.head_dim} or less"
            )
        if not (math.isfinite(self.base) and self.base > 1.0):
            raise UsageError(f"base {self.base!r} is not a finite number above 1; try --base 10000")
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise UsageError(f"scale {self.scale!r} is not a finite number above 0")
        if self.layout not in LAYOUTS:
            raise UnknownName("layout", self.layout, LAYOUTS)

    @property
    def pairs(self) -> int:
        """p: how many pairs of dimensions are rotated."""
        return self.rotary_dim // 2


def _check_dim(name: str, value: int) -> None:
    if value < 2 or value % 2:
        flag = "--" + name.replace("_", "-")
        raise BadShape(f"{name} {value} is not an even number from 2 up; try {flag} 128")
