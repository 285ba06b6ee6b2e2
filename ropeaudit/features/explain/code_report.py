"""What an implementation does, stage by stage, and which recipe it behaves like, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ropeaudit.audits import records
from ropeaudit.features.explain.known_recipes import COMPARED, Likeness, Stage, expected, narrowest
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.recognition import wording
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent
from ropeaudit.reports.verdicts import under
from ropeaudit.runtime.columns import Columns, Declare

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


of = Declare[TracedStage]()


class TraceColumns:
    """The columns of code: a row a stage."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    implementation: str = of("name of what was called", lambda one: one.trace.name, shown=True)
    dtype: str = of("number format of q and k", lambda one: one.trace.dtype.name, shown=True)
    environment: str = of(
        "what it was called under, such as autocast:bf16; none: nothing",
        lambda one: one.trace.environment,
        shown=lambda one: one.trace.environment != "none",
    )
    device = of.like(
        records.COLUMNS["device"],
        lambda one: one.trace.device,
        shown=lambda one: one.trace.device != "cpu",
        leaves=2,
    )
    layout: str = of("pairs of dims: half or interleaved", lambda one: one.trace.setting.layout)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: one.trace.setting.head_dim)
    rotary_dim = of.like(records.COLUMNS["rotary_dim"], lambda one: one.trace.setting.rotary_dim)
    base = of.like(records.COLUMNS["base"], lambda one: one.trace.setting.base)
    stage: str = of(
        "position, frequency, angle, trig, table, input, rotation or output; none: nothing was seen",
        lambda one: one.stage.name,
        shown=True,
    )
    seen: str = of(
        "dtypes that its numbers took, in order", lambda one: " -> ".join(one.stage.dtypes), shown=True
    )
    operations: str = of(
        "torch operations, in the order in which they came first; given: made by the caller",
        lambda one: " ".join(one.stage.operations) or "none",
        shown=True,
        leaves=2,
    )
    recipe_format: str = of(
        "number format of the stage in the nearest recipe",
        lambda one: one.recipe_format or "none",
        shown=True,
    )
    agrees: str | None = of(
        "whether the narrowest dtype seen is that format; empty where it is not compared",
        _agrees,
        shown=True,
        leaves=1,
    )
    nearest: str = of(
        "recipes that rotate with the arithmetic nearest to what was measured; none: no named one",
        lambda one: " ".join(names(one.trace)) or "none",
    )
    behaviour: str = of(
        "that arithmetic in words, or the fault that was recognised; none: nothing known", _behaviour
    )
    diagnosis: str = of(
        "code of `ropeaudit list diagnoses` of what explains it at the largest offset where it is wrong: a+b "
        "are two faults together, a|b explain as much; empty: it is right, or no such code fits",
        lambda one: one.trace.diagnosis(),
    )
    distance: float = of(
        "RMS distance of rotated vectors from the recipe's, over that from exact ones; worst offset",
        lambda one: one.best.distance if one.best else math.nan,
    )
    equal: float = of(
        "share of the numbers that are the recipe's to the last bit",
        lambda one: one.best.equal if one.best else math.nan,
    )
    profile: float = of(
        "largest factor between the RMS drifts of both, over the offsets",
        lambda one: one.best.profile if one.best else math.nan,
    )
    refused: str = of(
        "why it could not be called; none where it could", lambda one: one.trace.refused or "none"
    )


COLUMNS = of.columns(TraceColumns)


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """The drift of an implementation at an offset. predicted: of the nearest recipe; empty without one."""

    trace: Trace
    offset: int
    drift_rms: float
    predicted_rms: float


of_point = Declare[ProfilePoint]()


class ProfileColumns:
    """The columns of the drift by offset."""

    implementation = of_point.like(COLUMNS["implementation"], lambda one: one.trace.name, shown=True)
    dtype = of_point.like(COLUMNS["dtype"], lambda one: one.trace.dtype.name, shown=True)
    environment = of_point.like(
        COLUMNS["environment"],
        lambda one: one.trace.environment,
        shown=lambda one: one.trace.environment != "none",
    )
    offset: int = of_point("integer added to every position", unit="tokens", shown=True)
    drift_rms: float = of_point("RMS drift of scores formed in float64", unit="score", shown=True)
    predicted_rms: float = of_point("what the nearest recipe predicts", unit="score", shown=True)
    ratio: float = of_point(
        "drift_rms / predicted_rms",
        lambda one: one.drift_rms / one.predicted_rms if one.predicted_rms else math.nan,
        shown=True,
    )


PROFILE = of_point.columns(ProfileColumns)


@dataclass(frozen=True, slots=True)
class TracedRecipe:
    """A recipe beside the implementation that may be like it."""

    trace: Trace
    like: Likeness


of_recipe = Declare[TracedRecipe]()


class RecipeColumns:
    """The columns of the nearest recipes."""

    implementation = of_recipe.like(COLUMNS["implementation"], lambda one: one.trace.name, shown=True)
    dtype = of_recipe.like(COLUMNS["dtype"], lambda one: one.trace.dtype.name, shown=True)
    environment = of_recipe.like(
        COLUMNS["environment"],
        lambda one: one.trace.environment,
        shown=lambda one: one.trace.environment != "none",
    )
    behaviour: str = of_recipe("arithmetic in words", lambda one: _arithmetic(one.like.group), shown=True)
    recipes: str = of_recipe(
        "that have it", lambda one: " ".join(one.like.group.names) or "none", shown=True, leaves=2
    )
    distance: float = of_recipe(COLUMNS["distance"].meaning, lambda one: one.like.distance, shown=True)
    equal: float = of_recipe(COLUMNS["equal"].meaning, lambda one: one.like.equal, shown=True)
    profile: float = of_recipe(COLUMNS["profile"].meaning, lambda one: one.like.profile, shown=True, leaves=1)
    stages_differing: str = of_recipe(
        "stages seen in another dtype", lambda one: " ".join(one.like.differing) or "none"
    )


RECIPES = of_recipe.columns(RecipeColumns)


def names(trace: Trace) -> list[str]:
    """Return the recipes that none is nearer than."""
    return [name for like in trace.nearest() for name in like.group.names] if trace.likely else []


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
        "profiles": _further(PROFILE, points, title),
        "recipes": _further(RECIPES, likely, "Recipes, nearest first:"),
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


def _further(columns: Columns[T], results: Sequence[T], title: str) -> Report:
    return Report(
        rows=[columns.row(one) for one in results],
        columns=list(columns),
        screen=columns.screen(results),
        dispensable=columns.dispensable,
        headline=title if results else "",
        declared=columns,
    )
