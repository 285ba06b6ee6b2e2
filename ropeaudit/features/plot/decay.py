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
    "men_sum": "Σ cos(distance·θ) (Men et al.); ●: first negative",
}
_FEW = 40  # points of a line, each of which has a marker


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit decay`; distances in tokens."""
    figure, panels = style.figure(headline, len(_PANELS), sharex=True)
    settings, sources = (
        list(dict.fromkeys(str(row.get(name)) for row in rows)) for name in ("setting", "source")
    )
    notes: list[str] = []
    for axes, (column, title) in zip(panels, _PANELS.items(), strict=True):
        lines, left_out = style.limited(_lines(rows, column, settings, sources), style.MOST_LINES, "lines")
        notes += left_out
        for name, line in lines.items():
            _line(axes, name, line)
        style.offsets_axis(axes, [row["distance"] for row in rows])
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(title)
    notes += _crossings(panels[-1], rows, settings)
    style.legend(figure, panels[0])
    panels[-1].set_xlabel("distance between query and key (tokens)")
    return Picture(figure, headline, list(dict.fromkeys(notes)), height=8.0)


def _line(axes: Axes, name: str, line: Series) -> None:
    """Draw a line; where its points are few, each is marked, for nothing was computed between them."""
    look = style.line(line.style) | {"linewidth": 1.3 * style.scale()}
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
    """Mark where each sum is first negative, or return a note where a curve lacks that distance."""
    firsts = {str(row["setting"]): row["first_failing"] for row in rows if row.get("first_failing")}
    sums = {(str(row["setting"]), row["distance"]): row["men_sum"] for row in rows}
    notes = []
    for setting, first in firsts.items():
        if (setting, first) in sums:
            look: dict[str, Any] = {"marker": "o", "color": style.RED, "markeredgecolor": "white"}
            axes.plot([first], [sums[setting, first]], markersize=6 * style.scale(), zorder=6, **look)
            continue
        name = f"{printable(setting)}: " if len(settings) > 1 else ""
        notes.append(
            f"{name}the sum is first negative at {first:,}, which is none of the distances drawn: "
            "`ropeaudit decay -o decay.json` without --columns has the points of whole curves"
        )
    return notes
