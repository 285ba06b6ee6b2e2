"""What an implementation does, stage by stage, and which recipe it behaves like, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ropeaudit.features.trace.analysis import Traced
from ropeaudit.features.trace.columns import (
    COLUMNS,
    NOTHING,
    PROFILE,
    RECIPES,
    SCHEMA,
    ProfilePoint,
    TracedRecipe,
    TracedStage,
    rows,
)
from ropeaudit.features.trace.compare import COMPARED, Likeness, expected, narrowest
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.verdicts import under
from ropeaudit.runtime.columns import Columns
from ropeaudit.subjects.placement import likeness

T = TypeVar("T")

_SHOWN = 4  # recipes
LEGEND = (
    "seen: dtypes that the stage's numbers took; recipe format: that of the nearest recipe, by its numbers;\n"
    "distance: RMS difference of its rotated vectors from the recipe's, over that from the exact ones."
)


def trace_report(
    results: Sequence[Traced],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    extra_notes: Sequence[str] = (),
) -> Report:
    """Return the report. columns: what is shown and written, in this order. extra_notes: the first notes."""
    traced = [row for one in results for row in rows(one)]
    shown = [TracedStage(one, stage) for one in results for stage in one.stages or (NOTHING,)]
    return replace(
        tabulated(COLUMNS, SCHEMA, traced, COLUMNS.screen(shown), columns, metadata),
        headline=" ".join(headline(one) for one in results) or "Nothing was traced.",
        notes=[*extra_notes, *(text for one in results for text in notes(one))],
        legend=LEGEND,
        further={"profiles": _profiles(results), "recipes": _recipes(results)},
    )


def headline(results: Traced) -> str:
    """Return the finding on one implementation in a sentence."""
    who = " ".join([results.name, *under(results.environment), "in", str(results.dtype)])
    if results.refused:
        return f"{who} is refused: {results.refused}."
    if not results.likely:
        fault = f" what comes nearest: {results.fault}." if results.fault else " nothing known comes near it."
        return f"{who} behaves like no known recipe;{fault}"
    best = results.nearest()
    like = "; or ".join(str(one.group) for one in best)
    places = len(results.drifts or {}) * COMPARED
    equal = f"{percent(best[0].equal)} of its numbers for q at {places} positions are theirs to the last bit"
    if best[0].differing:
        return f"{who} behaves like no known recipe: {_otherwise(results, best[0])}, but {equal}."
    named = any(one.group.names for one in best)
    return f"{who} behaves like: {like}{'' if named else ', which no named recipe does'}; {equal}."


def _otherwise(results: Traced, best: Likeness) -> str:
    """Return which stages were seen in another dtype than the nearest recipe has, and in which."""
    seen, right = {stage.name: narrowest(stage) for stage in results.stages}, expected(best.group.resolved)
    parts = [f"{name} was seen in {seen[name]} (there {right[name]})" for name in best.differing]
    who = ", ".join(best.group.names) or likeness.words(best.group.resolved)
    return f"nearest is {who}, yet {', '.join(parts)}"


def notes(results: Traced) -> list[str]:
    """Return what could not be seen, and at which offsets it was refused."""
    who = " ".join([results.name, *under(results.environment), str(results.dtype)])
    message = [f"{who}: offset {offset} was left out: {reason}" for offset, reason in results.dropped.items()]
    if not results.refused and not results.stages:
        message.append(f"{who}: it does not run in torch; its numbers alone were compared.")
    return message


def _profiles(results: Sequence[Traced]) -> Report:
    """Return drift by offset, beside what the nearest recipe predicts."""
    points = [
        ProfilePoint(one, offset, drift, (one.predicted or {}).get(offset, math.nan))
        for one in results
        for offset, drift in (one.drifts or {}).items()
    ]
    title = "Drift of scores formed in float64, by offset, and what the nearest recipe predicts:"
    return _further(PROFILE, points, title)


def _recipes(results: Sequence[Traced]) -> Report:
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
