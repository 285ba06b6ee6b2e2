"""Scores against distance: how much of them is left, and the bounds of RoFormer and Men et al."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
_FEW = 40  # points of a line, each of which has a marker


def draw(rows: Sequence[Mapping[str, Any]], headline: str, without: Collection[str] = ()) -> Picture:
    """Return the picture of rows of `ropeaudit decay`; distances in tokens.

    without: parts that are not drawn: bound, sum, crossing.
    """
    shown = {column: text for column, text in _PANELS.items() if column.rpartition("_")[2] not in without}
    figure, panels = style.figure(headline, len(shown), 1.6 + 2.1 * len(shown), without=without, sharex=True)
    settings, sources = (
        list(dict.fromkeys(str(row.get(name)) for row in rows)) for name in ("setting", "source")
    )
    notes: list[str] = []
    for axes, (column, axis_label) in zip(panels, shown.items(), strict=True):
        lines, left_out = style.limited(_lines(rows, column, settings, sources), style.MOST_LINES, "lines")
        notes += left_out
        for name, line in lines.items():
            _line(axes, name, line)
        style.offsets_axis(axes, [row["distance"] for row in rows])
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_ylabel(axis_label, fontsize=8)
        if column == "men_sum" and "crossing" not in without:
            notes += _crossings(axes, rows, settings)
    style.legend(figure, panels[0], without)
    panels[-1].set_xlabel("distance between query and key (tokens)")
    return Picture(figure, headline, list(dict.fromkeys(notes)))


def _line(axes: Axes, name: str, line: Series) -> None:
    """Draw a line; where its points are few, each is marked, for nothing was computed between them."""
    look = style.line(line.style) | {"linewidth": 1.3}
    if len(line.points) > _FEW:
        look["marker"] = ""
    axes.plot([point.x for point in line.points], [point.y for point in line.points], label=name, **look)
    if nonfinite := line.nonfinite():
        style.edge(axes, nonfinite, True, style.RED, "undefined")


def _lines(
    rows: Sequence[Mapping[str, Any]], column: str, settings: Sequence[str], sources: Sequence[str]
) -> dict[str, Series]:
    """Return the lines of a panel by name: one a setting, of scores one a source of q and k too."""
    groups: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["distance"]):
        source = str(row.get("source")) if column == "rms_relative" else sources[0]
        groups.setdefault((str(row["setting"]), source), {})[row["distance"]] = row
    results = {}
    for (setting, source), group in groups.items():
        words = [setting] if len(settings) > 1 else []
        words += [source] if column == "rms_relative" else []
        number = settings.index(setting) * len(sources) + sources.index(source)
        name = printable(" ".join(words) or "exact")
        results[name] = Series(name, points(group.values(), "distance", column), number)
    return results


def _crossings(axes: Axes, rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[str]:
    """Mark the first distance at which a sum is negative, or return a note where a curve lacks it."""
    firsts = {str(row["setting"]): row["first_failing"] for row in rows if row.get("first_failing")}
    notes, marked = [], 0
    for setting, first in firsts.items():
        name = f"{printable(setting)}: " if len(settings) > 1 else ""
        at = [row for row in rows if str(row["setting"]) == setting and row["distance"] == first]
        if not at:
            notes.append(
                f"{name}the sum is first negative at {first:,}, which is none of the distances drawn: "
                "`ropeaudit decay -o decay.json` without --columns has the points of whole curves"
            )
            continue
        _mark(axes, first, float(at[0]["men_sum"]), name, marked)
        marked += 1
    return notes


def _mark(axes: Axes, first: float, value: float, name: str, number: int) -> None:
    """Mark a point below zero, with its text above the curves on the side that has room."""
    axes.plot([first], [value], linestyle="none", marker="o", markersize=5, color=style.RED, zorder=6)
    axes.axvline(first, color=style.RED, linestyle=(0, (2, 2)), linewidth=0.8)
    across = axes.transAxes.inverted().transform(axes.transData.transform((first, 0.0)))[0]
    axes.text(
        first,
        0.97 - 0.1 * number,
        f" {name}first negative at {first:,} ",
        transform=axes.get_xaxis_transform(),
        ha="right" if across > 0.5 else "left",
        va="top",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )
