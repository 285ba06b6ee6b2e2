"""A dumped table of cos and sin: which pairs are off from which position, and what explains it.

cos and sin are compared as points: distances on the circle, radians. Where all values of one are right, the
other is explained by its own values alone.
Letters: n positions, s positions that are compared, p pairs.
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
from ropeaudit.recognition.variants import CASTS, FORMS, other_factors, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_CHUNK = 8192  # positions compared at once
_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format
_STRAY_PAIR = 0.03  # of a single pair
_FEW_ROWS = 4  # that may be off beside a table that is right
_SEEN = 2.0**-20  # relative: how closely a float32 table shows its frequencies
_FACTOR = 1e-3  # relative: attention factors nearer than this may be the same, rounded
_NEAR = 1e-2  # relative: an attention factor that may be a usual one
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
        """Yield a row for every pair: the frequency recovered, the largest error and where it begins."""
        n, pairs = self.values.shape
        largest, sides = np.zeros(pairs), np.zeros(2, bool)
        first, last, worst = np.full(pairs, n), np.full(pairs, -1), np.zeros(pairs, np.int64)
        for start in range(0, n, _CHUNK):
            positions = np.arange(start, min(n, start + _CHUNK), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            apart = self.values[start : start + _CHUNK] - (cos[0] + 1j * sin[0])
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
            for factor, fault, extra in self._factors(points):
                if factor == self.factor and (lone := self._of_rows(points, positions, fmt)):
                    yield lone
                for angles in self._angles(positions):
                    yield self._hypothesis(points, positions, angles, fmt, factor, fault, extra)

    def _of_rows(
        self, points: NDArray[np.complex128], positions: Array, fmt: Format | None
    ) -> Hypothesis | None:
        """Return that a few rows alone are off, and the rest is as expected, cast or not; else None."""
        n, pairs = len(self.values), inferred.allowed_strays(self.exact.size)
        missed = self._missed(points, positions, fmt)[self.sides].sum(axis=0)
        most = min(_FEW_ROWS, inferred.allowed_strays(n))
        if not (0 < np.count_nonzero(missed) <= most and missed.max() > pairs):
            return None
        at = np.arange(len(self.values), dtype=np.float64)
        parts = (slice(start, start + _CHUNK) for start in range(0, at.size, _CHUNK))
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
        )
        if fmt is not None:
            diagnosis = replace(diagnosis, also=tuple(filter(None, [inferred.rounded({"table": fmt})])))
        none = np.zeros(self.exact.size, np.bool_)
        return inferred.hypothesis(diagnosis, none, np.zeros(1), 0.5 + inferred.cast_cost(fmt))

    def where(self) -> Where:
        """Return where pairs are off: in cos or sin alone, at one position alone."""
        first, last = int(self.first[self.off].min()), int(self.last[self.off].max())
        return Where(sides=(self.side,) if self.side else (), position=first if first == last else None)

    def _exchanged(self, rows: NDArray[np.int64], fmt: Format | None) -> dict[str, tuple[int, ...]]:
        """Return which of rows that are off each of them holds, where each holds one; else nothing."""
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
        """Return how many pairs of cos, and of sin, are not as expected in each row. Shapes: -> (2, s)."""
        angles = np.clip(positions[:, None] * self.exact, -self.setting.clip, self.setting.clip)
        fits = self._fits(points, angles, self.factor, self.slack(self.exact, positions), fmt)
        return np.asarray(np.count_nonzero(~fits, axis=2))

    def _fits(
        self, points: NDArray[np.complex128], angles: Array, factor: float, slack: Array, fmt: Format | None
    ) -> NDArray[np.bool_]:
        """Return where points are cos, and sin, of angles, within the slack, cast or not. -> (2, s, p)."""
        cos = inferred.within(points.real, factor * np.cos(angles), slack, fmt)
        sin = inferred.within(points.imag, factor * np.sin(angles), slack, fmt)
        return np.stack([cos, sin])

    def _hypothesis(
        self,
        points: NDArray[np.complex128],
        positions: Array,
        table: _AngleTable,
        fmt: Format | None,
        factor: float,
        fault: Diagnosis | None,
        extra: float,
    ) -> Hypothesis:
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
        """Return the attention factor that is expected, and the one that the lengths of the points show."""
        factors: dict[float, tuple[Diagnosis | None, float]] = {self.factor: (None, 0.0)}
        seen = self.factor if self.side else float(np.median(np.abs(points)))
        if abs(seen / self.factor - 1) > _FACTOR:
            usual = [one for one in other_factors(self.setting.scaling) if abs(seen / one - 1) < _NEAR]
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
            last = begin - 1
            yield _AngleTable(
                Diagnosis("table-ends", {"last": last}), np.minimum(at, last) * exact, exact, 1.0
            )
        for fmt in CASTS[:3]:
            yield from self._rounded(at, fmt)
        casts = [fmt for fmt in CASTS[:3] if self._held(np.abs(self.recovered), fmt)]
        for one in variants(self.setting, exact, self.recovered):
            yield _AngleTable(one.diagnosis, at * one.theta, one.theta, one.cost, setting=one.setting)
            for fmt in () if one.computed else casts:
                both = inferred.together(one.diagnosis, inferred.rounded({"frequency": fmt}))
                theta, cost = inferred.cast(one.theta, fmt), one.cost + inferred.cast_cost(fmt)
                yield _AngleTable(both, at * theta, theta, cost, setting=one.setting)

    def _held(self, theta: Array, fmt: Format) -> bool:
        """Return whether frequencies that points show are numbers of a format, but for a few."""
        off = np.abs(inferred.cast(theta, fmt) - theta) > _SEEN * theta
        return bool(np.count_nonzero(off) <= inferred.allowed_strays(theta.size))

    def _rounded(self, at: Array, fmt: Format) -> Iterator[_AngleTable]:
        """Yield the angles of sets of rounded stages: those before cos and sin, all in one format.

        Where it holds every position, rounding these changes nothing, and the other two are every stage.
        """
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
