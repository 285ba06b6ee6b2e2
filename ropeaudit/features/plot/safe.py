"""Up to which position a tolerance is met: what is proved and what was measured, a bar per row of `limit`."""

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
    bars, notes = style.limited(groups, _MOST, "rows")
    figure, (axes,) = style.figure(headline, height=1.8 + 0.24 * len(bars))
    dtypes = list(dict.fromkeys(row["dtype"] for row in bars.values()))
    ends = [max(_seen(row) or 1, row["maximum"] or 1) for row in bars.values()]
    axes.set_xscale("log")
    axes.set_xlim(1, 6 * max(ends, default=10))
    in_legend: set[str] = set()
    for place, row in enumerate(bars.values()):
        number, proved, seen = dtypes.index(row["dtype"]), row["proved_position"], _seen(row)
        look = {"color": style.line(number)["color"], "hatch": style.HATCHES[number % len(style.HATCHES)]}
        first = _once(row["dtype"], f"{row['dtype']}: proved", in_legend)
        axes.barh(place, (proved or 1) - 0.999, left=0.999, edgecolor="white", label=first, **look)
        if seen is not None and seen > (proved or 0):
            start = max(proved or 1, 0.999)
            label = _once("seen", "no failure seen, not proved", in_legend)
            axes.barh(place, seen - start, left=start, color="#dddddd", edgecolor="white", label=label)
        if row["first_failure_seen"] is not None:
            label = _once("failure", "first failure seen", in_legend)
            mark: dict[str, Any] = {"linestyle": "none", "marker": "X", "color": style.RED, "markersize": 6}
            axes.plot([max(1, row["failure_position"])], [place], label=label, clip_on=False, **mark)
        ends_at = max(seen or 1, row["failure_position"] or 1, row["maximum"] or 1 if seen else 1)
        axes.text(1.35 * ends_at, place, _words(row), va="center", fontsize=7)
        if row["maximum"]:
            label = _once("maximum", "positions that the model is made for", in_legend)
            ends = [place - 0.45, place + 0.45]
            axes.plot([row["maximum"]] * 2, ends, color="black", linewidth=2, label=label)
    axes.set_yticks(range(len(bars)), [name.rpartition(" #")[0] for name in bars], fontsize=7)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel(f"last position up to which {_tolerances(rows, several)} is met (tokens)")
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    return Picture(figure, headline, notes)


def _seen(row: Mapping[str, Any]) -> int | None:
    """Return the last position of the sequence up to which no failure was seen."""
    known = [row[name] for name in ("proved_position", "measured_position") if row[name] is not None]
    return max(known, default=None)


def _once(name: str, label: str, in_legend: set[str]) -> str | None:
    """Return the label for the first of its name, None for the others."""
    if name in in_legend:
        return None
    in_legend.add(name)
    return label


def _words(row: Mapping[str, Any]) -> str:
    """Return what is known of a row, to stand where its bar ends."""
    proved, seen = row["proved_position"], _seen(row)
    if seen is None:
        return "fails at offset 0"
    if proved == seen:
        return f"proved up to {proved:,}"
    return f"none seen up to {seen:,} ({row['measured_offsets']:,} measured), proved up to {proved:,}"


def _name(row: Mapping[str, Any], telling: Sequence[str], several: bool) -> str:
    words = series.label(row, telling)
    return f"{words} {row['tolerance_column']}={setting(row['tolerance'])}" if several else words


def _tolerances(rows: Sequence[Mapping[str, Any]], several: bool) -> str:
    if several or not rows:
        return "the tolerance"
    sign = "≥" if rows[0]["tolerance_column"] == "distinct_positions" else "≤"
    return f"{rows[0]['tolerance_column']} {sign} {setting(rows[0]['tolerance'])}"
