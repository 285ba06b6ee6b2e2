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
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.recognition.variants import CASTS, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.tables import Dump

_CHUNK = 8192  # positions compared at once
_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format
_STRAY_PAIR = 0.03  # of a single pair
_STEPS = ("position", "frequency", "angle")
_WORDS = {
    ("position",): "positions were rounded to {}",
    ("frequency",): "inv_freq was cast to {}",
    ("angle",): "angles were rounded to {}",
    ("position", "frequency"): "positions and inv_freq were rounded to {}",
    ("position", "angle"): "positions and angles were rounded to {}",
    ("frequency", "angle"): "inv_freq and angles were rounded to {}",
    _STEPS: "every angle was computed in {}",
}
_FORMS = ("inverse_power", "power", "step_power", "exp", "exp2")


@dataclass(frozen=True, slots=True)
class _AngleTable:
    """Angles (s, p) that a table may hold the cos and sin of, and the frequencies for their slack (p,).

    text: in words, with the cast of the table and without knowing whether it explains anything.
    rounded: angles were rounded after they were formed. meant: the setting that is meant instead.
    """

    text: tuple[str, str]  # where it explains the table, where not
    values: Array
    theta: Array
    cost: float
    rounded: bool = False
    meant: str = ""


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

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair: the frequency recovered, the largest error and where it begins."""
        n, pairs = self.values.shape
        largest, first = np.zeros(pairs), np.full(pairs, n)
        for start in range(0, n, _CHUNK):
            positions = np.arange(start, min(n, start + _CHUNK), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            errors = np.abs(self.values[start : start + _CHUNK] - (cos[0] + 1j * sin[0]))
            wrong = ~(errors <= self.slack(self.exact, positions))
            begins = np.where(wrong.any(axis=0), start + wrong.argmax(axis=0), n)
            first = np.minimum(first, begins)
            largest = np.maximum(largest, errors.max(axis=0))
        self.first, self.off = first, first < n
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
        n = len(self.values)
        chosen = (np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round(), self.first[self.off])
        positions = np.unique(np.concatenate(chosen)).astype(np.float64)
        points = self.values[positions.astype(np.int64)]
        for fmt in (None, *hypotheses.formats_holding(np.concatenate([points.real, points.imag]))):
            for factor, words, extra in self._factors(points):
                for angles in self._angles(positions, fmt.name if fmt else ""):
                    yield self._hypothesis(points, positions, angles, fmt, factor, words, extra)

    def _hypothesis(
        self,
        points: NDArray[np.complex128],
        positions: Array,
        table: _AngleTable,
        fmt: Format | None,
        factor: float,
        words: str,
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
        text = " and ".join(filter(None, (words, table.text[int(strays.any())])))
        cost = table.cost + extra + hypotheses.cast_cost(fmt)
        return hypotheses.hypothesis(
            text, strays, errors, cost, meant=" and ".join(filter(None, (words, table.meant)))
        )

    def _factors(self, points: NDArray[np.complex128]) -> list[tuple[float, str, float]]:
        """Return the attention factor that is expected, and the one that the lengths of the points show."""
        factors = {self.factor: ("", 0.0)}
        seen = float(np.median(np.abs(points)))
        if abs(seen / self.factor - 1) > 1e-3:
            for factor in ([1.0] if abs(seen - 1) < 1e-2 else []) + [float(f"{seen:.{k}g}") for k in (3, 6)]:
                words = f"cos and sin are multiplied by {factor:.6g} instead of {self.factor:.6g}"
                factors.setdefault(factor, (words, 1.0 + 0.1 * len(factors)))
        return [(factor, *rest) for factor, rest in factors.items()]

    def _angles(self, positions: Array, table: str) -> Iterator[_AngleTable]:
        """Yield the angles that the table may hold. table: the format that it was cast to, if any."""
        at, exact = positions[:, None], self.exact
        cast = f"the cos/sin table was cast to {table}" if table else ""

        def both(text: str) -> tuple[str, str]:
            return (" and ".join(filter(None, (text, cast))),) * 2

        yield _AngleTable(both(""), at * exact, exact, 0.0)
        for text, angles in (
            ("the table begins at position 1 instead of 0", (at + 1) * exact),
            ("sin has the opposite sign", -at * exact),
            ("cos and sin are swapped", math.pi / 2 - at * exact),
        ):
            yield _AngleTable(both(text), angles, exact, 1.0, meant=text)
        for fmt in CASTS[:3]:
            for text, angles, cost, rounded in self._rounded(at, fmt):
                yield _AngleTable(both(text), angles, exact, cost, rounded=rounded)
        for variant in variants(self.setting, exact, self.recovered):
            words = variant.text("", table, explains=True), variant.text("", table, explains=False)
            meant = "" if variant.computed else variant.seen
            yield _AngleTable(words, at * variant.theta, variant.theta, variant.cost, meant=meant)

    def _rounded(self, at: Array, fmt: Format) -> Iterator[tuple[str, Array, float, bool]]:
        """Yield (text, angles (s, p), cost, whether formed angles are rounded) of sets of rounded stages.

        A set is of the stages before cos and sin, and a format rounds all of it.

        Where it holds every position, rounding these changes nothing, and the other two are every stage.
        """
        place, theta = hypotheses.cast(at, fmt), hypotheses.cast(self.exact, fmt)
        held, cost = np.array_equal(place, at), 1 + hypotheses.cast_cost(fmt) / 10
        for count in (1, 2, 3):
            for steps in itertools.combinations(_STEPS, count):
                if held and "position" in steps:
                    continue
                words = _WORDS[_STEPS if held and count == 2 else steps]
                positions = place if "position" in steps else at
                angles = positions * (theta if "frequency" in steps else self.exact)
                rounded = "angle" in steps
                values = hypotheses.cast(angles, fmt if rounded else None)
                yield words.format(fmt), values, cost + 0.05 * (count - 1), rounded
        if fmt.name == "tf32":  # nothing is computed in it but products
            return
        for number, form in enumerate(_FORMS):
            computed = frequencies(self.setting, form, fmt).astype(np.float64)
            text = f"inv_freq (as {form}) and every angle were computed in {fmt}"
            yield text, hypotheses.cast(place * computed, fmt), cost + 0.4 + 0.01 * number, True


def recovered(points: NDArray[np.complex128]) -> Array:
    """Return the frequencies that the phases show, refined from position 1 to ever later ones.

    Shapes: (n, p) -> (p,). Angles rounded coarsely lose count of rotations; early positions decide then.
    """
    phases, n = np.angle(np.nan_to_num(points)), len(points)
    theta, at = phases[1].copy(), 1
    while at < n - 1:
        at = min(2 * at, n - 1)
        rest = phases[at] - theta * at
        theta += (rest - 2 * math.pi * np.round(rest / (2 * math.pi))) / at
    return np.asarray(theta)
