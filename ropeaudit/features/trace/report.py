"""What an implementation does, stage by stage, and which recipe it behaves like, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.trace.analysis import Traced
from ropeaudit.features.trace.compare import COMPARED, Likeness, expected, narrowest
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import percent
from ropeaudit.subjects.placement import likeness

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "implementation": "name of what was called",
    "dtype": "number format of q and k",
    "layout": "pairs of dims: half or interleaved",
    "head_dim": "dims of a head",
    "rotary_dim": "dims of a head that are rotated",
    "base": "theta: frequencies are base^(-2i/rotary_dim)",
    "stage": "position, frequency, angle, trig, table, input, rotation or output; none: nothing was seen",
    "seen": "dtypes that its numbers took, in order",
    "operations": "torch operations, in the order in which they came first; given: made by the caller",
    "recipe_format": "number format of the stage in the nearest recipe",
    "agrees": "whether the narrowest dtype seen is that format; nan where it is not compared",
    "nearest": "recipes that rotate with the arithmetic nearest to what was measured; none: no named one",
    "behaviour": "that arithmetic in words, or the fault that was recognised; none: nothing known",
    "distance": "RMS distance of rotated vectors from the recipe's, over that from exact ones; worst offset",
    "equal": "share of the numbers that are the recipe's to the last bit",
    "profile": "largest factor between the RMS drifts of both, over the offsets",
    "refused": "why it could not be called; none where it could",
}
LEGEND = (
    "seen: dtypes that the stage's numbers took; recipe format: that of the nearest recipe, by its numbers;\n"
    "distance: RMS difference of its rotated vectors from the recipe's, over that from the exact ones."
)
_SCREEN = ("implementation", "dtype", "stage", "seen", "operations", "recipe_format", "agrees")
_DISPENSABLE = ("agrees", "operations")
_PROFILE = ("implementation", "dtype", "offset", "drift_rms", "predicted_rms", "ratio")
_RECIPES = (
    "implementation",
    "dtype",
    "behaviour",
    "recipes",
    "distance",
    "equal",
    "profile",
    "stages_differing",
)
_SHOWN = 4  # recipes


def rows(results: Traced) -> list[dict[str, Any]]:
    """Return the columns of `COLUMNS`, a row a stage."""
    about = {"schema": SCHEMA, "implementation": results.name, "dtype": results.dtype.name}
    about |= {name: getattr(results.setting, name) for name in ("layout", "head_dim", "rotary_dim", "base")}
    best = results.nearest()[0] if results.likely else None
    right = expected(best.group.resolved) if best else {}
    tail = {
        "nearest": " ".join(names(results)) or "none",
        "behaviour": likeness.words(best.group.resolved) if best else results.fault or "none",
        "distance": best.distance if best else math.nan,
        "equal": best.equal if best else math.nan,
        "profile": best.profile if best else math.nan,
        "refused": results.refused or "none",
    }
    built = []
    for stage in results.stages:
        form = right.get(stage.name)
        seen = {
            "stage": stage.name,
            "seen": " -> ".join(stage.dtypes),
            "operations": " ".join(stage.operations) or "none",
        }
        agrees = None if form is None else "yes" if narrowest(stage) == form else "no"
        built.append({**about, **seen, "recipe_format": form or "none", "agrees": agrees, **tail})
    empty = {"stage": "none", "seen": "none", "operations": "none", "recipe_format": "none", "agrees": None}
    return built or [{**about, **empty, **tail}]


def names(results: Traced) -> list[str]:
    """Return the recipes that none is nearer than."""
    return [name for like in results.nearest() for name in like.group.names] if results.likely else []


def trace_report(
    results: Sequence[Traced],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    extra_notes: Sequence[str] = (),
) -> Report:
    """Return the report. columns: what is shown and written, in this order. extra_notes: the first notes."""
    return Report(
        rows=[row for one in results for row in rows(one)],
        columns=list(columns or COLUMNS),
        screen=list(columns or _SCREEN),
        dispensable=() if columns else _DISPENSABLE,
        headline=" ".join(headline(one) for one in results) or "Nothing was traced.",
        notes=[*extra_notes, *(text for one in results for text in notes(one))],
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
        further={"profiles": _profiles(results), "recipes": _recipes(results)},
    )


def headline(results: Traced) -> str:
    """Return the finding on one implementation in a sentence."""
    who = f"{results.name} in {results.dtype}"
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
    who = f"{results.name} {results.dtype}"
    message = [f"{who}: offset {offset} was left out: {reason}" for offset, reason in results.dropped.items()]
    if not results.refused and not results.stages:
        message.append(f"{who}: it does not run in torch; its numbers alone were compared.")
    return message


def _profiles(results: Sequence[Traced]) -> Report:
    """Return drift by offset, beside what the nearest recipe predicts."""
    built = []
    for one in results:
        for offset, drift in (one.drifts or {}).items():
            right = (one.predicted or {}).get(offset, math.nan)
            values = (one.name, one.dtype.name, offset, drift, right, drift / right if right else math.nan)
            built.append(dict(zip(_PROFILE, values, strict=True)))
    title = "Drift of scores formed in float64, by offset, and what the nearest recipe predicts:"
    return Report(built, _PROFILE, _PROFILE, headline=title if built else "")


def _recipes(results: Sequence[Traced]) -> Report:
    """Return the nearest recipes."""
    built = []
    for one in results:
        for like in one.likely[: max(_SHOWN, len(one.nearest()))]:
            recipes = " ".join(like.group.names) or "none"
            values = (
                *(one.name, one.dtype.name, likeness.words(like.group.resolved), recipes),
                *(like.distance, like.equal, like.profile, " ".join(like.differing) or "none"),
            )
            built.append(dict(zip(_RECIPES, values, strict=True)))
    title = "Recipes, nearest first:"
    return Report(built, _RECIPES, _RECIPES[:-1], ("profile", "recipes"), title if built else "")
