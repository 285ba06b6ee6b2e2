"""The smallest set of stages that must be in a wider format, and what it costs.

The sets are searched by growing size. Of those of a size that meet the tolerance in float64, the one that
meets it with the fewest float64 stages wins, then the one that leaves the least drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.audits.variants import Bench
from ropeaudit.console import values
from ropeaudit.engine.statistics import Moments, Statistics
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.explain import blames
from ropeaudit.recipes import Resolved

TOLERABLE = ("drift_rms", "drift_max", "drift_relative")
USUAL_SHARE = 0.1  # of the RMS drift, where no tolerance is given
_ALIKE = 1.05  # a drift so many times the smallest is as good
_MOST_SETS = 8  # sets of one size that are tried in narrower formats
_MULTIPLIES = ("angle", "rotation", "accumulate")


@dataclass(frozen=True, slots=True)
class DriftTolerance:
    """A bound on a column; without a column it is that every score be finite."""

    column: str
    bound: float
    given: bool

    def __str__(self) -> str:
        return f"{self.column} <= {self.bound:.3g}" if self.column else "every score finite"

    def value(self, drift: Statistics, reference: Statistics) -> float:
        """Return the value of the column, in a drift."""
        if self.column == "drift_max":
            return drift.max
        rms = drift.rms
        return rms / reference.rms if self.column == "drift_relative" and reference.rms else rms

    def met_by(self, drift: Statistics, reference: Statistics) -> bool:
        """Return whether a drift is within the bound; nan is not."""
        if not self.column:
            return not drift.nonfinite
        return self.value(drift, reference) <= self.bound


def parse(text: str) -> DriftTolerance:
    """Read COLUMN=X, or X alone for drift_relative. Raises: UsageError, UnknownName."""
    return tolerance(*values.tolerance(text, "--tolerance"))


def tolerance(column: str, bound: float) -> DriftTolerance:
    """Return a tolerance on a column. Raises: UsageError, UnknownName."""
    if column not in TOLERABLE:
        raise UnknownName("column of --tolerance", column, TOLERABLE)
    if not (math.isfinite(bound) and bound >= 0):
        raise UsageError(f"--tolerance {column}={bound:g}: give a finite number that is not negative")
    return DriftTolerance(column, float(bound), True)


def usual(drift: Statistics) -> DriftTolerance:
    """Return the tolerance where none is given: a tenth of the RMS drift, or scores that are finite."""
    if drift.nonfinite:
        return DriftTolerance("", math.nan, False)
    return DriftTolerance("drift_rms", USUAL_SHARE * drift.rms, False)


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


@dataclass(frozen=True, slots=True)
class RemedySearch:
    """The search for one recipe.

    names: the stages that can be widened. unchanged: drift of the recipe. positions: how many a table holds.
    """

    bench: Bench
    recipe: Resolved
    names: Sequence[str]
    accepted: DriftTolerance
    unchanged: Statistics
    positions: int

    def run(self, progress: Callable[[float], None] = lambda share: None) -> list[Remedy]:
        """Return the best set of every size, up to the first that meets the tolerance.

        The empty set stands alone where the recipe meets it as it is.
        """
        if self._meets(self.unchanged):
            return [self._remedy({})]
        remedies: list[Remedy] = []
        for size in range(1, len(self.names) + 1):
            progress(0.0)
            remedies.append(self._best(list(combinations(self.names, size))))
            if remedies[-1].meets:
                break
        return remedies

    def _best(self, sets: Sequence[tuple[str, ...]]) -> Remedy:
        exact = self._drifts(blames.without(self.recipe, stages) for stages in sets)
        order = sorted(range(len(sets)), key=lambda i: _size(exact[i]))
        meeting = [i for i in order if self._meets(exact[i])]
        if meeting:
            remedies = [self._narrowest(sets[i], self._meets) for i in meeting[:_MOST_SETS]]
            return min(remedies, key=lambda r: ([*r.widths.values()].count(FP64), _size(r.drift)))
        least_nonfinite, least = _size(exact[order[0]])
        return self._narrowest(
            sets[order[0]], lambda drift: _size(drift) <= (least_nonfinite, least * _ALIKE)
        )

    def _narrowest(self, stages: Sequence[str], enough: Callable[[Statistics], bool]) -> Remedy:
        """Return a set in the narrowest formats with which its drift is small enough."""
        formats = {stage: blames.formats(self.recipe, stage) for stage in stages}
        narrow = [s for s in stages if any(f.precision < FP32.precision for f in formats[s])]
        for count in range(len(narrow), 0, -1):
            tries = [
                {s: FP32 if s in in_float32 else FP64 for s in stages}
                for in_float32 in combinations(narrow, count)
            ]
            drifts = self._drifts(blames.widened(self.recipe, widths) for widths in tries)
            good = [i for i, drift in enumerate(drifts) if enough(drift)]
            if good:
                return self._remedy(tries[min(good, key=lambda i: _size(drifts[i]))])
        return self._remedy(dict.fromkeys(stages, FP64))

    def _remedy(self, widths: Mapping[str, Format]) -> Remedy:
        variant = blames.widened(self.recipe, widths)
        (drift,) = self.bench.drifts([variant])
        removed = 1.0 - drift.rms / self.unchanged.rms if self.unchanged.rms else math.nan
        held = variant.table or variant.trig
        numbers = self.positions * self.bench.setting.pairs * 2
        multiplies = [widths[stage].storage_bits for stage in widths if stage in _MULTIPLIES]
        return Remedy(
            dict(widths),
            drift,
            removed,
            self._meets(drift),
            numbers * held.storage_bits // 8,
            max(multiplies, default=0),
        )

    def _drifts(self, variants: Iterable[Resolved]) -> list[Statistics]:
        """Return the drift of variants as far as the tolerance looks at it."""
        moments = Moments.LARGEST if self.accepted.column == "drift_max" else Moments.SQUARES
        return self.bench.drifts(variants, moments=moments)

    def _meets(self, drift: Statistics) -> bool:
        return self.accepted.met_by(drift, self.bench.reference)


def _size(drift: Statistics) -> tuple[int, float]:
    """Return how bad a drift is: nonfinite scores first, then its RMS."""
    return drift.nonfinite, 0.0 if drift.nonfinite else drift.rms
