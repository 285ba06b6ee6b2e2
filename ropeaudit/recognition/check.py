"""What is wrong with a dumped inv_freq or cos/sin table: which pairs are off, and what explains it.

A hypothesis predicts the dump from a setting that is wrong in one way, and casts on the way. It explains the
dump if nothing is left but float32 rounding and the half ulp of its casts; the simplest that does comes
first, then those that explain all but a few pairs.
Letters: p pairs, n positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.recognition import allowance, inferred
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.recognition.inferred import Hypothesis, recovered, recovered_alone
from ropeaudit.recognition.variants import CASTS, FORMS, Variant, other_factors, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_SHOWN = 5, 3  # hypotheses listed, those that explain and those that do not
_NEAR = 0.5  # a hypothesis is called near if it leaves at most this share of the error
_ROWS_AT_ONCE = 8192  # positions compared at once
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
        """Whether its pairs are of other dims, so that none is compared with its own."""
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
        """A sort key: findings that agree first, then the best explained."""
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
    diagnosis = best.diagnosis if best else None
    if nonfinite:
        diagnosis = Diagnosis("nonfinite")
    elif best and best.explains and diagnosis:  # with its equals
        equals = (one.diagnosis for one in right[1:] if one.cost <= best.cost + _EQUAL)
        diagnosis = replace(diagnosis, alternatives=tuple(one for one in equals if one is not None))
    elif best and best.few and not best.explains:  # but for a few pairs
        where = work.where() if isinstance(work, CosSinTable) and not diagnosis else Where()
        entries = inferred.entries_off(work.things, best.strays, work.off.size)
        diagnosis = replace(entries, where=where, also=(diagnosis,) if diagnosis else ())
    elif diagnosis:  # at least near
        diagnosis = replace(diagnosis, certainty="resembles") if left <= _NEAR else None
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
    """Return the worse values of two dumps that differ in damaged values alone."""
    if first.frequencies is not None and second.frequencies is not None:
        return replace(first, frequencies=_worse(first.frequencies, second.frequencies, exact))
    if first.cos is None or first.sin is None or second.cos is None or second.sin is None:
        return first
    cos, sin = first.cos, first.sin
    if cos is second.cos and sin is second.sin:
        return first
    unequal = np.any((cos != second.cos) | (sin != second.sin), axis=1)
    cos, sin = cos.copy(), sin.copy()
    for at in np.split(rows := np.flatnonzero(unequal), range(_ROWS_AT_ONCE, rows.size, _ROWS_AT_ONCE)):
        right = distance_table(at.astype(np.float64), setting)
        cos[at] = _worse(cos[at], second.cos[at], right[0][0])
        sin[at] = _worse(sin[at], second.sin[at], right[1][0])
    return replace(first, cos=cos, sin=sin)


def _worse(first: Array, second: Array, right: Array) -> Array:
    """Return of two values the one that is further off; one that is nan or infinite is."""
    with np.errstate(invalid="ignore"):
        nearer = np.abs(second - right) <= np.abs(first - right)
    return np.where(nearer | ~np.isfinite(first), first, second)


class FrequencyList:
    """A dumped inv_freq, or its inverses."""

    size, unit, things, side = "relative_error", "relative", "frequencies", ""

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        self.values = np.zeros(0) if dump.frequencies is None else dump.frequencies
        self.inverse = dump.inverse
        self.setting, self.exact = setting, exact
        self.tolerance = allowance.frequency_error(setting, theta=exact)
        self.off = np.zeros(0, bool)  # whether a pair is off; set by `rows`

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair; errors at 0 are relative to the largest frequency."""
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
        """Yield every setting that may be meant, with and without the casts that fit."""
        casts = inferred.formats_holding(
            self._as_stored(self.values), inferred.allowed_strays(self.values.size)
        )
        for variant in (Variant(self.exact, cost=0.0), *variants(self.setting, self.exact, self.values)):
            for fmt in (None,) if variant.computed else (None, *casts):
                yield self._hypothesis(variant, fmt)

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


_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format
_STRAY_PAIR = 0.03  # of a single pair
_FEW_ROWS = 4  # that may be off beside a table that is right
_SEEN = 2.0**-20  # relative: how closely a float32 table shows its frequencies
_FACTOR = 1e-3  # relative: attention factors nearer than this may be the same, rounded
_NEAR_POINTS = 1e-2  # relative: an attention factor that may be a usual one
_ALONE = 0.5  # how far-fetched it is that cos is of other angles than sin
_STEPS = ("position", "frequency", "angle")


@dataclass(frozen=True, slots=True)
class _AngleTable:
    """Angles (s, p) that a table may hold the cos and sin of, and the frequencies for their slack (p,).

    rounded: angles were rounded after they were formed. setting: another one whose angles these are.
    at: the positions (s,) that they are of, if not those of the rows.
    """

    diagnosis: Diagnosis | None
    values: Array
    theta: Array
    cost: float
    rounded: bool = False
    setting: RopeSetting | None = None
    at: Array | None = None


class CosSinTable:
    """A dumped table of cos and sin, for the positions 0 ... n-1."""

    size, unit, things = "largest_error", "radians", "pairs"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        nothing = np.zeros((0, 0))
        cos, sin = (nothing if part is None else part for part in (dump.cos, dump.sin))
        self.values = np.stack([cos, sin], axis=-1).view(np.complex128)[..., 0]
        self.setting, self.exact, self.of_angles = setting, exact, dump.angles
        self.factor = float(exact_frequencies.attention_factor(setting.scaling))
        self.recovered = recovered(self.values)
        # set by `rows`: the positions at which every pair is first off, last, and most, and whether it is off
        self.first, self.last, self.worst = np.zeros((3, 0), np.int64)
        self.off = np.zeros(0, bool)
        self.sides = np.ones(2, bool)  # cos, sin: whether it is to be explained; set by `rows`

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair, with the frequency recovered and its errors."""
        n, pairs = self.values.shape
        largest, sides = np.zeros(pairs), np.zeros(2, bool)
        first, last, worst = np.full(pairs, n), np.full(pairs, -1), np.zeros(pairs, np.int64)
        for start in range(0, n, _ROWS_AT_ONCE):
            positions = np.arange(start, min(n, start + _ROWS_AT_ONCE), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            apart = self.values[start : start + _ROWS_AT_ONCE] - (cos[0] + 1j * sin[0])
            errors, slack = np.abs(apart), self.slack(self.exact, positions)
            wrong = ~(errors <= slack)
            sides |= [not np.all(np.abs(part) <= slack) for part in (apart.real, apart.imag)]
            begins = np.where(wrong.any(axis=0), start + wrong.argmax(axis=0), n)
            ends = np.where(wrong.any(axis=0), positions.size + start - 1 - wrong[::-1].argmax(axis=0), -1)
            first, last = np.minimum(first, begins), np.maximum(last, ends)
            worst = np.where(errors.max(axis=0) > largest, start + errors.argmax(axis=0), worst)
            largest = np.maximum(largest, errors.max(axis=0))
        self.first, self.last, self.worst, self.off = first, last, worst, first < n
        if self.off.any() and sides.any() and not self.of_angles:
            self.sides = sides
        if self.side:
            own = self.values.real if self.side == "cos" else self.values.imag
            self.recovered = recovered_alone(own / self.factor, sine=self.side == "sin")
        relative = (self.recovered - self.exact) / inferred.reference_sizes(self.exact)
        for i in range(pairs):
            yield {
                "pair": i,
                "theta": float(self.exact[i]),
                "found": float(self.recovered[i]),
                "relative_error": float(relative[i]),
                "largest_error": float(largest[i]) / self.factor,
                "first_position_off": int(first[i]) if self.off[i] else None,
                "off": "yes" if self.off[i] else "no",
            }

    @property
    def side(self) -> str:
        """Return cos or sin, where all that is off is in that one; else nothing."""
        return "" if self.sides.all() else ("cos", "sin")[int(self.sides.argmax())]

    def slack(self, theta: Array, positions: Array, other: RopeSetting | None = None) -> Array:
        """Return the error that float32 arithmetic accounts for, in this setting or another.

        Shapes: (p,), (s,) -> (s, p).
        """
        rule, settings = allowance.careful(FP32), [self.setting, *([other] if other else [])]
        phases = [allowance.phase_error(rule, one, positions, theta) for one in settings]
        return np.asarray(self.factor * (np.max(phases, axis=0) + allowance.table_error(rule, self.setting)))

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, and every stage that may have been cast.

        They are judged by some positions: the first ones, later ones, and those where pairs begin to be off.
        """
        n = len(self.values)
        begun = self.first[self.off]
        chosen = (np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round(), begun, self.worst)
        positions = np.unique(np.concatenate(chosen)).astype(np.float64)
        points = self.values[positions.astype(np.int64)]
        for fmt in (None, *inferred.formats_holding(np.stack([points.real, points.imag])[self.sides])):
            for scaled in self._factors(points):
                if scaled[0] == self.factor and (lone := self._of_rows(points, positions, fmt)):
                    yield lone
                for angles in self._angles(positions):
                    yield self._hypothesis(points, positions, angles, fmt, scaled)

    def _of_rows(
        self, points: NDArray[np.complex128], positions: Array, fmt: Format | None
    ) -> Hypothesis | None:
        """Return that only a few rows are off, cast or not; else None."""
        n, pairs = len(self.values), inferred.allowed_strays(self.exact.size)
        missed = self._missed(points, positions, fmt)[self.sides].sum(axis=0)
        most = min(_FEW_ROWS, inferred.allowed_strays(n))
        if not (0 < np.count_nonzero(missed) <= most and missed.max() > pairs):
            return None
        at = np.arange(n, dtype=np.float64)
        parts = (slice(start, start + _ROWS_AT_ONCE) for start in range(0, at.size, _ROWS_AT_ONCE))
        every = np.concatenate([self._missed(self.values[part], at[part], fmt) for part in parts], axis=1)
        off = every > 0
        rows, sides = np.flatnonzero(off[self.sides].any(axis=0)), off.any(axis=1) & self.sides
        if rows.size > _FEW_ROWS:
            return None
        diagnosis = inferred.entries_off("rows", tuple(rows.tolist()), n)
        diagnosis = replace(
            diagnosis,
            values={**diagnosis.values, **self._exchanged(rows, fmt)},
            where=Where(sides=() if sides.all() else tuple(np.array(["cos", "sin"])[sides].tolist())),
            also=tuple(filter(None, [inferred.rounded({"table": fmt})])),
        )
        none = np.zeros(self.exact.size, np.bool_)
        return inferred.hypothesis(diagnosis, none, np.zeros(1), 0.5 + inferred.cast_cost(fmt))

    def where(self) -> Where:
        """Return where pairs are off: in cos or sin alone, at one position alone."""
        first, last = int(self.first[self.off].min()), int(self.last[self.off].max())
        return Where(sides=(self.side,) if self.side else (), position=first if first == last else None)

    def _exchanged(self, rows: NDArray[np.int64], fmt: Format | None) -> dict[str, tuple[int, ...]]:
        """Return which row each wrong row holds, where each holds just one."""
        holds = [
            [
                int(at)
                for at in rows
                if not self._missed(self.values[[row]], np.array([at]), fmt)[self.sides].any()
            ]
            for row in rows
        ]
        return {"holds": tuple(one[0] for one in holds)} if all(len(one) == 1 for one in holds) else {}

    def _missed(
        self, points: NDArray[np.complex128], positions: Array, fmt: Format | None
    ) -> NDArray[np.int64]:
        """Return how many pairs of each row are off. Shapes: -> (2, s), cos and sin."""
        angles = np.clip(positions[:, None] * self.exact, -self.setting.clip, self.setting.clip)
        fits = self._fits(points, angles, self.factor, self.slack(self.exact, positions), fmt)
        return np.asarray(np.count_nonzero(~fits, axis=2))

    def _fits(
        self, points: NDArray[np.complex128], angles: Array, factor: float, slack: Array, fmt: Format | None
    ) -> NDArray[np.bool_]:
        """Return where points are near cos and sin of angles. Shapes: -> (2, s, p)."""
        cos = inferred.within(points.real, factor * np.cos(angles), slack, fmt)
        sin = inferred.within(points.imag, factor * np.sin(angles), slack, fmt)
        return np.stack([cos, sin])

    def _hypothesis(
        self,
        points: NDArray[np.complex128],
        positions: Array,
        table: _AngleTable,
        fmt: Format | None,
        scaled: tuple[float, Diagnosis | None, float],
    ) -> Hypothesis:
        factor, fault, extra = scaled
        if fault is not None and table.setting is not None:
            own = float(exact_frequencies.attention_factor(table.setting.scaling))
            if abs(factor / own - 1) < _FACTOR:  # it goes with that setting, and is no fault of its own
                factor, fault, extra = own, None, 0.0
        angles = np.clip(table.values, -self.setting.clip, self.setting.clip)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        slack = self.slack(table.theta, positions if table.at is None else table.at, table.setting)
        fits = self._fits(points, angles, factor, slack, fmt)
        missed = np.mean(~fits[self.sides].all(axis=0), axis=0)
        allowed = table.rounded and float(np.mean(missed)) <= _STRAY
        strays = (missed > (_STRAY_PAIR if table.rounded else 0.0)) & (not allowed)
        apart = np.stack([points.real - inferred.cast(cos, fmt), points.imag - inferred.cast(sin, fmt)])
        errors = np.linalg.norm(apart[self.sides], axis=0)
        diagnosis = inferred.together(fault, table.diagnosis, inferred.rounded({"table": fmt}))
        cost = table.cost + extra + inferred.cast_cost(fmt)
        if diagnosis is not None and not fits[~self.sides].all():
            diagnosis, cost = replace(diagnosis, where=Where(sides=(self.side,))), cost + _ALONE
        return inferred.hypothesis(diagnosis, strays, errors, cost, table.setting)

    def _factors(self, points: NDArray[np.complex128]) -> list[tuple[float, Diagnosis | None, float]]:
        """Return the expected attention factor and those that the points show."""
        factors: dict[float, tuple[Diagnosis | None, float]] = {self.factor: (None, 0.0)}
        seen = self.factor if self.side else float(np.median(np.abs(points)))
        if abs(seen / self.factor - 1) > _FACTOR:
            usual = [one for one in other_factors(self.setting.scaling) if abs(seen / one - 1) < _NEAR_POINTS]
            for factor in usual + [float(f"{seen:.{k}g}") for k in (3, 6)]:
                fault = Diagnosis("attention-factor", {"seen": factor, "asked": self.factor})
                factors.setdefault(factor, (fault, 1.0 + 0.1 * len(factors)))
        return [(factor, *rest) for factor, rest in factors.items()]

    def _angles(self, positions: Array) -> Iterator[_AngleTable]:
        """Yield the angles that the table may hold."""
        at, exact, n = positions[:, None], self.exact, len(self.values)
        yield _AngleTable(None, at * exact, exact, 0.0)
        for by in (1, -1):
            rolled = Diagnosis("positions-off", {"by": by}, also=(Diagnosis("wrap", {"size": n}),))
            yield _AngleTable(rolled, (at + by) % n * exact, exact, 1.5, at=(positions + by) % n)
        if not self.side:
            yield _AngleTable(Diagnosis("cos-sin-swapped"), math.pi / 2 - at * exact, exact, 1.0)
        for fault, angles in (
            (Diagnosis("positions-off", {"by": 1}), (at + 1) * exact),
            (Diagnosis("wrong-direction"), -at * exact),
            (Diagnosis("first-position-only"), 0 * at * exact),
        ):
            yield _AngleTable(fault, angles, exact, 1.0)
        reverse = n - 1 - positions
        yield _AngleTable(Diagnosis("positions-reversed"), reverse[:, None] * exact, exact, 1.0, at=reverse)
        if self.off.any() and (begin := int(self.first[self.off].min())) > 1:
            yield _AngleTable(Diagnosis("wrap", {"size": begin}), at % begin * exact, exact, 1.0)
            ends = Diagnosis("table-ends", {"last": begin - 1})
            yield _AngleTable(ends, np.minimum(at, begin - 1) * exact, exact, 1.0)
        for fmt in CASTS[:3]:
            yield from self._rounded(at, fmt)
        shown, strays = np.abs(self.recovered), inferred.allowed_strays(self.recovered.size)
        casts = [  # whose numbers the frequencies that points show are, but for a few
            fmt
            for fmt in CASTS[:3]
            if np.count_nonzero(np.abs(inferred.cast(shown, fmt) - shown) > _SEEN * shown) <= strays
        ]
        for one in variants(self.setting, exact, self.recovered):
            yield _AngleTable(one.diagnosis, at * one.theta, one.theta, one.cost, setting=one.setting)
            for fmt in () if one.computed else casts:
                both = inferred.together(one.diagnosis, inferred.rounded({"frequency": fmt}))
                theta, cost = inferred.cast(one.theta, fmt), one.cost + inferred.cast_cost(fmt)
                yield _AngleTable(both, at * theta, theta, cost, setting=one.setting)

    def _rounded(self, at: Array, fmt: Format) -> Iterator[_AngleTable]:
        """Yield the angles with one or more stages rounded to one format."""
        place, theta = inferred.cast(at, fmt), inferred.cast(self.exact, fmt)
        held, cost = np.array_equal(place, at), 1 + inferred.cast_cost(fmt) / 10
        for count in (1, 2, 3):
            for steps in itertools.combinations(_STEPS, count):
                if held and "position" in steps:
                    continue
                named = _STEPS if held and count == 2 else steps
                fault = inferred.rounded(dict.fromkeys(named, fmt))
                positions = place if "position" in steps else at
                angles = positions * (theta if "frequency" in steps else self.exact)
                last = "angle" in steps
                values = inferred.cast(angles, fmt if last else None)
                yield _AngleTable(fault, values, self.exact, cost + 0.05 * (count - 1), last)
        if fmt.name == "tf32":  # nothing is computed in it but products
            return
        for number, form in enumerate(FORMS):
            computed = frequencies(self.setting, form, fmt).astype(np.float64)
            fault = inferred.rounded(dict.fromkeys((*_STEPS, "computed"), fmt), form)
            values = inferred.cast(place * computed, fmt)
            yield _AngleTable(fault, values, self.exact, cost + 0.4 + 0.01 * number, True)
