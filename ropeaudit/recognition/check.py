"""What is wrong with a dumped inv_freq or cos/sin table: which pairs are off, and what explains it.

A hypothesis predicts the dump from a setting that is wrong in one way, and casts on the way. It explains the
dump if nothing is left but float32 rounding and the half ulp of its casts; the simplest that does comes
first, then those that explain all but a few pairs.
Letters: p pairs, n positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.recognition import allowance, inferred
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.recognition.inferred import Hypothesis
from ropeaudit.recognition.stored_table import CosSinTable
from ropeaudit.recognition.variants import Variant, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_SHOWN = 5, 3  # hypotheses listed, those that explain and those that do not
_NEAR = 0.5  # a hypothesis is called near if it leaves at most this share of the error
_CHUNK = 8192  # positions compared at once
_EQUAL = 0.045  # of costs: those that explain, and are no more far-fetched than this, are equals


@dataclass(frozen=True, slots=True)
class TableFinding:
    """How a dump differs from the exact table of a setting, and what explains that.

    rows: one a pair; `size` is the column by how much it is off, in `unit`. hypotheses: the best first; none
    where the dump agrees. diagnosis: None where it agrees, and where nothing that was tried comes near.
    name: what the dump is called. nonfinite: how many of its `values` are nan or infinite. left: the share
    of the error that the best hypothesis leaves. side: cos or sin, where all that is off is in that one; else
    empty.
    """

    agrees: bool
    rows: list[dict[str, Any]]
    hypotheses: list[Hypothesis]
    diagnosis: Diagnosis | None
    name: str
    size: str
    unit: str
    nonfinite: int
    values: int
    left: float
    side: str

    @property
    def best(self) -> Hypothesis | None:
        """The first hypothesis, if there is any."""
        return next(iter(self.hypotheses), None)

    @property
    def off(self) -> list[dict[str, Any]]:
        """The rows of pairs that are off."""
        return [row for row in self.rows if row["off"] == "yes"]

    @property
    def other_dims(self) -> bool:
        """Whether it has pairs for other dims than are to be rotated, so that no pair is off from its own."""
        return self.diagnosis is not None and self.diagnosis.code == "partial-rotation"

    def diagnosis_of(self, side: str) -> Diagnosis | None:
        """Return what explains cos, or sin: without what is in the other alone."""
        parts = () if self.diagnosis is None else tuple(self.diagnosis.parts())
        own = [one for one in parts if not one.where.sides or side in one.where.sides]
        if side not in ("cos", "sin") or len(own) == len(parts) or not own:
            return self.diagnosis
        return replace(own[0], also=tuple(replace(one, also=()) for one in own[1:]))

    @property
    def strays(self) -> tuple[int, ...]:
        """The few pairs that the best hypothesis leaves, where it explains the rest."""
        return self.best.strays if self.best is not None and self.best.few else ()

    @property
    def worst(self) -> dict[str, Any]:
        """The row of the pair that is furthest off."""
        return max(self.rows, key=lambda row: abs(row[self.size]))

    @property
    def preference(self) -> tuple[bool, tuple[tuple[int, float, float], ...]]:
        """What sorts findings of a dump: those that agree first, then by what explains them best."""
        return not self.agrees, () if self.best is None else (self.best.rank,)


def check(dump: Dump, setting: RopeSetting, label: str = "") -> TableFinding:
    """Return how a dump differs from the exact table of a setting, and what explains the difference.

    Raises: BadInput if the dump has not one column (or two) for each pair of the setting.
    """
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    dump = _further_off(*dump.twice(setting.pairs), setting, exact)
    work = FrequencyList(dump, setting, exact) if dump.cos is None else CosSinTable(dump, setting, exact)
    nonfinite = int(work.values.size - np.isfinite(work.values).sum())
    with np.errstate(all="ignore"):
        rows = [{"setting": label, **row} for row in work.rows()]
        tried = list(work.hypotheses()) if work.off.any() and not nonfinite else []
        ranked = sorted(tried, key=lambda hypothesis: hypothesis.rank)
    right = [h for h in ranked if h.explains][: _SHOWN[0]]
    rest = [h for h in ranked if not h.explains and (h.few or h.diagnosis is not None)][: _SHOWN[1]]
    without = min((h.residual for h in ranked if h.diagnosis is None), default=0.0)
    best = next(iter(right + rest), None)
    left = best.residual / without if best is not None and without else 0.0
    if nonfinite:
        diagnosis: Diagnosis | None = Diagnosis("nonfinite")
    else:
        diagnosis = _diagnosis(right, best, left, work)
    return TableFinding(
        agrees=not work.off.any(),
        rows=rows,
        hypotheses=right + rest,
        diagnosis=diagnosis,
        name=dump.name,
        size=work.size,
        unit=work.unit,
        nonfinite=nonfinite,
        values=work.values.size,
        left=left,
        side=work.side,
    )


def _further_off(first: Dump, second: Dump, setting: RopeSetting, exact: Array) -> Dump:
    """Return of two dumps, which are equal but for damaged values, those that are further off."""
    if first.frequencies is not None and second.frequencies is not None:
        return replace(first, frequencies=_worse(first.frequencies, second.frequencies, exact))
    if first.cos is None or first.sin is None or second.cos is None or second.sin is None:
        return first
    cos, sin = first.cos, first.sin
    if cos is second.cos and sin is second.sin:
        return first
    unequal = np.any((cos != second.cos) | (sin != second.sin), axis=1)
    cos, sin = cos.copy(), sin.copy()
    for at in np.split(rows := np.flatnonzero(unequal), range(_CHUNK, rows.size, _CHUNK)):
        right = distance_table(at.astype(np.float64), setting)
        cos[at] = _worse(cos[at], second.cos[at], right[0][0])
        sin[at] = _worse(sin[at], second.sin[at], right[1][0])
    return replace(first, cos=cos, sin=sin)


def _worse(first: Array, second: Array, right: Array) -> Array:
    """Return of two values the one that is further off; one that is nan or infinite is."""
    with np.errstate(invalid="ignore"):
        nearer = np.abs(second - right) <= np.abs(first - right)
    return np.where(nearer | ~np.isfinite(first), first, second)


def _diagnosis(
    right: list[Hypothesis], best: Hypothesis | None, left: float, work: FrequencyList | CosSinTable
) -> Diagnosis | None:
    """Return what explains a dump: with its equals, but for a few pairs, or what is at least near."""
    if best is None:
        return None
    if best.explains:
        equals = (one.diagnosis for one in right[1:] if one.cost <= best.cost + _EQUAL)
        alternatives = tuple(one for one in equals if one is not None)
        return None if best.diagnosis is None else replace(best.diagnosis, alternatives=alternatives)
    if best.few:
        entries = inferred.entries_off(work.things, best.strays, work.off.size)
        if best.diagnosis is None:
            return replace(entries, where=work.where())
        return replace(entries, also=(best.diagnosis,))
    if best.diagnosis is None or left > _NEAR:
        return None
    return replace(best.diagnosis, certainty="resembles")


class FrequencyList:
    """A dumped inv_freq, or its inverses."""

    size, unit, things, side = "relative_error", "relative", "frequencies", ""

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        self.values = np.zeros(0) if dump.frequencies is None else dump.frequencies
        self.name, self.inverse = dump.name, dump.inverse
        self.setting, self.exact = setting, exact
        self.tolerance = allowance.frequency_error(setting, theta=exact)
        self.off = np.zeros(0, bool)  # whether a pair is off; set by `rows`

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair; a frequency of 0 has errors relative to the largest one."""
        relative = (self.values - self.exact) / inferred.reference_sizes(self.exact)
        self.off = ~(np.abs(relative) <= np.where(self.exact == 0, 0.0, self.tolerance))
        for i, error in enumerate(relative.tolist()):
            yield {
                "pair": i,
                "theta": float(self.exact[i]),
                "found": float(self.values[i]),
                "relative_error": error,
                "tolerance": float(self.tolerance[i]),
                "off": "yes" if self.off[i] else "no",
            }

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, alone and with the casts that fit."""
        casts = inferred.formats_holding(
            self._as_stored(self.values), inferred.allowed_strays(self.values.size)
        )
        for variant in (Variant(self.exact, cost=0.0), *variants(self.setting, self.exact, self.values)):
            for fmt in (None,) if variant.computed else (None, *casts):
                yield self._hypothesis(variant, fmt)

    def where(self) -> Where:
        """Return where it is off: there are no parts."""
        return Where()

    def _as_stored(self, theta: Array) -> Array:
        """Return frequencies as they are stored, and stored ones as frequencies."""
        return 1 / theta if self.inverse else theta

    def _hypothesis(self, variant: Variant, fmt: Format | None) -> Hypothesis:
        theta, sizes = variant.theta, inferred.reference_sizes(variant.theta)
        stored, expected = self._as_stored(self.values), self._as_stored(theta)
        own = allowance.frequency_error(variant.setting or self.setting, theta=theta)
        slack = np.where(theta == 0, 0.0, np.maximum(self.tolerance, own))
        strays = ~inferred.within(stored, expected, slack * inferred.reference_sizes(expected), fmt)
        errors = np.abs(self.values - self._as_stored(inferred.cast(expected, fmt))) / sizes
        diagnosis = inferred.together(variant.diagnosis, inferred.rounded({"frequency": fmt}))
        cost = variant.cost + inferred.cast_cost(fmt)
        return inferred.hypothesis(diagnosis, strays, errors, cost, variant.setting)
