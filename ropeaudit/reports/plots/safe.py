"""Up to which position a tolerance holds: a bar per row of `ropeaudit limit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.reports import settings
from ropeaudit.reports.numbers import setting
from ropeaudit.reports.plots import style
from ropeaudit.reports.plots.style import Picture

_MOST = 48


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit limit`; positions in tokens."""
    told = [name for name in settings.varying(rows) if name not in _IMPLIED or not _one_per_model(rows, name)]
    several = len({(row["tolerance_column"], row["tolerance"]) for row in rows}) > 1
    groups = {f"{_name(row, told, several)} #{number}": row for number, row in enumerate(rows)}
    kept, notes = style.limited(groups, _MOST, "rows")
    made, (axes,) = style.figure(headline, height=1.8 + 0.24 * len(kept))
    dtypes = list(dict.fromkeys(row["dtype"] for row in kept.values()))
    ends = [max(row["safe_position"] or 1, row["model_maximum"] or 1) for row in kept.values()]
    axes.set_xscale("log")
    axes.set_xlim(1, 6 * max(ends, default=10))
    shown = set()
    for place, row in enumerate(kept.values()):
        number, safe, maximum = dtypes.index(row["dtype"]), row["safe_position"], row["model_maximum"]
        look = {"color": style.line(number)["color"], "hatch": style.HATCHES[number % len(style.HATCHES)]}
        label = None if row["dtype"] in shown else row["dtype"]
        axes.barh(place, (safe or 1) - 0.999, left=0.999, edgecolor="white", label=label, **look)
        shown.add(row["dtype"])
        if safe is None:
            axes.plot([1], [place], marker="X", color=style.RED, clip_on=False, markersize=7)
        axes.text(1.15 * max(safe or 1, 1), place, row["safe_up_to"], va="center", fontsize=7)
        if maximum:
            label = None if "maximum" in shown else "positions that the model is made for"
            axes.plot([maximum] * 2, [place - 0.45, place + 0.45], color="black", linewidth=2, label=label)
            shown.add("maximum")
    axes.set_yticks(range(len(kept)), [name.rpartition(" #")[0] for name in kept], fontsize=7)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel(f"last position up to which {_tolerances(rows, several)} holds (tokens)")
    made.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    return Picture(made, headline, notes)


_IMPLIED = ("scaling", "axes", "layout", "head_dim", "rotary_dim", "base", "scale")  # by a model


def _one_per_model(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({(row["model"], repr(row[name])) for row in rows}) == len({row["model"] for row in rows})


def _name(row: Mapping[str, Any], told: Sequence[str], several: bool) -> str:
    words = style.named(row, told)
    return f"{words} {row['tolerance_column']}={setting(row['tolerance'])}" if several else words


def _tolerances(rows: Sequence[Mapping[str, Any]], several: bool) -> str:
    if several or not rows:
        return "the tolerance"
    sign = "≥" if rows[0]["tolerance_column"] == "distinct_positions" else "≤"
    return f"{rows[0]['tolerance_column']} {sign} {setting(rows[0]['tolerance'])}"
