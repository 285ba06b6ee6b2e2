"""Which stage is to blame for a drift, or for scores that are not finite, and which to widen.

A stage takes part by rounding as the recipe says, and stays away by being float64. The drift of each subset
of the stages is measured once, and all is read off that. What a stage adds depends on which others are there,
so its share is the Shapley value: the mean over all orders in which they can come in.
Source: Shapley, "A value for n-person games", 1953.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.variants import Bench
from ropeaudit.console import values as numbers
from ropeaudit.engine.statistics import Moments, Statistics
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.recipes import STAGES, Resolved
from ropeaudit.subjects import Positions

Coalition = frozenset[str]
# the reference rounds its q and k too, and scores come before the softmax
SHARED = tuple(stage for stage in STAGES if stage not in ("input", "softmax"))


def formats(recipe: Resolved, stage: str) -> tuple[Format, ...]:
    """Return the formats of a stage: computed and stored, one alone, or none."""
    own = getattr(recipe, stage)
    return own if isinstance(own, tuple) else () if own is None else (own,)


def widened(recipe: Resolved, stages: Mapping[str, Format]) -> Resolved:
    """Return the recipe with these stages at least as precise."""
    changes: dict[str, Any] = {}
    for stage, wide in stages.items():
        some = tuple(wide if wide.precision > f.precision else f for f in formats(recipe, stage))
        if some:
            changes[stage] = some if isinstance(getattr(recipe, stage), tuple) else some[0]
    return replace(recipe, **changes)


def subsets(recipe: Resolved, positions: Positions) -> dict[Coalition, Resolved]:
    """Return a recipe per subset of the stages that round; others are float64."""
    exact = positions.astype(np.float64)
    with np.errstate(over="ignore"):
        unrounded = {"position"} if (round_to(exact, recipe.position) == exact).all() else set[str]()
    names = {stage for stage in SHARED if set(formats(recipe, stage)) - {FP64}} - unrounded
    order = [stage for stage in SHARED if stage in names]
    every = (frozenset(some) for size in range(len(order) + 1) for some in combinations(order, size))
    return {some: widened(recipe, dict.fromkeys(names - some, FP64)) for some in every}


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


TOLERABLE = ("drift_rms", "drift_max", "drift_relative")
USUAL_SHARE = 0.1  # of the RMS drift, where no tolerance is given


@dataclass(frozen=True, slots=True)
class DriftTolerance:
    """A bound on a column; without one, that every score be finite."""

    column: str
    bound: float
    given: bool = True

    def __str__(self) -> str:
        return f"{self.column} <= {self.bound:.3g}" if self.column else "every score finite"

    def value(self, drift: Statistics, reference: Statistics) -> float:
        """Return the value of the column, in a drift."""
        if self.column == "drift_max":
            return drift.max
        relative = self.column == "drift_relative" and reference.rms
        return drift.rms / reference.rms if relative else drift.rms

    @property
    def moments(self) -> Moments:
        """What of a drift it looks at."""
        return Moments.LARGEST if self.column == "drift_max" else Moments.SQUARES

    def met_by(self, drift: Statistics, reference: Statistics) -> bool:
        """Return whether a drift is within the bound; nan is not."""
        if not self.column:
            return not drift.nonfinite
        return self.value(drift, reference) <= self.bound


def tolerance(given: str | tuple[str, float]) -> DriftTolerance:
    """Return COLUMN=X, or X, as a tolerance. Raises: UsageError, UnknownName."""
    column, bound = numbers.tolerance(given, "--tolerance") if isinstance(given, str) else given
    if column not in TOLERABLE:
        raise UnknownName("column of --tolerance", column, TOLERABLE)
    if not (math.isfinite(bound) and bound >= 0):
        raise UsageError(f"--tolerance {column}={bound:g}: give a finite number that is not negative")
    return DriftTolerance(column, float(bound))


REST = "float64"  # what float64 in every stage leaves
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


@dataclass(frozen=True, slots=True)
class Remedy:
    """Stages in wider formats, what drift that leaves, and what it costs.

    removed: share of the RMS drift that is gone. table_bytes: cos and sin of all positions up to the last.
    multiply_bits: width of the widest multiplication that it widens, 0 if it widens none.
    """

    widths: Mapping[str, Format]
    drift: Statistics
    removed: float
    meets: bool
    table_bytes: int
    multiply_bits: int


_ALIKE = 1.05  # a drift so many times the smallest is as good
_MOST_SETS = 8  # sets of one size that are tried in narrower formats
_MULTIPLIES = ("angle", "rotation", "accumulate")


@dataclass(frozen=True, slots=True)
class Design:
    """Drifts of a recipe with each subset of its stages. positions: how many a table holds."""

    recipe: Resolved
    bench: Bench
    drifts: Mapping[Coalition, Statistics]
    accepted: DriftTolerance
    positions: int

    @property
    def names(self) -> Coalition:
        """The stages that round."""
        return max(self.drifts, key=len)

    def alone(self, *stages: str) -> Statistics:
        """Return the drift where of all stages these alone round."""
        return self.drifts[self.names & set(stages)]

    def without(self, *stages: str) -> Statistics:
        """Return the drift where all stages but these round."""
        return self.drifts[self.names - set(stages)]

    def nonfinite(self) -> NonfiniteScores | None:
        """Return the first stage that makes a score nonfinite, and what repairs all."""
        if not self.without().nonfinite:
            return None
        order = [stage for stage in STAGES if stage in self.names]
        first = next(n for n in range(len(order) + 1) if self.alone(*order[:n]).nonfinite)
        repaired = (stage for stage in order if not self.without(stage).nonfinite)
        return NonfiniteScores(order[first - 1] if first else "input", tuple(repaired))

    def blames(self, cancelling: float) -> tuple[Blame, ...]:
        """Return every stage and its part in the drift, the worst first."""
        own, rms, nonfinite = self.recipe.stages(), self.without().rms, self.nonfinite()
        defined, shares = bool(rms) and not nonfinite, dict.fromkeys(SHARED, math.nan)
        if defined:
            values = shapley({some: drift.rms**2 for some, drift in self.drifts.items()})
            shares |= {stage: values.get(stage, 0.0) / rms**2 for stage in SHARED}
        ranked, independent = list[Blame](), 2 / math.pi * math.sqrt(self.bench.setting.head_dim)
        for stage in SHARED:
            alone, others = self.alone(stage), self.without(stage)
            why = CAUSES.get(stage, "quantisation")
            if stage == "accumulate" and not cancelling > CANCELS * independent:
                why = "quantisation"
            if nonfinite and (stage in (nonfinite.first, *nonfinite.repaired_by) or alone.nonfinite):
                why = "overflow"
            removed = 1.0 - others.rms / rms if rms else math.nan
            ranked.append(Blame(stage, own[stage], alone.rms, others.rms, removed, shares[stage], why))
        first = nonfinite.first if nonfinite else ""
        if first == "input":
            ranked.append(Blame("input", own["input"], cause="overflow"))

        def size(one: Blame) -> float:
            return 0.0 if math.isnan(one.share) else round(one.share, _DIGITS)

        ranked.sort(key=lambda one: (one.stage != first, -size(one)))
        rest = self.alone()
        if defined and (part := rest.rms**2 / rms**2) >= _REST_SHOWN:
            ranked.append(Blame(REST, "float64", alone=rest.rms, share=part))
        return tuple(ranked)

    def remedies(self) -> list[Remedy]:
        """Return of every size the set that leaves the least drift, up to the first that is enough.

        Of those that are enough it is the one with the fewest stages in float64.
        """
        if self._meets(self.without()):
            return [self._remedy({})]
        order, remedies = [stage for stage in SHARED if stage in self.names], list[Remedy]()
        for size in range(1, 0 if self.bench.reference.nonfinite else len(order) + 1):
            sets = sorted(combinations(order, size), key=lambda stages: _size(self.without(*stages)))
            if meeting := [stages for stages in sets if self._meets(self.without(*stages))]:
                some = [self._narrowest(stages) for stages in meeting[:_MOST_SETS]]
                fewest = min(some, key=lambda one: ([*one.widths.values()].count(FP64), _size(one.drift)))
                return [*remedies, fewest]
            nonfinite, least = _size(self.without(*sets[0]))
            remedies.append(self._narrowest(sets[0], (nonfinite, least * _ALIKE)))
            if remedies[-1].meets:
                break
        return remedies

    def _narrowest(self, stages: Sequence[str], most: tuple[int, float] | None = None) -> Remedy:
        """Return a set in the narrowest formats that meet the tolerance, or leave at most such a drift."""
        narrow = [s for s in stages if any(f.precision < FP32.precision for f in formats(self.recipe, s))]
        for count in range(len(narrow), 0, -1):
            tries = [
                {s: FP32 if s in single else FP64 for s in stages} for single in combinations(narrow, count)
            ]
            variants = (widened(self.recipe, widths) for widths in tries)
            drifts = self.bench.drifts(variants, moments=self.accepted.moments)
            enough = [self._meets(drift) if most is None else _size(drift) <= most for drift in drifts]
            if good := [(_size(drift), i) for i, drift in enumerate(drifts) if enough[i]]:
                return self._remedy(tries[min(good)[1]])
        return self._remedy(dict.fromkeys(stages, FP64))

    def _remedy(self, widths: Mapping[str, Format]) -> Remedy:
        variant, before = widened(self.recipe, widths), self.without().rms
        (drift,) = self.bench.drifts([variant])
        removed = 1.0 - drift.rms / before if before else math.nan
        numbers = self.positions * self.bench.setting.pairs * 2
        table_bytes = numbers * (variant.table or variant.trig).storage_bits // 8
        multiplies = [widths[stage].storage_bits for stage in widths if stage in _MULTIPLIES]
        return Remedy(widths, drift, removed, self._meets(drift), table_bytes, max(multiplies, default=0))

    def _meets(self, drift: Statistics) -> bool:
        return self.accepted.met_by(drift, self.bench.reference)


def _size(drift: Statistics) -> tuple[int, float]:
    """Return how bad a drift is: nonfinite scores first, then its RMS."""
    return drift.nonfinite, 0.0 if drift.nonfinite else drift.rms
