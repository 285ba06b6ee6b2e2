"""A dumped table of cos and sin: which pairs are off from which position, and what explains it.

cos and sin are compared as points: distances on the circle, radians.
Letters: n positions, s positions that are compared, p pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.recognition.inferred import recovered
from ropeaudit.recognition.variants import CASTS, FORMS, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.tables import Dump

_CHUNK = 8192  # positions compared at once
_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format
_STRAY_PAIR = 0.03  # of a single pair
_FEW_ROWS = 4  # that may be off beside a table that is right
_STEPS = ("position", "frequency", "angle")


@dataclass(frozen=True, slots=True)
class _AngleTable:
    """Angles (s, p) that a table may hold the cos and sin of, and the frequencies for their slack (p,).

    rounded: angles were rounded after they were formed. setting: another one whose angles these are.
    """

    diagnosis: Diagnosis | None
    values: Array
    theta: Array
    cost: float
    rounded: bool = False
    setting: RopeSetting | None = None


class CosSinTable:
    """A dumped table of cos and sin, for the positions 0 ... n-1."""

    size, unit, things = "largest_error", "radians", "pairs"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        nothing = np.zeros((0, 0))
        cos, sin = (nothing if part is None else part for part in (dump.cos, dump.sin))
        self.values = cos + 1j * sin
        self.setting, self.exact, self.tolerance = setting, exact, hypotheses.tolerance(setting)
        self.factor = float(exact_frequencies.attention_factor(setting.scaling))
        self.recovered = recovered(self.values)
        # set by `rows`: the position at which every pair is first off, and whether it is off
        self.first, self.off = np.zeros(0, np.int64), np.zeros(0, bool)
        self.wrong_rows: NDArray[np.bool_] | None = None  # (n,), where a few rows alone are off

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair: the frequency recovered, the largest error and where it begins."""
        n, pairs = self.values.shape
        largest, first, rows = np.zeros(pairs), np.full(pairs, n), np.zeros(n, np.bool_)
        for start in range(0, n, _CHUNK):
            positions = np.arange(start, min(n, start + _CHUNK), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            errors = np.abs(self.values[start : start + _CHUNK] - (cos[0] + 1j * sin[0]))
            wrong = ~(errors <= self.slack(self.exact, positions))
            begins = np.where(wrong.any(axis=0), start + wrong.argmax(axis=0), n)
            first = np.minimum(first, begins)
            largest = np.maximum(largest, errors.max(axis=0))
            rows[start : start + _CHUNK] = wrong.any(axis=1)
        self.first, self.off = first, first < n
        few = 0 < np.count_nonzero(rows) <= min(_FEW_ROWS, hypotheses.allowed_strays(n))
        lone = np.count_nonzero(self.off) <= hypotheses.allowed_strays(pairs)  # they say more than their rows
        self.wrong_rows = rows if few and not lone else None
        relative = (self.recovered - self.exact) / hypotheses.reference_sizes(self.exact)
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

    def slack(self, theta: Array, positions: Array, least: float = 0.0) -> Array:
        """Return the error that float32 arithmetic accounts for. Shapes: (p,), (s,) -> (s, p)."""
        relative = np.maximum(self.tolerance, least) + 2 * FP32.unit_roundoff
        phase = np.abs(positions[:, None] * theta) * relative
        return np.asarray(self.factor * (phase + 3 * FP32.unit_roundoff))

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, and every stage that may have been cast.

        They are judged by some positions: the first ones, later ones, and those where pairs begin to be off.
        """
        if self.wrong_rows is not None:
            yield self._of_rows(self.wrong_rows)
        n = len(self.values)
        chosen = (np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round(), self.first[self.off])
        positions = np.unique(np.concatenate(chosen)).astype(np.float64)
        points = self.values[positions.astype(np.int64)]
        for fmt in (None, *hypotheses.formats_holding(np.concatenate([points.real, points.imag]))):
            for factor, fault, extra in self._factors(points):
                for angles in self._angles(positions):
                    yield self._hypothesis(points, positions, angles, fmt, factor, fault, extra)

    def _of_rows(self, rows: NDArray[np.bool_]) -> Hypothesis:
        """Return that a few rows (n,) alone are off, and the rest is as it should be."""
        right = np.zeros(self.exact.size, np.bool_)
        diagnosis = hypotheses.entries_off("rows", tuple(np.flatnonzero(rows).tolist()), rows.size)
        return hypotheses.hypothesis(diagnosis, right, np.zeros(1), 0.5)

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
        angles = np.clip(table.values, -self.setting.clip, self.setting.clip)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        slack = self.slack(table.theta, positions, hypotheses.least_tolerance(self.setting))
        fits = hypotheses.within(points.real, cos, slack, fmt) & hypotheses.within(
            points.imag, sin, slack, fmt
        )
        missed = np.mean(~fits, axis=0)
        allowed = table.rounded and float(np.mean(missed)) <= _STRAY
        strays = (missed > (_STRAY_PAIR if table.rounded else 0.0)) & (not allowed)
        errors = np.abs(points - (hypotheses.cast(cos, fmt) + 1j * hypotheses.cast(sin, fmt)))
        diagnosis = hypotheses.together(fault, table.diagnosis, hypotheses.rounded(table=fmt))
        cost = table.cost + extra + hypotheses.cast_cost(fmt)
        return hypotheses.hypothesis(diagnosis, strays, errors, cost, table.setting)

    def _factors(self, points: NDArray[np.complex128]) -> list[tuple[float, Diagnosis | None, float]]:
        """Return the attention factor that is expected, and the one that the lengths of the points show."""
        factors: dict[float, tuple[Diagnosis | None, float]] = {self.factor: (None, 0.0)}
        seen = float(np.median(np.abs(points)))
        if abs(seen / self.factor - 1) > 1e-3:
            for factor in ([1.0] if abs(seen - 1) < 1e-2 else []) + [float(f"{seen:.{k}g}") for k in (3, 6)]:
                values: dict[str, float | str] = {"seen": factor, "asked": self.factor, "note": ""}
                fault = Diagnosis("attention-factor", values)
                factors.setdefault(factor, (fault, 1.0 + 0.1 * len(factors)))
        return [(factor, *rest) for factor, rest in factors.items()]

    def _angles(self, positions: Array) -> Iterator[_AngleTable]:
        """Yield the angles that the table may hold."""
        at, exact = positions[:, None], self.exact
        yield _AngleTable(None, at * exact, exact, 0.0)
        for fault, angles in (
            (Diagnosis("positions-off", {"by": 1}), (at + 1) * exact),
            (Diagnosis("wrong-direction"), -at * exact),
            (Diagnosis("cos-sin-swapped"), math.pi / 2 - at * exact),
        ):
            yield _AngleTable(fault, angles, exact, 1.0)
        for fmt in CASTS[:3]:
            yield from self._rounded(at, fmt)
        for one in variants(self.setting, exact, self.recovered):
            yield _AngleTable(one.diagnosis, at * one.theta, one.theta, one.cost, setting=one.setting)

    def _rounded(self, at: Array, fmt: Format) -> Iterator[_AngleTable]:
        """Yield the angles of sets of rounded stages: those before cos and sin, all in one format.

        Where it holds every position, rounding these changes nothing, and the other two are every stage.
        """
        place, theta = hypotheses.cast(at, fmt), hypotheses.cast(self.exact, fmt)
        held, cost = np.array_equal(place, at), 1 + hypotheses.cast_cost(fmt) / 10
        for count in (1, 2, 3):
            for steps in itertools.combinations(_STEPS, count):
                if held and "position" in steps:
                    continue
                named = _STEPS if held and count == 2 else steps
                fault = hypotheses.rounded(**dict.fromkeys(named, fmt))
                positions = place if "position" in steps else at
                angles = positions * (theta if "frequency" in steps else self.exact)
                last = "angle" in steps
                values = hypotheses.cast(angles, fmt if last else None)
                yield _AngleTable(fault, values, self.exact, cost + 0.05 * (count - 1), last)
        if fmt.name == "tf32":  # nothing is computed in it but products
            return
        for number, form in enumerate(FORMS):
            computed = frequencies(self.setting, form, fmt).astype(np.float64)
            fault = hypotheses.rounded(form, **dict.fromkeys((*_STEPS, "computed"), fmt))
            values = hypotheses.cast(place * computed, fmt)
            yield _AngleTable(fault, values, self.exact, cost + 0.4 + 0.01 * number, True)
