"""What a sweep would measure: a row an axis, and a rough guess of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit import records
from ropeaudit.reports import Report

COLUMNS = ("axis", "count", "values")
_ALWAYS = ("subject", "dtype", "offset", "seq_len")
_MOST_VALUES = 8
LEGEND = (
    "count: different values; values: of an axis, in the order of the cells. The time is guessed from sizes,"
    "\nwithin a factor of a few; nothing was measured."
)


def plan_report(
    cells: Sequence[tuple[Any, ...]], scores: int, seconds: float, done: int, circumstances: Mapping[str, Any]
) -> Report:
    """Return the report of a plan.

    cells: the values of `records.IDENTITY` of each. scores, seconds: of those not done. done: how many.
    """
    rows = []
    for place, name in enumerate(records.IDENTITY):
        values = list(dict.fromkeys(cell[place] for cell in cells))
        if name in _ALWAYS or (len(values) > 1 and name != "stages"):
            shown = ", ".join("none" if value is None else str(value) for value in values[:_MOST_VALUES])
            more = ", ..." if len(values) > _MOST_VALUES else ""
            rows.append({"axis": name, "count": len(values), "values": shown + more})
    told = f"{done} are done and {len(cells) - done} are to be measured" if done else "none is measured yet"
    return Report(
        rows=rows,
        columns=list(COLUMNS),
        screen=list(COLUMNS),
        headline=f"{len(cells)} cells, {told}: {scores} scores, roughly {_rough(seconds)}.",
        legend=LEGEND,
        circumstances={
            "cells": len(cells),
            "done": done,
            "scores": scores,
            "seconds": seconds,
            **circumstances,
        },
    )


def _rough(seconds: float) -> str:
    """Return a time of which only the size is meant.

    >>> _rough(0.2), _rough(40), _rough(500), _rough(40_000)
    ('a second', '40 seconds', '8 minutes', '11 hours')
    """
    if seconds < 1.5:
        return "a second"
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
