"""Up to which position a tolerance is met: guaranteed and tested ones, a bar per row of `limit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.plot import style
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports import settings
from ropeaudit.reports.charts import series
from ropeaudit.reports.numbers import setting

_MOST = 48


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit limit`; positions in tokens."""
    telling = settings.independent(rows)
    several = len({(row["tolerance_column"], row["tolerance"]) for row in rows}) > 1
    groups = {f"{_name(row, telling, several)} #{number}": row for number, row in enumerate(rows)}
    shown, notes = style.limited(groups, _MOST, "rows")
    figure, (axes,) = style.figure(headline)
    axes.set_xscale("log")
    dtypes = list(dict.fromkeys(row["dtype"] for row in shown.values()))
    for place, row in enumerate(shown.values()):
        number, guaranteed, tested = dtypes.index(row["dtype"]), row["proved_position"] or 1, _tested(row)
        look: dict[str, Any] = {
            "color": style.line(number)["color"],
            "hatch": style.HATCHES[number % len(style.HATCHES)],
        }
        text = f"{row['dtype']}: guaranteed"
        axes.barh(place, guaranteed - 0.999, left=0.999, edgecolor="white", label=text, **look)
        if tested > guaranteed:
            text = "tested without a failure, not guaranteed"
            look = {"color": "#dddddd", "edgecolor": "white"}
            axes.barh(place, tested - guaranteed, left=guaranteed, label=text, **look)
        if row["first_failure_seen"] is not None:
            mark: dict[str, Any] = {
                "linestyle": "none",
                "marker": "X",
                "color": style.RED,
                "markersize": 6 * style.scale(),
            }
            at = max(1, row["failure_position"])
            axes.plot([at], [place], label="first failure", clip_on=False, **mark)
        if row["maximum"]:
            ends = [place - 0.45, place + 0.45]
            axes.plot([row["maximum"]] * 2, ends, color="black", linewidth=2, label="the model's maximum")
    lines = style.bars(axes, [name.rpartition(" #")[0] for name in shown], list(map(_words, shown.values())))
    axes.set_xlim(left=1)
    axes.set_xlabel(f"last position that meets {_tolerances(rows, several)} (tokens)")
    style.legend(figure, axes)
    return Picture(figure, headline, notes, height=1.8 + 0.24 * lines)


def _tested(row: Mapping[str, Any]) -> int:
    """Return the last position of the largest tested offset without a failure, 1 without one."""
    return max(row["proved_position"] or 1, row["measured_position"] or 1)


def _words(row: Mapping[str, Any]) -> str:
    """Return what is guaranteed of a row."""
    if row["proved_position"] is not None:
        return f"guaranteed up to {row['proved_position']:,}"
    return "fails at offset 0" if row["measured_position"] is None else "nothing guaranteed"


def _name(row: Mapping[str, Any], telling: Sequence[str], several: bool) -> str:
    words = series.label(row, telling)
    return f"{words} {row['tolerance_column']}={setting(row['tolerance'])}" if several else words


def _tolerances(rows: Sequence[Mapping[str, Any]], several: bool) -> str:
    if several or not rows:
        return "the tolerance"
    sign = "≥" if rows[0]["tolerance_column"] == "distinct_positions" else "≤"
    return f"{rows[0]['tolerance_column']} {sign} {setting(rows[0]['tolerance'])}"
