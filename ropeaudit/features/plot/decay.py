"""Scores against distance: how much of them is left, and the bounds of RoFormer and Men et al."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropeaudit.features.plot import style
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports.charts.series import Series, points
from ropeaudit.reports.numbers import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = {
    "rms_relative": "RMS score / that at distance 0",
    "bound": "RoFormer's bound (§3.4.3)",
    "men_sum": "Σ cos(distance·θ) (Men et al.)",
}


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit decay`; distances in tokens."""
    several = len({row.get("setting") for row in rows}) > 1
    figure, panels = style.figure(headline, len(_PANELS), 8.0, sharex=True)
    notes: list[str] = []
    for axes, (column, axis_label) in zip(panels, _PANELS.items(), strict=True):
        lines, left_out = style.limited(_lines(rows, column, several), style.MOST_LINES, "lines")
        notes += left_out
        for number, (name, line) in enumerate(lines.items()):
            values = [point.y for point in line.points]
            axes.plot([point.x for point in line.points], values, label=printable(name), **style.line(number))
            if nonfinite := line.nonfinite():
                style.edge(axes, nonfinite, True, style.RED, "undefined")
        style.offsets_axis(axes, [row["distance"] for row in rows])
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_ylabel(axis_label, fontsize=8)
        if len(lines) > 1 or column == "rms_relative":
            style.legend(axes)
    firsts = {str(row["setting"]): row["first_failing"] for row in rows if row.get("first_failing")}
    for number, (name, first) in enumerate(firsts.items()):
        _mark(panels[-1], first, f"{printable(name)}: " if several else "", number)
    panels[-1].set_xlabel("distance between query and key (tokens)")
    return Picture(figure, headline, list(dict.fromkeys(notes)))


def _lines(rows: Sequence[Mapping[str, Any]], column: str, several: bool) -> dict[str, Series]:
    """Return the lines of a panel by name: one a setting, of scores one a source of q and k too."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["distance"]):
        words = [str(row["setting"])] if several else []
        words += [str(row.get("source"))] if column == "rms_relative" else []
        groups.setdefault(" ".join(words) or "exact", {})[row["distance"]] = row
    return {name: Series(name, points(group.values(), "distance", column)) for name, group in groups.items()}


def _mark(axes: Axes, first: float, name: str, number: int) -> None:
    """Mark the first distance at which a sum is negative, with its text on the side that has room."""
    look = {"color": style.line(number)["color"], "linestyle": (0, (2, 2)), "linewidth": 0.9}
    axes.axvline(first, **look)
    across = axes.transAxes.inverted().transform(axes.transData.transform((first, 0.0)))[0]
    axes.text(
        first,
        0.97 - 0.1 * number,
        f" {name}negative at {first:,} ",
        transform=axes.get_xaxis_transform(),
        ha="right" if across > 0.5 else "left",
        va="top",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )
