"""Small curves as text: Braille dots, or ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ropeaudit.reports.charts.axes import is_wide, x_scale, y_scale
from ropeaudit.reports.charts.series import Series
from ropeaudit.reports.numbers import printable, short

_BRAILLE = np.array([0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80])  # dots of a cell, row by row


def dense(first: int, last: int, count: int = 512) -> list[int]:
    """Return about `count` distances: those of a curve, and evenly spaced ones of the farther half."""
    parts = np.linspace(0.0, 1.0, count)
    if is_wide(first, last):
        low, high = math.log1p(first), math.log1p(last)
        curved = np.rint(np.expm1(low + (high - low) * parts))
    else:
        curved = np.rint(first + (last - first) * parts)
    far = np.rint(np.linspace((first + last) / 2, last, count // 4))
    inner = (min(max(int(x), first), last) for x in np.concatenate([curved, far]))
    return sorted({first, *inner, last})


def curves(lines: Sequence[Series], most: int, width: int = 48, plain: bool = False) -> str:
    """Return the first `most` lines with their labels above them, and how many more there are.

    Lines of a single point, or with a value that is not finite, have no curve.
    """
    parts = [
        "\n".join([printable(line.label), *curve(line, width, plain=plain)])
        for line in lines[:most]
        if len(line.points) > 1 and not line.nonfinite()
    ]
    if len(lines) > most:
        parts.append(f"{len(lines) - most} more curves are not drawn.")
    return "\n\n".join(parts)


def curve(line: Series, width: int = 48, height: int = 4, plain: bool = False) -> list[str]:
    """Return the text lines of a curve of finite points, in characters: Braille dots, or ASCII if `plain`.

    The vertical axis holds 0; the horizontal one is logarithmic if its range is wide.
    """
    across, down = (1, 2) if plain else (2, 4)  # dots of a character
    xs, ys = [int(point.x) for point in line.points], [point.y for point in line.points]
    horizontal, vertical = x_scale(xs), y_scale(ys)
    columns = np.array([horizontal.share(x) * (width * across - 1) for x in xs])
    levels = np.array([vertical.share(y) * (height * down - 1) for y in ys])
    dots = np.zeros((height * down, width * across), bool)
    between = np.interp(np.arange(width * across), columns, levels)
    before = between[0]
    for column, middle in enumerate(between):
        here = levels[np.rint(columns) == column]
        reach = [middle, before, *here]
        dots[round(min(reach)) : round(max(reach)) + 1, column] = True
        before = here[-1] if here.size else middle
    rows = [_characters(dots[down * r : down * (r + 1)], across, plain) for r in range(height)]
    labels = [short(max(0.0, *ys)), *[""] * (height - 2), short(min(0.0, *ys))]
    last = f"{xs[-1]}{' (log)' if is_wide(xs[0], xs[-1]) else ''}"
    scale = f"{xs[0]}{last:>{width - len(str(xs[0]))}}"
    texts = [f"{label:>8} {row}".rstrip() for label, row in zip(labels, rows, strict=True)]
    return [*texts, f"{'':8} {scale}"]


def _characters(dots: NDArray[np.bool_], across: int, plain: bool) -> str:
    """Return a row of characters. Shapes: (dots down a character, dots across the row)."""
    cells = dots.reshape(dots.shape[0], -1, across).transpose(1, 0, 2)
    if plain:
        return "".join(" '.:"[int(upper) + 2 * int(lower)] for ((upper,), (lower,)) in cells)
    codes = cells.reshape(len(cells), -1) @ _BRAILLE
    return "".join(chr(0x2800 + code) if code else " " for code in codes.tolist())
