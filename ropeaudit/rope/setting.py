"""RopeSetting: the rotary embedding of a model, without any number format."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropeaudit.errors import BadShape, UnknownName, UsageError
from ropeaudit.rope.axes import LARGEST_BASE, LARGEST_DIM, LAYOUTS, Layout
from ropeaudit.rope.scaling import DEFAULT, Scaling

if TYPE_CHECKING:
    from ropeaudit.rope.grids import Grid

PAIRS = {"half": "half-split pairs", "interleaved": "interleaved pairs"}  # layouts in words
SMALLEST_CLIP, LARGEST_CLIP = 1e-100, 1e15  # radians; the exact sine is that of at most 2^53


@dataclass(frozen=True, slots=True)
class RopeSetting:
    """The rotary embedding of one attention layer.

    head_dim: dimensions of a head. rotary_dim: how many of them, the first ones, are rotated.
    base: theta of the frequencies base^(-2i/rotary_dim), radians per token.
    layout: "half" pairs dims i and i + rotary_dim/2, "interleaved" pairs 2i and 2i + 1.
    scale: the softmax scale that multiplies q·k; taken as exact.
    scaling: how the frequencies are changed. length: the number of positions that they are computed
    for, where they depend on it (dynamic, longrope). clip: angles are capped at +-clip radians.
    grid: tokens with positions on several axes; None for a sequence. It says the frequencies then, base and
    scaling do not.
    Raises: BadShape, UsageError, UnknownName.
    """

    head_dim: int = 128
    rotary_dim: int = 128
    base: float = 10000.0
    layout: Layout = "half"
    scale: float = 1.0 / math.sqrt(128)
    scaling: Scaling = DEFAULT
    length: int = 0
    clip: float = math.inf
    grid: Grid | None = None

    @classmethod
    def of(
        cls,
        head_dim: int = 128,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        layout: Layout = "half",
        scale: float | None = None,
        scaling: Scaling = DEFAULT,
        length: int = 0,
        clip: float = math.inf,
    ) -> RopeSetting:
        """Make a setting; rotary_dim defaults to head_dim and scale to 1/sqrt(head_dim)."""
        _check_dim("head_dim", head_dim)
        scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        return cls(head_dim, rotary_dim, base, layout, scale, scaling, length, clip)

    def __post_init__(self) -> None:
        _check_dim("head_dim", self.head_dim)
        if self.rotary_dim != 0:
            _check_dim("rotary_dim", self.rotary_dim)
        if self.rotary_dim > self.head_dim:
            raise BadShape(
                f"rotary_dim {self.rotary_dim} is larger than head_dim {self.head_dim}",
                f"give --rotary-dim {self.head_dim} or less",
            )
        if not 1.0 < self.base <= LARGEST_BASE:
            raise UsageError(
                f"base {self.base!r} is not a finite number above 1, up to 1e100; try --base 10000"
            )
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise UsageError(f"scale {self.scale!r} is not a finite number above 0")
        if not (self.clip == math.inf or SMALLEST_CLIP <= self.clip <= LARGEST_CLIP):
            raise UsageError(
                f"clip {self.clip!r} is not an angle from 1e-100 to 1e15; try --clip 1000 or inf"
            )
        if self.layout not in LAYOUTS:
            raise UnknownName("layout", self.layout, LAYOUTS)
        for name in ("short", "long", "frequencies"):
            values = getattr(self.scaling, name)
            if values is not None and len(values) != self.pairs:
                raise BadShape(
                    f"scaling {self.scaling.kind}: {name} has {len(values)} elements and there are "
                    f"{self.pairs} pairs",
                    f"give one per pair, or --rotary-dim {2 * len(values)}",
                )
        if self.scaling.kind == "dynamic" and self.rotary_dim == 2:
            raise UsageError("scaling dynamic is not defined for rotary_dim 2")

    def for_positions(self, count: int) -> RopeSetting:
        """Return the setting with the frequencies for a number of positions."""
        length = self.scaling.length_for(count)
        return self if length == self.length else replace(self, length=length)

    def short_and_long(self) -> list[RopeSetting]:
        """Return the setting, and for longrope also that of sequences with the long divisors."""
        before = int(self.scaling.original or 0)
        return [self, *([replace(self, length=before + 1)] if self.scaling.kind == "longrope" else [])]

    @property
    def pairs(self) -> int:
        """p: the number of rotated pairs."""
        return self.rotary_dim // 2

    @property
    def clipped(self) -> bool:
        """Whether angles are capped, so that scores depend on more than the distance."""
        return math.isfinite(self.clip)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, one of NumPy too."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _check_dim(name: str, value: int) -> None:
    if not 2 <= value <= LARGEST_DIM or value % 2:
        flag = "--" + name.replace("_", "-")
        near = value - value % 2 if 2 <= value <= LARGEST_DIM else 128
        raise BadShape(f"{name} {value} is not an even number from 2 to {LARGEST_DIM}", f"try {flag} {near}")
