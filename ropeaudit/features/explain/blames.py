"""Which stage is to blame for a drift, or for scores that are not finite, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropeaudit import recipes
from ropeaudit.audits.variants import Bench
from ropeaudit.engine.statistics import Moments
from ropeaudit.features.explain import shares
from ropeaudit.recipes import Resolved

REST = "float64"  # what float64 in every stage leaves
_REST_SHOWN = 1e-6  # of the mean square
_DIGITS = 3  # of a share, by which stages are ranked
# stage -> why it drifts. Two things override it: any score that is not finite is overflow, and an accumulator
# is quantisation unless the terms of a score are more than CANCELS times what the sum of as many
# independent terms would leave of them.
CAUSES: dict[str, str] = {
    "position": "aliasing",  # distinct positions become the same number
    "frequency": "sensitivity",  # a position multiplies the relative error of a frequency
    "angle": "sensitivity",  # the spacing of angles grows with the position
    "trig": "quantisation",
    "table": "quantisation",
    "input": "quantisation",
    "rotation": "quantisation",
    "output": "quantisation",
    "accumulate": "cancellation",
    "score": "quantisation",
}
CANCELS = 3.0


@dataclass(frozen=True, slots=True)
class Blame:
    """A stage and its part in the drift.

    alone: RMS drift with only this stage rounded; without: with only this one in float64; removed:
    1 - without / drift; share: Shapley value of the mean square drift over it. nan: not defined.
    """

    stage: str
    format: str
    alone: float
    without: float
    removed: float
    share: float
    cause: str


@dataclass(frozen=True, slots=True)
class NonfiniteScores:
    """Scores that are not finite: the stage that makes them, and those any of which repairs them all."""

    first: str
    repaired_by: tuple[str, ...]


def nonfinite_scores(bench: Bench, recipe: Resolved, names: Sequence[str]) -> NonfiniteScores:
    """Return the first stage that makes a score nonfinite, as stage after stage rounds, and what repairs all.

    names: the stages that round.
    """
    order = [stage for stage in recipes.STAGES if stage in names]
    prefixes = [order[:count] for count in range(len(order) + 1)]
    drifts = bench.drifts(shares.alone(recipe, names, prefix) for prefix in prefixes)
    first = next(count for count, drift in enumerate(drifts) if drift.nonfinite)
    repaired = bench.drifts(shares.without(recipe, [stage]) for stage in order)
    good = (stage for stage, drift in zip(order, repaired, strict=True) if not drift.nonfinite)
    return NonfiniteScores(order[first - 1] if first else "input", tuple(good))


def blames(
    bench: Bench,
    recipe: Resolved,
    names: Sequence[str],
    rms: float,
    values: Mapping[shares.Coalition, float],
    nonfinite: NonfiniteScores | None,
    cancelling: float,
) -> tuple[Blame, ...]:
    """Return every stage and its part in the drift, the worst first.

    names: the stages that round. rms: the drift of the recipe, score units. values: mean square drift of
    every coalition of stages, empty where a score is not finite. cancelling: as in `Explanation`.
    """
    stages, ranked, nobody = recipe.stages(), list[Blame](), frozenset[str]()
    relative: dict[str, float] = {}
    if values and rms:
        relative = {stage: value / rms**2 for stage, value in shares.shapley(values).items()}
    for stage in shares.SHARED:
        only, without = bench.drifts(
            [shares.alone(recipe, names, [stage]), shares.without(recipe, {stage} & set(names))],
            moments=Moments.SQUARES,
        )
        share = relative.get(stage, math.nan if nonfinite or not rms else 0.0)
        removed = 1.0 - without.rms / rms if rms else math.nan
        first = nonfinite is not None and stage in (nonfinite.first, *nonfinite.repaired_by)
        overflows = first or (nonfinite is not None and only.nonfinite > 0)
        why = cause(stage, overflows, cancelling, bench.scene.setting.head_dim)
        ranked.append(Blame(stage, stages[stage], only.rms, without.rms, removed, share, why))
    if nonfinite and nonfinite.first == "input":
        ranked.append(Blame("input", stages["input"], math.nan, math.nan, math.nan, math.nan, "overflow"))
    ranked.sort(key=lambda blame: _order(blame, nonfinite))
    rest = values[nobody] / rms**2 if values and rms else math.nan
    if rest >= _REST_SHOWN:
        ranked.append(Blame(REST, "float64", math.sqrt(values[nobody]), math.nan, math.nan, rest, "none"))
    return tuple(ranked)


def _order(blame: Blame, nonfinite: NonfiniteScores | None) -> tuple[bool, float]:
    """Return the sort key: the stage that overflows first, then by share; equals keep the order of stages."""
    share = 0.0 if math.isnan(blame.share) else round(blame.share, _DIGITS)
    return not (nonfinite and nonfinite.first == blame.stage), -share


def cause(stage: str, overflows: bool, cancelling: float, head_dim: int) -> str:
    """Return why a stage drifts, in a word; docs/causes.md has an example of each.

    overflows: whether it makes scores infinite or nan, or its widening alone repairs them. cancelling: RMS
    of the summed |terms| of a score over the RMS score; independent terms have (2/pi) sqrt(head_dim).
    """
    if overflows:
        return "overflow"
    independent = 2 / math.pi * math.sqrt(head_dim)
    if stage == "accumulate" and not cancelling > CANCELS * independent:
        return "quantisation"
    return CAUSES[stage]
