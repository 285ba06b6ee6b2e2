"""Grids of tokens, an image or video, with a position on each of several axes.

A position is an exact float64 number, rounded once; code computes it in a number format. A token is known by
its step, its place in the order of the rows: the last axis changes first.
Letters: s tokens, n of them along an axis, a axes, p pairs. Units: those of the preset's positions.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.rope.axes import AXES, Axes, Layout
from ropeaudit.rope.axial import AxialRope

_LARGEST_ANGLE = 2.0**52  # radians: beyond, not even float64 tells a place on a turn
_SIZES = re.compile(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})*")
Floats = NDArray[np.float64]
Ends = tuple[Fraction, Fraction]  # first and last position of an axis that a grid is fitted to


@dataclass(frozen=True, slots=True)
class Grid:
    """The tokens of a grid under a preset, and how an offset moves them.

    sizes: tokens along each axis. shifted: the axes that an offset moves. step: the distance of an offset of
    1, in the unit of the positions.
    """

    rope: AxialRope
    sizes: tuple[int, ...]
    shifted: tuple[str, ...]
    step: float = 1.0

    def __post_init__(self) -> None:
        for name in self.shifted:
            if name not in self.rope.axes:
                raise UnknownName("axis", name, self.rope.axes, "(or all)")
        if not (math.isfinite(self.step) and self.step > 0):
            raise UsageError(f"--step {self.step!r} is not a finite number above 0; try --step 0.5")

    @property
    def count(self) -> int:
        """s: the number of tokens."""
        return math.prod(self.sizes)

    def positions(self, steps: NDArray[np.int64] | None = None) -> Floats:
        """Return exact positions of `steps`, or of all. Shapes: steps (s,) -> (s, a)."""
        steps = np.arange(self.count, dtype=np.int64) if steps is None else steps
        return self._per_token(exact_positions(self.rope, self.sizes), steps)

    def computed(self, steps: NDArray[np.int64], fmt: Format) -> Floats:
        """Return positions as code in `fmt` computes them. Shapes: steps (s,) -> (s, a)."""
        return self._per_token(computed_positions(self.rope, self.sizes, fmt), steps)

    def _per_token(self, tables: tuple[Floats, ...], steps: NDArray[np.int64]) -> Floats:
        """Return positions by axis. Shapes: tables (n,) each, steps (s,) -> (s, a)."""
        places = np.unravel_index(steps % self.count, self.sizes)
        return np.stack([table[at] for table, at in zip(tables, places, strict=True)], axis=1)

    def shift(self, offset: int) -> Floats:
        """Return the distance by which an offset moves each axis. Shapes: -> (a,), in float64."""
        return np.array([offset * self.step if name in self.shifted else 0.0 for name in self.rope.axes])

    def of_pairs(self) -> NDArray[np.int64]:
        """Return the axis of every pair. Shapes: -> (p,)."""
        return np.array([pair.axis for pair in self.rope.pairs()], dtype=np.int64)

    def in_blocks(self) -> NDArray[np.int64]:
        """Return the half-split dims, grouped by axis. Shapes: -> (d,)."""
        axes = self.of_pairs()
        pairs = [np.flatnonzero(axes == axis) for axis in range(len(self.sizes))]
        dims = [part + begin for part in pairs for begin in (0, axes.size)]
        return np.concatenate([*dims, np.arange(2 * axes.size, self.rope.head_dim)])

    def per_pair(self, steps: NDArray[np.int64]) -> Floats:
        """Return positions on the axis of each pair. Shapes: steps (s,) -> (s, p)."""
        return np.asarray(self.positions(steps)[:, self.of_pairs()])

    def check(self, offset: int) -> None:
        """Raise UsageError if an offset moves a token to where angles lose all meaning."""
        tables = exact_positions(self.rope, self.sizes)
        farthest = max(float(np.abs(table).max()) for table in tables)
        most = _LARGEST_ANGLE / self.rope.fastest
        if not farthest + abs(offset) * self.step <= most:
            where = f"the farthest position of {self.rope.name}"
            raise UsageError(f"offset {offset} at --step {self.step:g} is past {most:.3g}, {where}")

    @property
    def words(self) -> str:
        """The number of tokens along each axis, and their first position, in words."""
        sizes = " x ".join(f"{size} {axis}" for size, axis in zip(self.sizes, self.rope.axes, strict=True))
        starts = sorted({int(start) for start in self.rope.start if start > 0})
        return sizes + (f" from position {starts[-1]:,} on" if starts else "")

    def __str__(self) -> str:
        counts = "/".join(str(np.count_nonzero(self.of_pairs() == axis)) for axis in range(len(self.sizes)))
        of_file = f" {self.rope.digest}" if self.rope.digest else ""
        return f"{counts} shifted {''.join(self.shifted)}{of_file}"


def parse(rope: AxialRope, grid: str, shifted: str = "all", step: float = 1.0) -> Grid:
    """Read "32x32" or "16x32x32", and "all", "t", "h", "w" or several such as "hw".

    A preset with a time axis takes an image too: it is one frame. Raises: UsageError, UnknownName.
    """
    text = grid.strip().lower()
    if not _SIZES.fullmatch(text):
        raise UsageError(f"--grid {grid!r} is not sizes up to 99999 with an x between; try --grid 32x32")
    sizes = [int(word) for word in text.split("x")]
    if len(sizes) == len(rope.axes) - 1 and rope.axes[0] == "t":
        sizes.insert(0, 1)
    if len(sizes) != len(rope.axes):
        example = "x".join({"t": "16", "h": "32", "w": "32"}[name] for name in rope.axes)
        raise UsageError(
            f"--grid {grid} has {len(sizes)} sizes and {rope.name} the axes {', '.join(rope.axes)}; "
            f"try --grid {example}"
        )
    return Grid(rope, tuple(sizes), rope.axes if shifted == "all" else tuple(shifted), step)


def of_sections(
    axes: Axes,
    base: float,
    head_dim: int,
    layout: Layout,
    sizes: str,
    start: int,
) -> Grid:
    """Return the grid of a video's tokens under M-RoPE, each axis counted from `start`."""
    dims, one = tuple(2 * count for count in axes.sections), (Fraction(1),) * 3
    rope = AxialRope(
        *("mrope", AXES, dims, (base,) * 3, head_dim, axes.arrangement, "1", layout),
        *(("index",) * 3, (Fraction(start),) * 3, one, one),
    )
    return parse(rope, sizes)


@functools.lru_cache(maxsize=64)
def exact_positions(rope: AxialRope, sizes: tuple[int, ...]) -> tuple[Floats, ...]:
    """Return the nearest float64 positions along each axis. Shapes: -> (n,) each."""
    ends = _centred_ends(rope, sizes)
    return tuple(
        np.array([float(_position(rope, axis, n, i, ends)) for i in range(n)]) for axis, n in enumerate(sizes)
    )


def _position(rope: AxialRope, axis: int, n: int, i: int, ends: dict[int, Ends]) -> Fraction:
    rule = rope.positions[axis]
    if rule == "halves":
        return Fraction(i - (n - n // 2))
    if rule == "centres":
        return Fraction(2 * i + 1, n) - 1
    if rule == "normalised":
        return 2 * i * rope.unit[axis] / rope.extent[axis] - 1
    if rule == "fitted":
        first, last = ends[axis]
        return first + i * (last - first) / max(1, n - 1)
    return rope.start[axis] + i


def computed_positions(rope: AxialRope, sizes: tuple[int, ...], fmt: Format) -> tuple[Floats, ...]:
    """Return positions along each axis by the source's operations, rounded to `fmt`.

    Sources: "centres": transformers 5.23.0, dinov3_vit, get_patches_center_coordinates; "normalised":
    diffusers 0.42.1, LTXVideoRotaryPosEmbed; "fitted": get_3d_rotary_pos_embed, torch's linspace with a
    fused multiplication and addition. Shapes: -> (n,) each.
    """
    ends, exact = _centred_ends(rope, sizes), exact_positions(rope, sizes)

    def rounded(values: Floats | float) -> Floats:
        return round_to(np.asarray(values, dtype=np.float64), fmt).astype(np.float64)

    tables = []
    for axis, n in enumerate(sizes):
        rule, i = rope.positions[axis], np.arange(n, dtype=np.float64)
        if rule == "centres":
            table = rounded(2.0 * rounded(rounded(i + 0.5) / n) - 1.0)
        elif rule == "normalised":
            scaled = rounded(rounded(i) * rounded(float(rope.unit[axis])))
            table = rounded(2.0 * rounded(scaled / float(rope.extent[axis])) - 1.0)
        elif rule == "fitted" and n > 1:
            first, last = (rounded(float(end)) for end in ends[axis])
            step = rounded(rounded(last - first) / (n - 1))
            table = rounded(np.where(i < n // 2, first + step * i, last - step * (n - 1 - i)))
        else:
            table = rounded(exact[axis])
        tables.append(table)
    return tuple(tables)


def _centred_ends(rope: AxialRope, sizes: tuple[int, ...]) -> dict[int, Ends]:
    """Return the ends of h and w for a grid centred in `extent`."""
    if "fitted" not in rope.positions:
        return {}
    h, w = rope.axes.index("h"), rope.axes.index("w")
    tall, wide = int(rope.extent[h]), int(rope.extent[w])
    tallest = sizes[h] / sizes[w] > tall / wide
    high = tall if tallest else round(wide / sizes[w] * sizes[h])
    broad = round(tall / sizes[h] * sizes[w]) if tallest else wide
    top, left = round((tall - high) / 2.0), round((wide - broad) / 2.0)
    return {
        axis: (Fraction(first), Fraction((first + length) * (n - 1), n))
        for axis, first, length, n in ((h, top, high, sizes[h]), (w, left, broad, sizes[w]))
    }
