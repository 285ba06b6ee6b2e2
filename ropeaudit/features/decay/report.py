"""Scores against distance for people: the finding in words, the rows, the curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import labels
from ropeaudit.audits.cases import Case
from ropeaudit.features.decay.analysis import DecayCurves
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import table

SCHEMA = 2
COLUMNS = table("decay")
LEGEND = (
    "mean relative: mean of the exact scores of every query with every key, over their RMS at distance 0;\n"
    "rms relative: their RMS over that at distance 0;\n"
    "bound: RoFormer's decay curve, section 3.4.3;\n"
    "men sum: sum of cos(distance theta_i), which Men et al. want to be 0 or more. The finding is of every\n"
    "distance from the first to the last."
)
_DECAYED = 0.5  # share of the RMS score at distance 0 below which scores "decay"
_MOST_SENTENCES = 3
_ROUNDING = 1e-9  # of the bound: less is no rise


def report(
    results: Sequence[DecayCurves],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    header: bool = True,
    labelled: Callable[[Sequence[Case]], Sequence[str]] = labels.labels,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    labelled: from cases to what their settings are called.
    """
    names = labelled([one.case for one in results])
    rows = [
        {"setting": name, **row, "first_failing": one.failing}
        for name, one in zip(names, results, strict=True)
        for row in one.rows
    ]
    varying = [name for name in ("setting", "source") if len({row[name] for row in rows}) > 1]
    shown = COLUMNS.screen(rows) if rows else []
    if "setting" not in varying:
        shown.remove("first_failing")  # it is in the headline
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, [*varying, *shown], columns, metadata),
        headline=headline(results, names, rows),
        legend=LEGEND,
        header=header,
    )


def headline(results: Sequence[DecayCurves], names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence per setting, of every distance, and one about the recipe that is farthest off."""
    sentences = list(map(_sentence, names, results))[:_MOST_SENTENCES]
    if more := len(results) - len(sentences):
        sentences.append(f"({more} more settings.)")
    return " ".join([*sentences, *_worst(rows)])


def _sentence(label: str, one: DecayCurves) -> str:
    """Say which q and k decay, how far the bound rises again, and where the sum fails."""
    levels = [
        f"{source} {'decays to' if level < _DECAYED else 'keeps'} {percent(level)}"
        for source, level in one.levels.items()
    ]
    (low, least), (top, most) = one.low, one.top
    last = max(row["distance"] for row in one.rows)
    rise = f"RoFormer's bound does not rise up to {last}"
    failing = f"the sum of Men et al. is not negative up to {last}"
    if not one.setting.pairs:
        rise = "nothing is rotated"
    elif most - least > _ROUNDING * most:
        rise = "RoFormer's bound is not monotone: its largest rise is from "
        rise += f"{short(least)} at {low} to {short(most)} at {top}"
    if one.failing is not None:
        failing = f"the sum of Men et al. is first negative at {one.failing}"
        if one.case.maximum is not None:
            side = "within" if one.failing < one.case.maximum else "past"
            failing += f", {side} the model's {one.case.maximum} positions"
    far = f"from distance {one.half} on {' and '.join(levels)} of the RMS score at distance 0"
    return f"{label}: {far}; {rise}; {failing}."


def _emulated(row: Mapping[str, Any]) -> bool:
    return row["implementation"] is not None


def _worst(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the recipe that is farthest off, at the distances of the rows."""
    own = [row for row in rows if _emulated(row)]
    if not own:
        return []
    row = max(own, key=lambda row: math.inf if math.isnan(row["drift_rms"]) else row["drift_rms"])
    size = row["drift_rms"]
    what = f"is off by {short(size)} RMS" if math.isfinite(size) else "gives scores that are nan or infinite"
    who = f"{row['implementation']} {row['dtype']}"
    return [f"{who} {what} at distance {row['distance']} ({row['source']})."]
