"""In which frequencies the drift sits: the part of every pair over its wavelength."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.reports.plots import style
from ropeaudit.reports.plots.style import Picture


def draw(rows: Sequence[Mapping[str, Any]], headline: str, length: int | None) -> Picture:
    """Return the picture of rows by pair. length: positions, where fast pairs end; None if unknown."""
    kept, notes = style.cases(rows, style.MOST_LINES)
    made, (axes,) = style.figure(headline)
    axes.set_xscale("log")
    axes.set_yscale("log")
    lost, zero = [], []
    for number, (name, some) in enumerate(kept.items()):
        look = style.line(number) | {"markersize": 3.5, "linewidth": 1.0}
        pairs = [(row["wavelength"], row["part_rms"]) for row in some if _finite(row["wavelength"])]
        pairs = sorted((x, math.nan if y is None else y) for x, y in pairs)
        lost += [x for x, y in pairs if math.isnan(y)]
        zero += [x for x, y in pairs if y == 0]
        axes.plot([x for x, _ in pairs], [y if y else math.nan for _, y in pairs], label=name, **look)
        for row in some:
            if isinstance(row["pair"], str) and row["part_rms"]:  # of no pair
                dots = {"color": look["color"], "linestyle": (0, (1, 2)), "linewidth": 1.0}
                axes.axhline(row["part_rms"], label=f"{name}: {row['pair']}", **dots)
    if lost:
        style.edge(axes, sorted(set(lost)), True, style.RED, "nan or infinite")
    if zero:
        style.edge(axes, sorted(set(zero)), False, style.GREY, "no drift at all")
    if length:
        axes.axvline(length, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        text = f"← fast   {length:,} positions   slow →"
        axes.text(
            length, 1.0, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=7
        )
    axes.set_xlabel("wavelength of the frequency pair (tokens of a full turn)")
    axes.set_ylabel("RMS drift of the pair (score units)")
    style.legend(axes)
    return Picture(made, headline, notes)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
