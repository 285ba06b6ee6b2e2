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
_LEAST = 0.0005  # of the drift: a smaller share reads 0.0 % and has no bar to be seen
_CAUSES = ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow")
_COLOURS = dict(zip(_CAUSES, (style.RED, style.BLUE, style.GREEN, style.PURPLE, style.ORANGE), strict=True))
_HATCHES = dict(zip(_CAUSES, style.HATCHES, strict=False))


def draw(rows: Sequence[Mapping[str, Any]], headline: str) -> Picture:
    """Return the picture of rows by stage; `headline` is the finding of their report."""
    seen = [row for row in rows if not _known(row) or abs(row["share"]) >= _LEAST]
    cases, notes = style.cases(seen, _MOST)
    if len(seen) < len(rows):
        notes.append("stages that hold less than 0.05 % of the drift are left out")
    most = max(map(len, cases.values()), default=1)
    figure, panels = style.figure(headline, len(cases), sharex=True)
    for axes, (name, group) in zip(panels, cases.items(), strict=True):
        order = sorted(group, key=lambda row: (*STAGES, row["stage"]).index(row["stage"]))
        words = []
        for place, row in enumerate(order):
            cause, known = str(row.get("cause")), _known(row)
            look: dict[str, Any] = {
                "color": _COLOURS.get(cause, style.GREY),
                "hatch": _HATCHES.get(cause, ""),
            }
            axes.barh(place, 100 * row["share"] if known else 0.0, edgecolor="white", **look)
            words.append(f"{part(row['share'])} {cause}" if known else f"not defined: {cause}")
            if not known:
                axes.plot([0], [place], marker="X", color=style.RED, clip_on=False)
        style.bars(axes, [f"{row['stage']} ({row['format']})" for row in order], words)
        axes.set_title(name)
    panels[-1].set_xlabel("share of the mean square drift (%, Shapley)")
    return Picture(figure, headline, notes, height=1.3 + len(cases) * (0.6 + 0.2 * most))


def _known(row: Mapping[str, Any]) -> bool:
    return row["share"] is not None and not math.isnan(row["share"])
