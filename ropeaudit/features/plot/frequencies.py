"""In which frequencies the drift sits: the part of every pair over its wavelength."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.plot import style
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports.charts.series import Series, points
from ropeaudit.reports.numbers import part


def draw(rows: Sequence[Mapping[str, Any]], length: int) -> Picture:
    """Return the picture of rows by pair. length: positions of the sequence, where fast pairs end."""
    cases, notes = style.cases(rows, style.MOST_LINES)
    title = _title(cases, length)
    figure, (axes,) = style.figure(title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    nonfinite: set[float] = set()
    zeros: set[float] = set()
    level: dict[str, dict[str, Any]] = {}
    for number, (name, group) in enumerate(cases.items()):
        look = style.line(number) | {"markersize": 3.5 * style.scale(), "linewidth": style.scale()}
        pairs = [row for row in group if _finite(row["wavelength"])]
        line = Series(name, points(pairs, "wavelength", "part_rms"), number)
        nonfinite.update(line.nonfinite())
        zeros.update(line.zeros())
        values = [point.y if point.y else math.nan for point in line.points]
        axes.plot([point.x for point in line.points], values, label=name, **look)
        for row in group:
            if isinstance(row["pair"], str) and row["part_rms"]:  # of no pair
                dashes = (2 * number, (2, 2 * len(cases)))  # lines on one another take turns
                axes.axhline(row["part_rms"], color=look["color"], linestyle=dashes, linewidth=1.0)
                level[row["pair"]] = {"color": style.GREY, "linestyle": (0, (2, 2)), "linewidth": 1.0}
    for text, dots in level.items():
        axes.plot([], [], label=text, **dots)
    if nonfinite:
        style.edge(axes, sorted(nonfinite), True, style.RED, "nan or infinite")
    if zeros:
        style.edge(axes, sorted(zeros), False, style.GREY, "no drift at all")
    if length:
        axes.axvline(length, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        text, above = f"← fast   {length:,} positions   slow →", axes.get_xaxis_transform()
        axes.text(length, 1.0, text, transform=above, ha="center", va="bottom", fontsize="small")
    axes.set_xlabel("wavelength of the frequency pair (tokens of a full turn)")
    axes.set_ylabel("RMS drift (score units)")
    style.legend(figure, axes)
    return Picture(figure, title, notes)


def _title(groups: Mapping[str, Sequence[Mapping[str, Any]]], length: int) -> str:
    """Return where the drift of the case that drifts most sits."""

    def drift(name: str) -> float:
        return math.fsum(row["part_rms"] ** 2 for row in groups[name] if row["part_rms"] is not None)

    name = max(groups, key=drift)
    pairs = [row for row in groups[name] if _finite(row["wavelength"]) and _finite(row["share"])]
    if not pairs:
        return f"{name}: no finite drift to share out"
    fast = sum(row["share"] for row in pairs if row["wavelength"] < length)
    slow = sum(row["share"] for row in pairs if row["wavelength"] >= length)
    return (
        f"{name}: pairs that turn within {length:,} positions hold {part(fast)} of the drift, slower ones "
        f"{part(slow)}"
    )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
