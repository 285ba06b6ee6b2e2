"""The search for the smallest set of stages whose wider formats bring a drift within a tolerance.

Sets are selected on a sample; promising ones are measured as `shift --set` does.
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

_PROMISING = 1.2  # times the tolerance, within which a set on a sample is measured
_SAME = 1.001  # the same if the sample is all of q and k
_NEEDED = 1.5  # times the tolerance: a stage that drifts further alone is in every set
_MEASURED = 3  # sets that are measured, of each size and number of float64 stages
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


def tolerance(value: str | tuple[str, float]) -> DriftTolerance:
    """Parse a tolerance: COLUMN=X, or X. Raises: UsageError, UnknownName."""
    column, bound = numbers.tolerance(value, "--tolerance") if isinstance(value, str) else value
    if column not in TOLERABLE:
        raise UnknownName("column of --tolerance", column, TOLERABLE)
    if not (math.isfinite(bound) and bound >= 0):
        raise UsageError(f"--tolerance {column}={bound:g}: give a finite number that is not negative")
    return DriftTolerance(column, float(bound))


@dataclass(frozen=True, slots=True)
class Remedy:
    """Stages in wider formats, the drift of all scores with them, and their costs.

    changes: the formats as --set takes them.
    removed: share of the RMS drift that they remove.
    table_bytes: size of cos and sin of all positions.
    multiply_bits: width of the widest multiplication that is widened, 0 for none.
    """

    widths: Widths
    changes: Mapping[str, str]
    drift: Statistics
    removed: float
    meets: bool
    table_bytes: int
    multiply_bits: int


def changes(recipe: Resolved, widths: Widths) -> dict[str, str]:
    """Return stage -> format, as --set takes it, for wider stages."""
    wide = widened(recipe, widths)
    stages = [stage for stage in STAGES if stage in widths]
    chains = {stage: [fmt.short for fmt in formats(wide, stage)] for stage in stages}
    return {stage: "/".join(dict.fromkeys(chain)) for stage, chain in chains.items()}


def remedied(recipe: Resolved, widths: Widths) -> Resolved:
    """Return a recipe with wider stages, as --set changes it, and the stages that follow them."""
    return recipe.recipe.changed(changes(recipe, widths)).resolve(recipe.dtype)


@dataclass(frozen=True, slots=True)
class Search:
    """The search for the remedy of a recipe.

    sample_is_all: whether the sample is all of q and k. measure: measures recipes on all q and k.
    positions: number of rows of a table.
    """

    design: Design
    accepted: DriftTolerance
    sample_is_all: bool
    measure: Measure
    positions: int

    def remedies(self, before: CellStatistics) -> tuple[Remedy, ...]:
        """Return the measured sets: the last meets the tolerance, or none does."""
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
        """Yield sets of wider stages, the cheapest first, and finally all in float64."""
        alone, names = self.design.alone, self.design.names
        own = {stage: formats(self.design.recipe, stage) for stage in names}
        narrow = {stage for stage in names if min(fmt.precision for fmt in own[stage]) < FP32.precision}
        wider = {stage: (FP32, FP64) if stage in narrow else (FP64,) for stage in names}
        if inputs_overflow:  # the sample has no finite scores
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
        """Yield sets that the sample favours, the best first."""
        recipe, bench = self.design.recipe, self.design.bench
        drifts = bench.drifts([remedied(recipe, widths) for widths in some])
        values = [self._value(drift) for drift in drifts]
        most = self.accepted.bound * (_SAME if self.sample_is_all else _PROMISING)
        for number in sorted(range(len(some)), key=values.__getitem__):
            if values[number] <= most:
                yield some[number]

    def _value(self, drift: Statistics) -> float:
        return self.accepted.value(drift, self.design.bench.reference)

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
