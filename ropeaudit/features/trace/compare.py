"""How near an implementation's rotation is to a recipe's: its numbers, its drift, its dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropeaudit.recipes import Resolved
from ropeaudit.subjects.calling import exposure
from ropeaudit.subjects.placement.likeness import RecipeGroup

LIKE = 0.5  # the largest distance of a likeness
COMPARED = 48  # positions at an offset
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


def expected(resolved: Resolved) -> dict[str, str]:
    """Return stage -> dtype that a recipe rounds to there."""
    before = {"position": resolved.position, "frequency": resolved.frequency[1], "angle": resolved.angle[1]}
    table = min(resolved.trig, resolved.table or resolved.trig, key=lambda fmt: fmt.precision)
    after = {"trig": resolved.trig, "table": table, "rotation": resolved.rotation, "output": resolved.output}
    return {stage: fmt.name for stage, fmt in (before | after).items()}


def narrowest(stage: Stage) -> str:
    """Return the narrowest dtype that a stage's numbers took: what they are rounded to."""
    return exposure.narrowest(stage.dtypes)
