"""The smallest set of stages that, computed in wider formats, brings a drift within a tolerance.

Sets are looked for on a sample; those that promise enough are measured as `shift --set` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, islice, product

from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.audits.judging import TOLERANCE
from ropeaudit.console import values as numbers
from ropeaudit.engine.plan import CellStatistics
from ropeaudit.engine.statistics import Statistics
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.explain.shares import Design, formats, widened
from ropeaudit.recipes import STAGES, Resolved

TOLERABLE = ("drift_rms", "drift_max", "drift_relative")
Measure = Callable[[Sequence[Resolved]], list[CellStatistics]]
Widths = Mapping[str, Format]

_PROMISING = 1.2  # times the tolerance: what is within it on a sample promises enough
_SAME = 1.001  # the same, where the sample leaves nothing out
_NEEDED = 1.5  # times the tolerance: a stage that drifts further by itself
_MEASURED = 3  # sets with as many stages, as many of them in float64, that are measured
_MULTIPLIES = ("angle", "rotation", "accumulate")


@dataclass(frozen=True, slots=True)
class DriftTolerance:
    """A bound on a column."""

    column: str = "drift_relative"
    bound: float = TOLERANCE

    def __str__(self) -> str:
        return f"{self.column} <= {self.bound:.3g}"

    def value(self, drift: Statistics, reference: Statistics) -> float:
        """Return the value of the column, in a drift."""
        if self.column == "drift_max":
            return drift.max
        if self.column == "drift_rms" or not drift.rms:
            return drift.rms
        return drift.rms / reference.rms if reference.rms else math.inf

    def met_by(self, measured: CellStatistics) -> bool:
        """Return whether a drift is within the bound, or the reference's error; nan is not."""
        drift = measured.drift
        within_error = self.column == "drift_relative" and drift.max <= measured.error
        return within_error or self.value(drift, measured.reference) <= self.bound


def tolerance(given: str | tuple[str, float]) -> DriftTolerance:
    """Return COLUMN=X, or X, as a tolerance. Raises: UsageError, UnknownName."""
    column, bound = numbers.tolerance(given, "--tolerance") if isinstance(given, str) else given
    if column not in TOLERABLE:
        raise UnknownName("column of --tolerance", column, TOLERABLE)
    if not (math.isfinite(bound) and bound >= 0):
        raise UsageError(f"--tolerance {column}={bound:g}: give a finite number that is not negative")
    return DriftTolerance(column, float(bound))


@dataclass(frozen=True, slots=True)
class Remedy:
    """Stages in wider formats, what drift that leaves of all scores, and what it costs.

    changes: the formats as --set takes them.
    removed: share of the RMS drift that is gone.
    table_bytes: cos and sin of all positions up to the last.
    multiply_bits: width of the widest multiplication that it widens, 0 if it widens none.
    """

    widths: Widths
    changes: Mapping[str, str]
    drift: Statistics
    removed: float
    meets: bool
    table_bytes: int
    multiply_bits: int


def changes(recipe: Resolved, widths: Widths) -> dict[str, str]:
    """Return stage -> format, as --set takes it, of stages that become so wide."""
    wide = widened(recipe, widths)
    stages = [stage for stage in STAGES if stage in widths]
    chains = {stage: [fmt.short for fmt in formats(wide, stage)] for stage in stages}
    return {stage: "/".join(dict.fromkeys(chain)) for stage, chain in chains.items()}


def remedied(recipe: Resolved, widths: Widths) -> Resolved:
    """Return what --set makes of a recipe: stages that follow a changed one change with it."""
    return recipe.recipe.changed(changes(recipe, widths)).resolve(recipe.dtype)


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for the remedy of a recipe.

    whole: whether the sample is all of q and k. measure: of all q and k.
    positions: how many a table holds.
    """

    design: Design
    accepted: DriftTolerance
    whole: bool
    measure: Measure
    positions: int

    def remedies(self, before: CellStatistics) -> tuple[Remedy, ...]:
        """Return the sets that were measured: the last meets the tolerance, or none does."""
        if self.accepted.met_by(before):
            return (self._remedy({}, before.drift, before),)
        tried = list[Remedy]()
        for widths in self._candidates(bool(before.reference.nonfinite)):
            (measured,) = self.measure([remedied(self.design.recipe, widths)])
            tried.append(self._remedy(widths, before.drift, measured))
            if tried[-1].meets:
                break
        return tuple(tried)

    def _candidates(self, inputs_overflow: bool) -> Iterator[Widths]:
        """Yield wider formats of stages, the cheapest first; at last all in float64."""
        alone, names = self.design.alone, self.design.names
        wider = {stage: (FP32, FP64) if self._is_narrow(stage) else (FP64,) for stage in names}
        if inputs_overflow:  # no score of the sample says anything
            yield {"input": FP32}
            yield {"input": FP32} | {stage: some[0] for stage, some in wider.items()}
            return
        most = _NEEDED * self.accepted.bound
        needed = [stage for stage in names if not self._value(alone[stage]) <= most]
        others = [stage for stage in names if stage not in needed]
        for size in range(max(len(needed), 1), len(names) + 1):
            sets = [(*needed, *some) for some in combinations(others, size - len(needed))]
            hopeful = self._promising([dict.fromkeys(stages, FP64) for stages in sets])
            ways = [
                dict(zip(stages, chosen, strict=True))
                for stages in hopeful
                for chosen in product(*(wider[stage] for stage in stages))
            ]
            for _, some in groupby(sorted(ways, key=_doubles), key=_doubles):
                yield from islice(self._promising(list(some)), _MEASURED)
        yield dict.fromkeys(names, FP64)

    def _promising(self, some: Sequence[Widths]) -> Iterator[Widths]:
        """Yield the sets that promise enough on the sample, the least drift first."""
        recipe, bench = self.design.recipe, self.design.bench
        drifts = bench.drifts([remedied(recipe, widths) for widths in some])
        values = [self._value(drift) for drift in drifts]
        most = self.accepted.bound * (_SAME if self.whole else _PROMISING)
        for number in sorted(range(len(some)), key=values.__getitem__):
            if values[number] <= most:
                yield some[number]

    def _value(self, drift: Statistics) -> float:
        return self.accepted.value(drift, self.design.bench.reference)

    def _is_narrow(self, stage: str) -> bool:
        """Return whether float32 widens a stage."""
        own = formats(self.design.recipe, stage)
        return min(fmt.precision for fmt in own) < FP32.precision

    def _remedy(self, widths: Widths, before: Statistics, measured: CellStatistics) -> Remedy:
        variant = remedied(self.design.recipe, widths)
        numbers = self.positions * self.design.bench.setting.pairs * 2
        multiplies = [widths[stage].storage_bits for stage in widths if stage in _MULTIPLIES]
        return Remedy(
            widths=widths,
            changes=changes(self.design.recipe, widths),
            drift=measured.drift,
            removed=1.0 - measured.drift.rms / before.rms if before.rms else math.nan,
            meets=self.accepted.met_by(measured),
            table_bytes=numbers * (variant.table or variant.trig).storage_bits // 8,
            multiply_bits=max(multiplies, default=0),
        )


def _doubles(widths: Widths) -> int:
    return [*widths.values()].count(FP64)
