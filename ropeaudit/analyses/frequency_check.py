"""What is wrong with a dumped inv_freq or cos/sin table: which pairs are off, and what explains it.

A hypothesis predicts the dump from a setting that is wrong in one way, and casts on the way. It explains the
dump if nothing is left but float32 rounding (`tolerance`) and the half ulp of its casts; the simplest
that does comes first. cos and sin are compared as points: distances on the circle, radians.
Letters: p pairs, n positions, u the roundoff of float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit import exact_frequencies
from ropeaudit.analyses.frequency_variants import Variant, variants
from ropeaudit.doubledouble import Array
from ropeaudit.formats import FP32, Format, parse, round_to
from ropeaudit.reference import distance_table
from ropeaudit.rope.scaled import effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tables import Dump

_CASTS = tuple(parse(name) for name in ("fp16", "bf16", "tf32", "e4m3", "e5m2"))
_STEPS = {"frequency": "inv_freq was", "angle": "angles were", "position": "positions were"}
_CHUNK = 8192  # positions compared at once
_SHOWN = 8  # hypotheses kept
_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sentence, whether it explains every pair, and the RMS and the largest of what it leaves.

    Units: relative to the frequency, or radians for a cos/sin table.
    """

    text: str
    explains: bool
    residual: float
    residual_max: float
    cost: float = field(repr=False)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The simplest that explains first, then the closest."""
        residual = self.residual if math.isfinite(self.residual) else math.inf
        return not self.explains, self.cost if self.explains else 0.0, residual


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A row a pair, the hypotheses (best first; none where the dump agrees), the finding in a sentence."""

    agrees: bool
    rows: list[dict[str, Any]]
    hypotheses: list[Hypothesis]
    headline: str


def tolerance(setting: RopeSetting) -> Array:
    """Return the largest relative error of every frequency that float32 arithmetic accounts for.

    An exponent x = 2i/d is off by u, in the forms with exp twice, and base^x by ln(base) times that; powers,
    quotients and products add a few u, the ramps of yarn and llama3 up to 32, and (base^(-2/d))^i one
    more a pair. Shapes: -> (p,).
    """
    ramps = 32 if setting.scaling.kind in ("yarn", "llama3") else 0
    steps = 2 * math.log(effective_base(setting)) + 8 + ramps + np.arange(setting.pairs)
    return np.asarray(steps * FP32.unit_roundoff)


def check(dump: Dump, setting: RopeSetting, label: str = "") -> Diagnosis:
    """Compare a dump with the exact table of a setting and say what explains the difference.

    Raises: BadInput if the dump has not one column (or two) for each pair of the setting.
    """
    dump = dump.folded(setting.pairs)
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    work = _Frequencies(dump, setting, exact) if dump.cos is None else _Table(dump, setting, exact)
    found = [{"setting": label, **row} for row in work.rows()]
    off = sum(row["off"] == "yes" for row in found)
    ranked = sorted(work.hypotheses(), key=lambda one: one.rank)[:_SHOWN] if off else []
    return Diagnosis(not off, found, ranked, _headline(dump.name, work, found, ranked))


def _headline(
    name: str, work: _Frequencies | _Table, found: list[dict[str, Any]], ranked: list[Hypothesis]
) -> str:
    worst = max(found, key=lambda row: abs(row[work.size]) if abs(row[work.size]) >= 0 else math.inf)
    size = f"{abs(worst[work.size]):.2g} {work.unit}"
    if not ranked:
        return f"{name} agrees within float32 rounding (worst: pair {worst['pair']}, {size})."
    off = sum(row["off"] == "yes" for row in found)
    much = f"{off} of {len(found)} pairs are off, by up to {size}"
    if ranked[0].explains:
        return f"{ranked[0].text} ({much})."
    return f"{much}, and nothing that was tried explains it; the nearest: {ranked[0].text}."


class _Frequencies:
    """A dumped inv_freq."""

    size, unit = "relative_error", "relative"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        self.found = np.zeros(0) if dump.frequencies is None else dump.frequencies
        self.setting, self.exact, self.tolerance = setting, exact, tolerance(setting)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of every pair; a frequency of 0 has errors relative to the largest one."""
        relative = (self.found - self.exact) / _sizes(self.exact)
        for i, error in enumerate(relative.tolist()):
            off = not abs(error) <= (self.tolerance[i] if self.exact[i] else 0.0)
            yield {
                "pair": i,
                "theta": float(self.exact[i]),
                "found": float(self.found[i]),
                "relative_error": error,
                "tolerance": float(self.tolerance[i]),
                "off": "yes" if off else "no",
            }

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, alone and with the casts that fit."""
        casts = _holding(self.found)
        for variant in (Variant(self.exact), *variants(self.setting, self.exact, self.found)):
            for cast in (None,) if variant.computed else (None, *casts):
                if cast or variant.seen:
                    yield self._hypothesis(variant, cast)

    def _hypothesis(self, variant: Variant, cast: Format | None) -> Hypothesis:
        theta, sizes = variant.theta, _sizes(variant.theta)
        slack = np.where(theta == 0, 0.0, np.maximum(self.tolerance, _least(self.setting)))
        predicted = theta
        if cast:
            predicted = round_to(theta, cast).astype(np.float64)
            slack = slack + cast.unit_roundoff + cast.smallest_subnormal / 2 / sizes
        explains = bool(np.all(np.abs(self.found - theta) / sizes <= slack))
        cost = variant.cost + _cost(cast)
        text = variant.text("inv_freq", cast.name if cast else "")
        return _scored(text, explains, np.abs(self.found - predicted) / sizes, cost)


class _Table:
    """A dumped table of cos and sin, for the positions 0 ... n-1."""

    size, unit = "largest_error", "radians"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        nothing = np.zeros((0, 0))
        self.points = (nothing if dump.cos is None else dump.cos) + 1j * (nothing if dump.sin is None else dump.sin)
        self.setting, self.exact, self.tolerance = setting, exact, tolerance(setting)
        self.factor = float(exact_frequencies.attention_factor(setting.scaling))
        self.recovered = _recovered(self.points)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of every pair: the frequency recovered, the largest error and where it begins."""
        n, pairs = self.points.shape
        largest, first = np.zeros(pairs), np.full(pairs, n)
        for start in range(0, n, _CHUNK):
            positions = np.arange(start, min(n, start + _CHUNK), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            errors = np.abs(self.points[start : start + _CHUNK] - (cos[0] + 1j * sin[0]))
            wrong = ~(errors <= self.slack(self.exact, positions))
            first = np.minimum(first, np.where(wrong.any(axis=0), start + wrong.argmax(axis=0), n))
            largest = np.maximum(largest, errors.max(axis=0))
        relative = (self.recovered - self.exact) / _sizes(self.exact)
        for i in range(pairs):
            yield {
                "pair": i,
                "theta": float(self.exact[i]),
                "found": float(self.recovered[i]),
                "relative_error": float(relative[i]),
                "largest_error": float(largest[i]) / self.factor,
                "first_position_off": int(first[i]) if first[i] < n else None,
                "off": "yes" if first[i] < n else "no",
            }

    def slack(self, theta: Array, positions: Array, cast: Format | None = None) -> Array:
        """Return the error that float32 angles, and one cast, account for. Shapes: (p,), (s,) -> (s, p)."""
        u = FP32.unit_roundoff
        relative = np.maximum(self.tolerance, _least(self.setting)) if cast else self.tolerance
        table = 3 * u + (2 * cast.unit_roundoff + cast.smallest_subnormal if cast else 0.0)
        return np.asarray(self.factor * (np.abs(positions[:, None] * theta) * (relative + 2 * u) + table))

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, and every stage that may have been cast."""
        n = len(self.points)
        positions = np.unique(np.concatenate([np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round()]))
        points = self.points[positions.astype(np.int64)]
        factors = self._factors(points)
        parts = np.concatenate([points.real, points.imag])
        for cast in (None, *_holding(parts)):
            for factor, words, extra in factors:
                for text, angles, theta, cost in self._angles(positions, cast.name if cast else ""):
                    said = " and ".join(filter(None, (words, text)))
                    if not said:
                        continue
                    predicted = factor * np.exp(1j * np.clip(angles, -self.setting.clip, self.setting.clip))
                    slack = self.slack(theta, positions, cast)
                    strays = float(np.mean(~(np.abs(points - predicted) <= slack)))
                    if cast:
                        predicted = round_to(predicted.real, cast) + 1j * round_to(predicted.imag, cast)
                    yield _scored(said, strays <= _STRAY, np.abs(points - predicted), cost + extra + _cost(cast))
