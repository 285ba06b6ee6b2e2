"""What an implementation does, stage by stage, and which recipe it behaves like, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ropeaudit.features.explain.code_columns import (
    COLUMNS,
    NOTHING,
    PROFILE,
    RECIPES,
    SCHEMA,
    ProfilePoint,
    TracedRecipe,
    TracedStage,
)
from ropeaudit.features.explain.known_recipes import COMPARED, Likeness, expected, narrowest
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.recognition import wording
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.verdicts import under
from ropeaudit.runtime.columns import Columns

T = TypeVar("T")

_SHOWN = 4  # recipes
LEGEND = (
    "seen: dtypes that the stage's numbers took; recipe format: that of the nearest recipe, by its numbers;\n"
    "distance: RMS difference of its rotated vectors from the recipe's, over that from the exact ones."
)


def code_tables(traces: Sequence[Trace]) -> dict[str, Report]:
    """Return the dtypes by stage, the drift by offset and the nearest recipes of code."""
    if not traces:
        return {}
    shown = [TracedStage(one, stage) for one in traces for stage in one.stages or (NOTHING,)]
    dtypes = tabulated(COLUMNS, SCHEMA, [COLUMNS.row(one) for one in shown], COLUMNS.screen(shown), None, {})
    return {
        "dtypes": replace(dtypes, legend=LEGEND),
        "profiles": _profiles(traces),
        "recipes": _recipes(traces),
    }


def headline(trace: Trace) -> str:
    """Return the finding on one implementation in a sentence."""
    who = " ".join([trace.name, *under(trace.environment), "in", str(trace.dtype)])
    if trace.refused:
        return f"{who} is refused: {trace.refused}."
    if not trace.likely:
        told = trace.told() or "no known implementation matches"
        if any(one.code != "unexplained" for one in trace.faults.values()):
            told = f"what comes nearest: {told}"
        return f"{who} behaves like no known recipe; {told}."
    best = trace.nearest()
    like = "; or ".join(wording.arithmetic(one.group.values()) for one in best)
    places = len(trace.drifts or {}) * COMPARED
    equal = f"{percent(best[0].equal)} of its numbers for q at {places} positions are theirs to the last bit"
    if best[0].differing:
        return f"{who} behaves like no known recipe: {_otherwise(trace, best[0])}, but {equal}."
    named = any(one.group.names for one in best)
    return f"{who} behaves like: {like}{'' if named else ', which no named recipe does'}; {equal}."


def _otherwise(trace: Trace, best: Likeness) -> str:
    """Return which stages were seen in another dtype than the nearest recipe has, and in which."""
    seen, right = {stage.name: narrowest(stage) for stage in trace.stages}, expected(best.group.resolved)
    parts = [f"{name} was seen in {seen[name]} (there {right[name]})" for name in best.differing]
    who = ", ".join(best.group.names) or wording.arithmetic(best.group.values())
    return f"nearest is {who}, yet {', '.join(parts)}"


def notes(trace: Trace) -> list[str]:
    """Return what could not be seen, and at which offsets it was refused."""
    who = " ".join([trace.name, *under(trace.environment), str(trace.dtype)])
    message = [f"{who}: offset {offset} was left out: {reason}" for offset, reason in trace.dropped.items()]
    if not trace.refused and not trace.stages:
        message.append(f"{who}: it does not run in torch; its numbers alone were compared.")
    return message


def _profiles(results: Sequence[Trace]) -> Report:
    """Return drift by offset, beside what the nearest recipe predicts."""
    points = [
        ProfilePoint(one, offset, drift, (one.predicted or {}).get(offset, math.nan))
        for one in results
        for offset, drift in (one.drifts or {}).items()
    ]
    title = "Drift of scores formed in float64, by offset, and what the nearest recipe predicts:"
    return _further(PROFILE, points, title)


def _recipes(results: Sequence[Trace]) -> Report:
    """Return the nearest recipes."""
    nearest = [
        TracedRecipe(one, like) for one in results for like in one.likely[: max(_SHOWN, len(one.nearest()))]
    ]
    return _further(RECIPES, nearest, "Recipes, nearest first:")


def _further(columns: Columns[T], results: Sequence[T], title: str) -> Report:
    return Report(
        rows=[columns.row(one) for one in results],
        columns=list(columns),
        screen=columns.screen(results),
        dispensable=columns.dispensable,
        headline=title if results else "",
        declared=columns,
    )
