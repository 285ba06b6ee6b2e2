"""How near an implementation's rotation is to a recipe's: its numbers, its drift, its dtypes.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.recipes import Resolved
from ropeaudit.subjects.placement import likeness
from ropeaudit.subjects.placement.likeness import RecipeGroup

LIKE = 0.5  # the largest distance of a likeness
COMPARED = 48  # positions at an offset
_FINEST = 2.0**-50  # float64 angles are not compared more finely than this, per token
_TIE = 0.02  # share by which two distances must differ for one recipe to be nearer


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


def nearest(likely: Sequence[Likeness]) -> list[Likeness]:
    """Return those that none is nearer than: of ties those whose dtypes differ least from the seen ones."""
    near = [like for like in likely if like.distance <= likely[0].distance * (1 + _TIE) + 1e-12]
    fewest = min((len(like.differing) for like in near), default=0)
    return [like for like in near if len(like.differing) == fewest]


def compared(
    group: RecipeGroup,
    exact: Mapping[int, FloatArray],
    vectors: Mapping[int, FloatArray],
    others: Mapping[int, FloatArray],
    drifts: Mapping[int, float],
    other_drifts: Mapping[int, float],
    stages: Sequence[Stage],
) -> Likeness:
    """Compare numbers at every offset, RMS drifts, and dtypes."""
    distance, equal = 0.0, []
    for offset, seen in vectors.items():
        other = others[offset]
        both = np.isfinite(seen).all(axis=2) & np.isfinite(other).all(axis=2)
        alike = np.array_equal(np.isfinite(seen), np.isfinite(other))
        own_error = likeness.rms_difference(seen[both], exact[offset][both]) if both.any() else 0.0
        difference = likeness.rms_difference(seen[both], other[both]) if both.any() else 0.0
        difference /= max(own_error, _FINEST * (COMPARED + abs(offset)))
        distance = max(distance, difference if alike else math.inf)
        equal.append(float(np.mean((seen == other) | (np.isnan(seen) & np.isnan(other)))))
    profile = max(_factor(drifts[offset], other_drifts[offset]) for offset in vectors)
    return Likeness(group, distance, float(np.mean(equal)), profile, _differing(group.resolved, stages))


def _factor(first: float, second: float) -> float:
    """Return by which factor two RMS drifts differ, at least 1; inf where only one is undefined."""
    if math.isnan(first) or math.isnan(second):
        return 1.0 if math.isnan(first) and math.isnan(second) else math.inf
    low, high = sorted((first, second))
    return high / low if low else (1.0 if not high else math.inf)


def expected(resolved: Resolved) -> dict[str, str]:
    """Return stage -> dtype that a recipe rounds to there."""
    before = {"position": resolved.position, "frequency": resolved.frequency[1], "angle": resolved.angle[1]}
    table = min(resolved.trig, resolved.table or resolved.trig, key=lambda fmt: fmt.precision)
    after = {"trig": resolved.trig, "table": table, "rotation": resolved.rotation, "output": resolved.output}
    return {stage: fmt.name for stage, fmt in (before | after).items()}


def narrowest(stage: Stage) -> str:
    """Return the narrowest dtype that a stage's numbers took: what they are rounded to."""
    real = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
    names = [real.get(name, name) for name in stage.dtypes]
    widths = ("bfloat16", "float16", "float32", "float64")
    return min(names, key=lambda name: widths.index(name) if name in widths else -1)


def _differing(resolved: Resolved, stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return the stages that were seen in a dtype other than the recipe's; trig is compared as the table."""
    right, there = expected(resolved), {stage.name for stage in stages}
    comparable = [
        stage for stage in stages if stage.name in right and (stage.name, "table" in there) != ("trig", True)
    ]
    return tuple(stage.name for stage in comparable if narrowest(stage) != right[stage.name])
