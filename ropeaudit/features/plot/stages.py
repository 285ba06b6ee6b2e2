"""Which stage holds which share of the drift: a panel per case of `ropeaudit explain`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.plot import style
from ropeaudit.features.plot.style import Picture
from ropeaudit.recipes import STAGES
from ropeaudit.reports.numbers import part

_MOST = 6
_CAUSES = ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow")
_COLOURS = dict(zip(_CAUSES, (style.RED, style.BLUE, style.GREEN, style.PURPLE, style.ORANGE), strict=True))
_HATCHES = dict(zip(_CAUSES, style.HATCHES, strict=False))


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows by stage; `headline` is the finding of their report."""
    cases, notes = style.cases(rows, _MOST)
    most = max(map(len, cases.values()), default=1)
    figure, panels = style.figure(headline, len(cases), 1.3 + len(cases) * (0.6 + 0.2 * most), sharex=True)
    for axes, (name, group) in zip(panels, cases.items(), strict=True):
        order = sorted(group, key=lambda row: (*STAGES, row["stage"]).index(row["stage"]))
        for place, row in enumerate(order):
            cause, known = row.get("cause"), _known(row)
            share = row["share"] if known else 0.0
            look: dict[str, Any] = {
                "color": _COLOURS.get(str(cause), style.GREY),
                "hatch": _HATCHES.get(str(cause), ""),
            }
            axes.barh(place, 100 * share, edgecolor="white", **look)
            text = f"{part(share)} {cause}" if known else f"not defined: {cause}"
            axes.text(max(100 * share, 0.0) + 1, place, text, va="center", fontsize=7)
            if not known:
                axes.plot([0], [place], marker="X", color=style.RED, clip_on=False)
        axes.set_yticks(range(len(order)), [f"{row['stage']} ({row['format']})" for row in order], fontsize=7)
        axes.invert_yaxis()
        axes.set_title(name, fontsize=9, loc="left")
        axes.grid(False, axis="y")
    shares = [100 * row["share"] for group in cases.values() for row in group if _known(row)]
    panels[-1].set_xlim(1.05 * min(0.0, *shares, 0.0), 1.25 * max(1.0, *shares, 1.0))
    panels[-1].set_xlabel("share of the mean square drift (%), over all orders of the stages (Shapley)")
    return Picture(figure, headline, notes)


def _known(row: Mapping[str, Any]) -> bool:
    return row["share"] is not None and not math.isnan(row["share"])
