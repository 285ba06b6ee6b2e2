"""Where the tokens of a grid stand on each axis: exactly, and as code computes it in a number format.

Letters: n tokens along an axis. Units: those of the preset's positions.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.axial import AxialRope

Floats = NDArray[np.float64]
Ends = tuple[Fraction, Fraction]  # first and last position of an axis that a grid is fitted to


@functools.lru_cache(maxsize=64)
def exact(rope: AxialRope, sizes: tuple[int, ...]) -> tuple[Floats, ...]:
    """Return the positions along each axis, each the float64 number nearest to its formula. -> (n,) each."""
    ends = _fitted(rope, sizes)
    tables = [
        np.array([float(_position(rope, axis, n, i, ends)) for i in range(n)]) for axis, n in enumerate(sizes)
    ]
    for table in tables:
        table.setflags(write=False)
    return tuple(tables)


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


@functools.lru_cache(maxsize=256)
def computed(rope: AxialRope, sizes: tuple[int, ...], fmt: Format) -> tuple[Floats, ...]:
    """Return the positions along each axis as the source's operations give them, each rounded to `fmt`.

    Sources: "centres": transformers 5.23.0, dinov3_vit, get_patches_center_coordinates; "normalised":
    diffusers 0.42.1, LTXVideoRotaryPosEmbed; "fitted": get_3d_rotary_pos_embed, torch's linspace with a
    fused multiplication and addition. Shapes: -> (n,) each.
    """
    ends, wholes = _fitted(rope, sizes), exact(rope, sizes)

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
            table = rounded(wholes[axis])
        table.setflags(write=False)
        tables.append(table)
    return tuple(tables)


def _fitted(rope: AxialRope, sizes: tuple[int, ...]) -> dict[int, Ends]:
    """Return the ends of h and w where a grid is laid over `extent`, centrally and in its own ratio.

    Source: diffusers 0.42.1, pipelines/cogvideo/pipeline_cogvideox.py, get_resize_crop_region_for_grid.
    """
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
