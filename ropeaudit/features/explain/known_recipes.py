"""What the known recipes do to the same q and k, and how near each of them is to what was observed.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.engine import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.errors import RopeAuditError
from ropeaudit.inputs import qk
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import known_recipes
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects import Subject, exact_rotation
from ropeaudit.subjects.calling import exposure
from ropeaudit.subjects.emulated import Emulated

VectorsAt: TypeAlias = Mapping[int, FloatArray]  # by offset
DriftsAt: TypeAlias = Mapping[int, float]
LIKE = 0.5  # the largest distance of a likeness
COMPARED = 48  # positions at an offset
_HEADS = 2
_TIE = 0.02  # share by which two distances must differ for one recipe to be nearer
_FINEST = 2.0**-50  # float64 angles are not compared more finely than this, per token


@dataclass(frozen=True, slots=True)
class Stage:
    """What was seen of one stage: dtypes in order, the operations."""

    name: str
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near a group of recipes is. profile: largest factor between RMS drifts over the offsets.

    distance: RMS of the vectors' difference over the implementation's own error, largest over the offsets.
    equal: share of the numbers that are the same. differing: stages whose dtype is another, of those seen.
    """

    group: RecipeGroup
    distance: float
    equal: float
    profile: float
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownRecipes:
    """q and k, and what all recipes do to them: vectors by (group, offset), RMS drifts by offset."""

    inputs: Inputs
    exact: VectorsAt
    subjects: Sequence[Emulated]
    vectors: Mapping[tuple[int, int], FloatArray]
    drifts: Sequence[DriftsAt]


@dataclass(frozen=True, slots=True)
class Observed:
    """What an implementation does: rotated q (h, s, d) and RMS drift by offset, and the stages seen."""

    vectors: VectorsAt
    drifts: DriftsAt
    stages: Sequence[Stage]


def nearest(likely: Sequence[Likeness]) -> list[Likeness]:
    """Return those that none is nearer than: of ties those whose dtypes differ least from the seen ones."""
    near = [like for like in likely if like.distance <= likely[0].distance * (1 + _TIE) + 1e-12]
    fewest = min((len(like.differing) for like in near), default=0)
    return [like for like in near if len(like.differing) == fewest]


def expected(resolved: Resolved) -> dict[str, str]:
    """Return stage -> dtype that a recipe rounds to there."""
    before = {"position": resolved.position, "frequency": resolved.frequency[1], "angle": resolved.angle[1]}
    table = min(resolved.trig, resolved.table or resolved.trig, key=lambda fmt: fmt.precision)
    after = {"trig": resolved.trig, "table": table, "rotation": resolved.rotation, "output": resolved.output}
    return {stage: fmt.name for stage, fmt in (before | after).items()}


def narrowest(stage: Stage) -> str:
    """Return the narrowest dtype that a stage's numbers took: what they are rounded to."""
    return exposure.narrowest(stage.dtypes)


@functools.lru_cache(maxsize=4)
def compared(dtype: Format, setting: RopeSetting, seed: int, offsets: tuple[int, ...]) -> KnownRecipes:
    """Return what implementations are compared with, computed once for all of them."""
    inputs = qk.make("gaussian", _HEADS, _HEADS, COMPARED, setting, seed)
    at = np.arange(COMPARED, dtype=np.int64)
    subjects = [Emulated(group.resolved, setting) for group in known_recipes.variants(dtype)]
    vectors = {
        (number, offset): known_recipes.rotated(group, inputs.q, at + offset, setting)
        for number, group in enumerate(known_recipes.variants(dtype))
        for offset in offsets
    }
    exact = {offset: exact_rotation.rotated(inputs.q, at + offset, setting) for offset in offsets}
    return KnownRecipes(inputs, exact, subjects, vectors, rms_drifts(subjects, inputs, setting, offsets))


def rms_drifts(
    subjects: Sequence[Subject], inputs: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> list[dict[int, float]]:
    """Return the RMS drift of each subject at each offset, which begin with 0; scores are float64's."""
    plan = Plan(subjects, [list(offsets)] * len(subjects), inputs, setting, "causal")
    cells = measure.measure(plan, run_metadata.threads(), lambda share: None)
    return [
        {offset: cells[number, offset].drift.rms for offset in offsets} for number in range(len(subjects))
    ]


def likenesses(observed: Observed, known: KnownRecipes, dtype: Format) -> list[Likeness]:
    """Return how near every known recipe is, nearest first.

    The nearest one with the dtypes that were seen stands before all others where that comes nearer.
    """
    ranked = []
    for number, group in enumerate(known_recipes.variants(dtype)):
        vectors = {offset: known.vectors[number, offset] for offset in observed.vectors}
        ranked.append(_likeness(group, known, observed, vectors, known.drifts[number]))
    ranked.sort(key=lambda like: (like.distance, like.profile))
    return [*_with_seen_dtypes(ranked, known, observed, dtype), *ranked]


def _likeness(
    group: RecipeGroup, known: KnownRecipes, observed: Observed, vectors: VectorsAt, drifts: DriftsAt
) -> Likeness:
    """Compare a group's numbers at every offset, its RMS drifts, and its dtypes with what was observed."""
    distance, equal = 0.0, []
    for offset, seen in observed.vectors.items():
        other = vectors[offset]
        both = np.isfinite(seen).all(axis=2) & np.isfinite(other).all(axis=2)
        alike = np.array_equal(np.isfinite(seen), np.isfinite(other))
        own_error = known_recipes.rms_difference(seen[both], known.exact[offset][both]) if both.any() else 0.0
        difference = known_recipes.rms_difference(seen[both], other[both]) if both.any() else 0.0
        difference /= max(own_error, _FINEST * (COMPARED + abs(offset)))
        distance = max(distance, difference if alike else math.inf)
        equal.append(float(np.mean((seen == other) | (np.isnan(seen) & np.isnan(other)))))
    profile = max(_factor(observed.drifts[offset], drifts[offset]) for offset in observed.vectors)
    differing = _differing(group.resolved, observed.stages)
    return Likeness(group, distance, float(np.mean(equal)), profile, differing)


def _factor(first: float, second: float) -> float:
    """Return by which factor two RMS drifts differ, at least 1; inf where only one is undefined."""
    if math.isnan(first) or math.isnan(second):
        return 1.0 if math.isnan(first) and math.isnan(second) else math.inf
    low, high = sorted((first, second))
    return high / low if low else (1.0 if not high else math.inf)


def _differing(resolved: Resolved, stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return the stages that were seen in a dtype other than the recipe's; trig is compared as the table."""
    right, there = expected(resolved), {stage.name for stage in stages}
    comparable = [
        stage for stage in stages if stage.name in right and (stage.name, "table" in there) != ("trig", True)
    ]
    return tuple(stage.name for stage in comparable if narrowest(stage) != right[stage.name])


def _with_seen_dtypes(
    ranked: Sequence[Likeness], known: KnownRecipes, observed: Observed, dtype: Format
) -> list[Likeness]:
    """Return the nearest recipe with the dtypes that were seen, where its numbers are nearer then."""
    best = nearest(ranked)[0]
    if not best.differing or best.distance > LIKE:
        return []
    seen = {stage.name: narrowest(stage) for stage in observed.stages}
    changes = {
        name: f"fp32/{seen[name]}" if name in ("frequency", "angle") else seen[name]
        for name in best.differing
    }
    try:
        resolved = best.group.resolved.recipe.changed(changes).resolve(dtype)
    except RopeAuditError:  # dtypes that no recipe can name
        return []
    setting, inputs = known.subjects[0].setting, known.inputs
    offsets = list(observed.vectors)
    group, at = RecipeGroup((), resolved), np.arange(COMPARED, dtype=np.int64)
    vectors = {offset: known_recipes.rotated(group, inputs.q, at + offset, setting) for offset in offsets}
    (drifts,) = rms_drifts([Emulated(resolved, setting)], inputs, setting, offsets)
    changed = _likeness(group, known, observed, vectors, drifts)
    return [changed] if changed.distance < best.distance else []
