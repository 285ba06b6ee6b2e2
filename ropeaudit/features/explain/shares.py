"""The share of each stage in a drift, and the stage at which scores stop being finite.

A stage takes part by rounding as the recipe says, and stays away by being float64. What it adds
depends on the others, so its share is the Shapley value: the mean over all orders of coming in.
Stages that add nearly nothing come in together; each gets the mean of what it adds first and last.
Source: Shapley, "A value for n-person games", 1953.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.audits.variants import Bench
from ropeaudit.engine.statistics import Statistics
from ropeaudit.recipes import STAGES, Resolved

Coalition = frozenset[str]
# the reference rounds its q and k too, and scores come before the softmax
SHARED = tuple(stage for stage in STAGES if stage not in ("input", "softmax"))
REST = "float64"  # what float64 in every stage leaves
WEAK = 1e-3  # of the mean square drift: stages that add less, first or last, come in together
_REST_SHOWN = 1e-6  # of the mean square
_DIGITS = 3  # of a share, by which stages are ranked
# stage -> why it drifts: docs/diagnoses.md
CAUSES: dict[str, str] = {
    "position": "aliasing",  # distinct positions become the same number
    "frequency": "sensitivity",  # a position multiplies the relative error of a frequency
    "angle": "sensitivity",  # the spacing of angles grows with the position
    "accumulate": "cancellation",  # of terms over CANCELS times independent ones
}
CANCELS = 3.0


@dataclass(frozen=True, slots=True)
class Blame:
    """The part of a stage in the drift.

    alone: RMS drift with only this stage rounded.
    without: RMS drift with only this one in float64.
    removed: 1 - without / drift.
    share: Shapley value of the mean square drift over it; nan: not defined.
    """

    stage: str
    format: str
    alone: float = math.nan
    without: float = math.nan
    removed: float = math.nan
    share: float = math.nan
    cause: str = "none"


@dataclass(frozen=True, slots=True)
class NonfiniteScores:
    """The first stage that makes scores nonfinite, and the stages that repair them."""

    first: str
    repaired_by: tuple[str, ...]


def formats(recipe: Resolved, stage: str) -> tuple[Format, ...]:
    """Return the formats of a stage: computed and stored, a single one, or none."""
    own = getattr(recipe, stage)
    return own if isinstance(own, tuple) else () if own is None else (own,)


def widened(recipe: Resolved, stages: Mapping[str, Format]) -> Resolved:
    """Return the recipe with these stages in formats at least as precise."""
    changes: dict[str, Any] = {}
    for stage, wide in stages.items():
        own = formats(recipe, stage)
        wider = tuple(wide if wide.precision > fmt.precision else fmt for fmt in own)
        if wider:
            changes[stage] = wider if isinstance(getattr(recipe, stage), tuple) else wider[0]
    return replace(recipe, **changes)


def shapley(values: Mapping[Coalition, float]) -> dict[str, float]:
    """Return the Shapley value of every player; they add up to values[all] - values[nobody].

    values: the value of each coalition; nan makes all values that depend on it nan.

    >>> parts = shapley({frozenset(s): v for s, v in [("", 0.0), ("a", 1.0), ("b", 2.0), ("ab", 5.0)]})
    >>> parts["a"], parts["b"]
    (2.0, 3.0)
    """
    everybody = max(values, key=len)
    count, shapley_values = len(everybody), dict.fromkeys(everybody, 0.0)
    for coalition, value in values.items():
        for player in everybody - coalition:
            orders = count * math.comb(count - 1, len(coalition))
            shapley_values[player] += (values[coalition | {player}] - value) / orders
    return shapley_values


class Design:
    """A recipe on a bench, in which any subset of its stages rounds and the others are float64.

    names: the stages that round. whole, rest: the drift with all of them, and with none.
    alone, without: by stage, the drift where it alone rounds, and where all others do.
    """

    def __init__(self, recipe: Resolved, bench: Bench) -> None:
        self.recipe, self.bench = recipe, bench
        self.names = [stage for stage in SHARED if set(formats(recipe, stage)) - {FP64}]
        every = frozenset(self.names)
        singles = [frozenset([stage]) for stage in self.names]
        self.whole, self.rest = self.drifts([every, frozenset()])
        self.alone = dict(zip(self.names, self.drifts(singles), strict=True))
        without = self.drifts(every - one for one in singles)
        self.without = dict(zip(self.names, without, strict=True))

    def drifts(self, some: Iterable[Coalition]) -> list[Statistics]:
        """Return the drift for each subset of stages that round."""
        wide = [dict.fromkeys(set(self.names) - rounding, FP64) for rounding in some]
        return self.bench.drifts(widened(self.recipe, stages) for stages in wide)

    def nonfinite(self) -> NonfiniteScores | None:
        """Return the stages that make scores nonfinite; None if all scores are finite."""
        if not self.whole.nonfinite:
            return None
        order = ["input", *self.names]
        drifts = self.drifts(frozenset(order[1:count]) for count in range(1, len(order) + 1))
        first = next(stage for stage, one in zip(order, drifts, strict=True) if one.nonfinite)
        repaired = (stage for stage, one in self.without.items() if not one.nonfinite)
        return NonfiniteScores(first, tuple(repaired))

    def shares(self) -> dict[str, float]:
        """Return the Shapley value of each stage that rounds, over the mean square drift."""
        total, rest = self.whole.rms**2, self.rest.rms**2
        first = {stage: one.rms**2 - rest for stage, one in self.alone.items()}
        last = {stage: total - one.rms**2 for stage, one in self.without.items()}
        most = {stage: max(abs(first[stage]), abs(last[stage])) for stage in self.names}
        weak = [stage for stage in self.names if most[stage] < WEAK * total]
        players = {stage: {stage} for stage in self.names if stage not in weak}
        players |= {"weak": set(weak)} if weak else {}
        sizes = range(len(players) + 1)
        some = [frozenset(one) for size in sizes for one in combinations(players, size)]
        rounding = (Coalition().union(*map(players.__getitem__, one)) for one in some)
        drifts = (one.rms**2 for one in self.drifts(rounding))
        values = shapley(dict(zip(some, drifts, strict=True)))
        if weak:
            means = {stage: (first[stage] + last[stage]) / 2 for stage in weak}
            size = sum(map(abs, means.values())) or 1.0
            left = (values.pop("weak") - sum(means.values())) / size
            values |= {stage: mean + left * abs(mean) for stage, mean in means.items()}
        return {stage: value / total for stage, value in values.items()}

    def blames(self, cancelling: float) -> tuple[Blame, ...]:
        """Return the part of every stage in the drift, the worst first."""
        own, rms, nonfinite = self.recipe.stages(), self.whole.rms, self.nonfinite()
        defined = bool(rms) and not nonfinite
        shares = self.shares() if defined else dict.fromkeys(SHARED, math.nan)
        first = nonfinite.first if nonfinite else ""
        independent = 2 / math.pi * math.sqrt(self.bench.setting.head_dim)
        ranked = [Blame("input", own["input"], cause="overflow")] if first == "input" else []
        for stage in SHARED:
            alone = self.alone.get(stage, self.rest)
            others = self.without.get(stage, self.whole)
            why = CAUSES.get(stage, "quantisation")
            if stage == "accumulate" and not cancelling > CANCELS * independent:
                why = "quantisation"
            if nonfinite and (stage in (first, *nonfinite.repaired_by) or alone.nonfinite):
                why = "overflow"
            removed = 1.0 - others.rms / rms if rms else math.nan
            part = alone.rms, others.rms, removed, shares.get(stage, 0.0), why
            ranked.append(Blame(stage, own[stage], *part))

        def size(blame: Blame) -> float:
            return 0.0 if math.isnan(blame.share) else round(blame.share, _DIGITS)

        ranked.sort(key=lambda one: (one.stage != first, -size(one)))
        left = self.rest.rms**2 / rms**2 if defined else 0.0
        if left >= _REST_SHOWN:
            ranked.append(Blame(REST, "float64", alone=self.rest.rms, share=left))
        return tuple(ranked)
