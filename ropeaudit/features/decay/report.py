"""Scores against distance for people: where the curves end, where they rise, where the sum fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.labels import labels
from ropeaudit.features.decay.analysis import DecayCurves
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.answers import Answer
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import table

SCHEMA = 2
COLUMNS = table("decay")
_ROUNDING = 1e-9  # of the bound: less is no rise


def report(
    results: Sequence[DecayCurves],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    header: bool = True,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    names = labels([one.case for one in results])
    rows = [
        {"setting": name, **row, "first_failing": one.failing}
        for name, one in zip(names, results, strict=True)
        for row in one.rows
    ]
    varying = [name for name in ("setting", "source") if len({row[name] for row in rows}) > 1]
    shown = [name for name in COLUMNS.screen(rows) if name != "first_failing" or len(results) > 1]
    some = [answer(name, one) for name, one in zip(names, results, strict=True)]
    screen = [*varying, *shown]
    return tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata, some, header=header)


def answer(name: str, one: DecayCurves) -> Answer:
    """Return what holds of every distance of a setting, and how far off the worst recipe is."""
    last, maximum = max(row["distance"] for row in one.rows), one.case.maximum
    within = one.failing is not None and maximum is not None and one.failing < maximum
    decides = f"the sum of Men et al. is not negative to distance {last:,}"
    if one.failing is not None:
        decides = f"the sum of Men et al. is first negative at {one.failing:,}"
        side = "within" if within else "past"
        decides += f", {side} its {maximum:,} positions" if maximum is not None else ""
    levels = ", ".join(f"{source} {percent(level)}" for source, level in one.levels.items())
    (low, least), (top, most) = one.low, one.top
    bound = f"does not rise to distance {last:,}"
    if not one.setting.pairs:
        bound = "nothing is rotated"
    elif most - least > _ROUNDING * most:
        bound = f"not monotone: largest rise from {short(least)} at {low:,} to {short(most)} at {top:,}"
    facts = [
        ("scores", f"from distance {one.half:,} on, RMS relative to distance 0: {levels}"),
        ("RoFormer bound", bound),
        *_worst(one.rows),
    ]
    return Answer("WARN" if within else "OK", name, decides, facts=facts)


def _worst(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return how far off the worst recipe is, at the distances of the rows."""
    own = [row for row in rows if row["implementation"] is not None]
    if not own:
        return []
    row = max(own, key=lambda row: math.inf if math.isnan(row["drift_rms"]) else row["drift_rms"])
    size = row["drift_rms"]
    what = f"off by {short(size)} RMS" if math.isfinite(size) else "scores are nan or infinite"
    where = f"at distance {row['distance']:,} ({row['source']})"
    return [("worst recipe", f"{row['implementation']} {row['dtype']}: {what} {where}")]
