"""Small curves in text, and the distances that one shows: a few round ones, or enough for a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropeaudit.reports.numbers import short

_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def readable(first: int, last: int) -> list[int]:
    """Return a few round distances from `first` to `last`, both included: the rows of a table.

    1, 2, 5, 10, ... over a wide range, 17 evenly spaced ones over a narrow one.
    >>> readable(0, 50)
    [0, 1, 2, 5, 10, 20, 50]
    """
    if _wide(first, last):
        steps = [digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5)]
        results = [first, *(step for step in steps if first < step < last), last]
    else:
        results = [first + round((last - first) * part / 16) for part in range(17)]
    return list(dict.fromkeys(results))


def dense(first: int, last: int, count: int = 512) -> list[int]:
    """Return about `count` distances: those of a curve, and evenly spaced ones of the farther half."""
    parts = np.linspace(0.0, 1.0, count)
    if _wide(first, last):
        low, high = math.log1p(first), math.log1p(last)
        result = np.rint(np.expm1(low + (high - low) * parts))
    else:
        result = np.rint(first + (last - first) * parts)
    far = np.rint(np.linspace((first + last) / 2, last, count // 4))
    inner = (min(max(int(x), first), last) for x in np.concatenate([result, far]))
    return sorted({first, *inner, last})


def _wide(first: int, last: int) -> bool:
    return last >= 20 * max(first, 1)


def curve(xs: Sequence[int], ys: Any, width: int = 48, height: int = 4, plain: bool = False) -> list[str]:
    """Return the lines of a curve: Braille dots, or ASCII if `plain`. Shapes: (s,), xs ascending.

    The vertical axis holds 0; the horizontal one is log(1 + x) if the range is wide.
    """
    across, down = (1, 2) if plain else (2, 4)
    values, wide = np.asarray(ys, np.float64), _wide(xs[0], xs[-1])
    at = np.log1p(np.array(xs, float)) if wide else np.array(xs, float)
    at = (at - at[0]) / (at[-1] - at[0]) * (width * across - 1)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    level = (high - values) / ((high - low) or 1.0) * (height * down - 1)
    dots = np.zeros((height * down, width * across), bool)
    between = np.interp(np.arange(width * across), at, level)
    before = between[0]
    for column, middle in enumerate(between):
        here = level[np.rint(at) == column]
        reach = [middle, before, *here]
        dots[round(min(reach)) : round(max(reach)) + 1, column] = True
        before = here[-1] if here.size else middle
    lines = [_line(dots[down * r : down * (r + 1)], across, plain) for r in range(height)]
    labels = [short(high), *[""] * (height - 2), short(low)]
    scale = f"{xs[0]}{str(xs[-1]) + (' (log)' if wide else ''):>{width - len(str(xs[0]))}}"
    return [f"{label:>8} {line}".rstrip() for label, line in zip(labels, lines, strict=True)] + [
        f"{'':8} {scale}"
    ]


def _line(dots: Any, across: int, plain: bool) -> str:
    cells = dots.reshape(dots.shape[0], -1, across).transpose(1, 2, 0)
    if plain:
        return "".join(" '.:"[int(up) + 2 * int(low)] for ((up, low),) in cells)
    codes = [
        sum(bit for bit, on in zip(sum(_BRAILLE, ()), cell.ravel(), strict=True) if on) for cell in cells
    ]
    return "".join(chr(0x2800 + code) if code else " " for code in codes)
