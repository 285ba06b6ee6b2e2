"""What an implementation does, stage by stage, and which recipe it behaves like, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropeaudit.features.explain.known_recipes import COMPARED, Likeness, Stage, expected, narrowest
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.recognition import wording
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.reports import Report, Row, tabulated
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.verdicts import under
from ropeaudit.runtime.columns import Columns, table

SCHEMA = 1
NOTHING = Stage("none", ("none",), ())


@dataclass(frozen=True, slots=True)
class TracedStage:
    """A stage of an implementation, beside the nearest recipe."""

    trace: Trace
    stage: Stage

    @property
    def best(self) -> Likeness | None:
        """The nearest recipe, None where it is like none."""
        return self.trace.nearest()[0] if self.trace.likely else None

    @property
    def recipe_format(self) -> str | None:
        """The stage's format in the nearest recipe; None where nothing is compared."""
        return expected(self.best.group.resolved).get(self.stage.name) if self.best else None


def _agrees(one: TracedStage) -> str | None:
    if one.recipe_format is None:
        return None
    return "yes" if narrowest(one.stage) == one.recipe_format else "no"


def _arithmetic(group: RecipeGroup) -> str:
    """Return what recipes round, in words, without their names."""
    return wording.arithmetic(group.values() | {"recipes": ()})


def _behaviour(one: TracedStage) -> str:
    if one.best:
        return _arithmetic(one.best.group)
    return one.trace.told() or "none"


def row(one: TracedStage) -> dict[str, Any]:
    """Return the row of a stage of code."""
    return {
        "schema": SCHEMA,
        "implementation": one.trace.name,
        "dtype": one.trace.dtype.name,
        "environment": one.trace.environment,
        "device": one.trace.device,
        "layout": one.trace.setting.layout,
        "head_dim": one.trace.setting.head_dim,
        "rotary_dim": one.trace.setting.rotary_dim,
        "base": one.trace.setting.base,
        "stage": one.stage.name,
        "seen": " -> ".join(one.stage.dtypes),
        "operations": " ".join(one.stage.operations) or "none",
        "recipe_format": one.recipe_format or "none",
        "agrees": _agrees(one),
        "nearest": " ".join(names(one.trace)) or "none",
        "behaviour": _behaviour(one),
        "diagnosis": one.trace.diagnosis(),
        "distance": one.best.distance if one.best else math.nan,
        "equal": one.best.equal if one.best else math.nan,
        "profile": one.best.profile if one.best else math.nan,
        "refused": one.trace.refused or "none",
    }


COLUMNS = table("explain-dtypes")


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """The drift of an implementation at an offset. predicted: of the nearest recipe; empty without one."""

    trace: Trace
    offset: int
    drift_rms: float
    predicted_rms: float


def profile_row(one: ProfilePoint) -> dict[str, Any]:
    """Return the row of the drift at an offset."""
    return {
        "implementation": one.trace.name,
        "dtype": one.trace.dtype.name,
        "environment": one.trace.environment,
        "offset": one.offset,
        "drift_rms": one.drift_rms,
        "predicted_rms": one.predicted_rms,
        "ratio": one.drift_rms / one.predicted_rms if one.predicted_rms else math.nan,
    }


PROFILE = table("explain-profiles")


@dataclass(frozen=True, slots=True)
class TracedRecipe:
    """A recipe beside the implementation that may be like it."""

    trace: Trace
    like: Likeness


def recipe_row(one: TracedRecipe) -> dict[str, Any]:
    """Return the row of a recipe beside code."""
    return {
        "implementation": one.trace.name,
        "dtype": one.trace.dtype.name,
        "environment": one.trace.environment,
        "behaviour": _arithmetic(one.like.group),
        "recipes": " ".join(one.like.group.names) or "none",
        "distance": one.like.distance,
        "equal": one.like.equal,
        "profile": one.like.profile,
        "stages_differing": " ".join(one.like.differing) or "none",
    }


RECIPES = table("explain-recipes")


def names(trace: Trace) -> list[str]:
    """Return the recipes that none is nearer than."""
    return [name for like in trace.nearest() for name in like.group.names] if trace.likely else []


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
    rows = [row(one) for one in shown]
    dtypes = tabulated(COLUMNS, SCHEMA, rows, COLUMNS.screen(rows), None, {})
    points = [
        ProfilePoint(one, offset, drift, (one.predicted or {}).get(offset, math.nan))
        for one in traces
        for offset, drift in (one.drifts or {}).items()
    ]
    likely = [
        TracedRecipe(one, like) for one in traces for like in one.likely[: max(_SHOWN, len(one.nearest()))]
    ]
    title = "Drift of scores formed in float64, by offset, and what the nearest recipe predicts:"
    return {
        "dtypes": replace(dtypes, legend=LEGEND),
        "profiles": _further(PROFILE, list(map(profile_row, points)), title),
        "recipes": _further(RECIPES, list(map(recipe_row, likely)), "Recipes, nearest first:"),
    }


def headline(trace: Trace) -> str:
    """Return the finding on one implementation in a sentence."""
    who = " ".join([trace.name, *under(trace.environment), "in", str(trace.dtype)])
    if trace.refused:
        return f"{who} is refused: {trace.refused}."
    if not trace.likely:
        told = trace.told() or "no known implementation matches"
        if any(one.explains for one in trace.faults.values()):
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


def _further(columns: Columns, rows: Sequence[Row], title: str) -> Report:
    return Report(
        rows=rows,
        columns=list(columns),
        screen=columns.screen(rows),
        dispensable=columns.dispensable,
        headline=title if rows else "",
        declared=columns,
    )
