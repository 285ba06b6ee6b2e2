"""The share of each stage in a drift, and the stage at which scores stop being finite.

A stage takes part by rounding as the recipe says, and stays away by being float64. What a stage adds depends
on which others are there, so its share is the Shapley value: the mean over all orders in which they can come
in. Stages that add nearly nothing come in together, and share what they add by the mean of coming first and
last, which is exact where errors add up.
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
# stage -> why it drifts: docs/causes.md
CAUSES: dict[str, str] = {
    "position": "aliasing",  # distinct positions become the same number
    "frequency": "sensitivity",  # a position multiplies the relative error of a frequency
    "angle": "sensitivity",  # the spacing of angles grows with the position
    "accumulate": "cancellation",  # of terms over CANCELS times independent ones
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
    alone: float = math.nan
    without: float = math.nan
    removed: float = math.nan
    share: float = math.nan
    cause: str = "none"


@dataclass(frozen=True, slots=True)
class NonfiniteScores:
    """Scores that are not finite: the stage to blame, those that repair all."""

    first: str
    repaired_by: tuple[str, ...]


def formats(recipe: Resolved, stage: str) -> tuple[Format, ...]:
    """Return the formats of a stage: computed and stored, one alone, or none."""
    own = getattr(recipe, stage)
    return own if isinstance(own, tuple) else () if own is None else (own,)


def widened(recipe: Resolved, stages: Mapping[str, Format]) -> Resolved:
    """Return the recipe with these stages at least as precise, and all others as they are."""
    changes: dict[str, Any] = {}
    for stage, wide in stages.items():
        some = tuple(wide if wide.precision > f.precision else f for f in formats(recipe, stage))
        if some:
            changes[stage] = some if isinstance(getattr(recipe, stage), tuple) else some[0]
    return replace(recipe, **changes)


def subsets(stages: Iterable[str]) -> list[Coalition]:
    """Return every subset of some stages, the empty one first and the whole last."""
    some = list(stages)
    return [frozenset(one) for size in range(len(some) + 1) for one in combinations(some, size)]


def shapley(values: Mapping[Coalition, float]) -> dict[str, float]:
    """Return the Shapley value of every player; they add up to values[all] - values[nobody].

    values: what each coalition is worth; nan makes the values of all that it bears on nan.

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
    """A recipe on a bench, with any subset of its stages rounding and the others in float64.

    names: the stages that round. whole, rest: the drift with all of them, and with none.
    """

    def __init__(self, recipe: Resolved, bench: Bench) -> None:
        self.recipe, self.bench = recipe, bench
        self.names = [stage for stage in SHARED if set(formats(recipe, stage)) - {FP64}]
        every, count = frozenset(self.names), len(self.names)
        one_alone = [frozenset([stage]) for stage in self.names]
        all_but_one = [every - one for one in one_alone]
        self.whole, self.rest, *drifts = self.drifts([every, frozenset(), *one_alone, *all_but_one])
        self.alone = dict(zip(self.names, drifts[:count], strict=True))
        self.without = dict(zip(self.names, drifts[count:], strict=True))

    def drifts(self, some: Iterable[Coalition]) -> list[Statistics]:
        """Return the drift where of all stages only those of each subset round."""
        wide = ({stage: FP64 for stage in self.names if stage not in rounding} for rounding in some)
        return self.bench.drifts([widened(self.recipe, one) for one in wide])

    def nonfinite(self) -> NonfiniteScores | None:
        """Return the first stage that makes a score nonfinite, and what repairs all."""
        if not self.whole.nonfinite:
            return None
        drifts = self.drifts(frozenset(self.names[:count]) for count in range(len(self.names) + 1))
        first = next(count for count, drift in enumerate(drifts) if drift.nonfinite)
        repaired = tuple(stage for stage in self.names if not self.without[stage].nonfinite)
        return NonfiniteScores(self.names[first - 1] if first else "input", repaired)

    def shares(self) -> dict[str, float]:
        """Return the Shapley value of each stage that rounds, over the mean square drift."""
        total, rest = self.whole.rms**2, self.rest.rms**2
        first = {stage: one.rms**2 - rest for stage, one in self.alone.items()}
        last = {stage: total - one.rms**2 for stage, one in self.without.items()}
        weak = [one for one in self.names if max(abs(first[one]), abs(last[one])) < WEAK * total]
        strong = [stage for stage in self.names if stage not in weak]
        together = "+".join(weak)
        players = {stage: {stage} for stage in strong} | ({together: set(weak)} if weak else {})
        coalitions = subsets(players)
        rounding = (frozenset[str]().union(*(players[one] for one in some)) for some in coalitions)
        drifts = self.drifts(rounding)
        values = shapley({some: one.rms**2 for some, one in zip(coalitions, drifts, strict=True)})
        own = {stage: (first[stage] + last[stage]) / 2 for stage in weak}
        if weak:
            left = (values.pop(together) - sum(own.values())) / len(weak)
            values |= {stage: part + left for stage, part in own.items()}
        return {stage: value / total for stage, value in values.items()}

    def blames(self, cancelling: float) -> tuple[Blame, ...]:
        """Return every stage and its part in the drift, the worst first."""
        formats_of, rms, nonfinite = self.recipe.stages(), self.whole.rms, self.nonfinite()
        defined = bool(rms) and not nonfinite
        shares = dict.fromkeys(SHARED, 0.0) | self.shares() if defined else dict.fromkeys(SHARED, math.nan)
        ranked, independent = list[Blame](), 2 / math.pi * math.sqrt(self.bench.setting.head_dim)
        for stage in SHARED:
            alone, others = self.alone.get(stage, self.rest), self.without.get(stage, self.whole)
            why = CAUSES.get(stage, "quantisation")
            if stage == "accumulate" and not cancelling > CANCELS * independent:
                why = "quantisation"
            if nonfinite and (stage in (nonfinite.first, *nonfinite.repaired_by) or alone.nonfinite):
                why = "overflow"
            removed = 1.0 - others.rms / rms if rms else math.nan
            own = alone.rms, others.rms, removed, shares[stage], why
            ranked.append(Blame(stage, formats_of[stage], *own))
        first = nonfinite.first if nonfinite else ""
        if first == "input":
            ranked.append(Blame("input", formats_of["input"], cause="overflow"))

        def size(one: Blame) -> float:
            return 0.0 if math.isnan(one.share) else round(one.share, _DIGITS)

        ranked.sort(key=lambda one: (one.stage != first, -size(one)))
        if defined and (part := self.rest.rms**2 / rms**2) >= _REST_SHOWN:
            ranked.append(Blame(REST, "float64", alone=self.rest.rms, share=part))
        return tuple(ranked)
