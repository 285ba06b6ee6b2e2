"""What a sweep would measure: a row an axis, and a rough guess of the time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.reports import Report

COLUMNS = ("axis", "count", "values")
_ALWAYS = ("implementation", "dtype", "offset", "seq_len")
_LONGEST = 50  # characters of values
LEGEND = (
    "count: different values; values: of an axis, in the order of the cells. The time is guessed from sizes,"
    "\nabout within a factor of two on a server's core, of own code as of a recipe; nothing was measured."
)


def plan_report(
    cells: Sequence[tuple[Any, ...]], scores: int, seconds: float, done: int, metadata: Mapping[str, Any]
) -> Report:
    """Return the report of a plan.

    cells: the values of `records.IDENTITY` of each. scores, seconds: of those not done. done: how many.
    """
    rows = []
    for place, name in enumerate(records.IDENTITY):
        values = list(dict.fromkeys(cell[place] for cell in cells))
        if name in _ALWAYS or (len(values) > 1 and name not in ("stages", "case")):
            rows.append({"axis": name, "count": len(values), "values": _listed(values)})
    state = f"{done} are done and {len(cells) - done} are to be measured" if done else "none is measured yet"
    return Report(
        rows=rows,
        columns=list(COLUMNS),
        screen=list(COLUMNS),
        headline=f"{len(cells)} cells, {state}: {scores} scores; before measuring anything, a rough guess: "
        f"{_rough(seconds)} of one core.",
        legend=LEGEND,
        metadata={"cells": len(cells), "done": done, "scores": scores, "seconds": seconds, **metadata},
    )


def _listed(values: Sequence[Any]) -> str:
    """Return the first values, as many as fit a line.

    >>> _listed([0, None, 7]), _listed(range(10_000, 10_100))
    ('0, none, 7', '10000, 10001, 10002, 10003, 10004, 10005, 10006, ...')
    """
    words = ["none" if value is None else str(value) for value in values]
    ends = itertools.accumulate(len(word) + 2 for word in words)
    most = max(1, sum(end <= _LONGEST for end in ends))
    return ", ".join([*words[:most], *(["..."] if most < len(words) else [])])


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
