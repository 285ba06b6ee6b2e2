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
from ropeaudit.analyses.frequency_variants import CASTS, EXPLAINS, Variant, variants
from ropeaudit.doubledouble import Array
from ropeaudit.files.tables import Dump
from ropeaudit.formats import FP32, Format, parse, round_to
from ropeaudit.reference import distance_table
from ropeaudit.rope.scaled import effective_base
from ropeaudit.rope.setting import RopeSetting

_STEPS = {"frequency": "inv_freq was", "angle": "angles were", "position": "positions were"}
_CHUNK = 8192  # positions compared at once
_SHOWN = 5, 3  # hypotheses kept, those that explain and those that do not
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
    with np.errstate(all="ignore"):
        found = [{"setting": label, **row} for row in work.rows()]
        off = sum(row["off"] == "yes" for row in found)
        tried = work.hypotheses() if off and np.isfinite(work.found).all() else []
        ranked = sorted(tried, key=lambda one: one.rank)
    right = [one for one in ranked if one.explains][: _SHOWN[0]]
    near = [one for one in ranked if not one.explains][: _SHOWN[1]]
    return Diagnosis(not off, found, right + near, _headline(dump.name, work, found, right + near))


def _headline(
    name: str, work: _Frequencies | _Table, found: list[dict[str, Any]], ranked: list[Hypothesis]
) -> str:
    bad = int(work.found.size - np.isfinite(work.found).sum())
    if bad:
        return f"{name} holds {bad} nan or infinite values of {work.found.size}."
    worst = max(found, key=lambda row: abs(row[work.size]))
    size = f"{abs(worst[work.size]):.2g} {work.unit}"
    off = sum(row["off"] == "yes" for row in found)
    if not off:
        return f"{name} agrees within float32 rounding (worst: pair {worst['pair']}, {size})."
    much = f"{off} of {len(found)} pairs {'is' if off == 1 else 'are'} off, by up to {size}"
    if ranked[0].explains:
        return f"{ranked[0].text} ({much})."
    return f"{much}; nothing that was tried explains it, and the nearest is: {ranked[0].text}."


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
        for variant in (Variant(self.exact, cost=0.0), *variants(self.setting, self.exact, self.found)):
            for cast in (None,) if variant.computed else (None, *casts):
                if cast or variant.seen:
                    yield self._hypothesis(variant, cast)

    def _hypothesis(self, variant: Variant, cast: Format | None) -> Hypothesis:
        theta, sizes = variant.theta, _sizes(variant.theta)
        slack = np.where(theta == 0, 0.0, np.maximum(self.tolerance, _least(self.setting))) * sizes
        explains = bool(np.all(_within(self.found, theta, slack, cast)))
        errors = np.abs(self.found - _cast(theta, cast)) / sizes
        text = variant.text("inv_freq", cast.name if cast else "")
        return _scored(text, explains, errors, variant.cost + _cost(cast))


class _Table:
    """A dumped table of cos and sin, for the positions 0 ... n-1."""

    size, unit = "largest_error", "radians"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        nothing = np.zeros((0, 0))
        self.found = (nothing if dump.cos is None else dump.cos) + 1j * (
            nothing if dump.sin is None else dump.sin
        )
        self.setting, self.exact, self.tolerance = setting, exact, tolerance(setting)
        self.factor = float(exact_frequencies.attention_factor(setting.scaling))
        self.recovered = _recovered(self.found)
        self.first = np.zeros(0, np.int64)  # position at which every pair is first off; set by `rows`

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield of every pair the frequency recovered, the largest error and where it begins."""
        n, pairs = self.found.shape
        largest, first = np.zeros(pairs), np.full(pairs, n)
        for start in range(0, n, _CHUNK):
            positions = np.arange(start, min(n, start + _CHUNK), dtype=np.float64)
            cos, sin = distance_table(positions, self.setting)
            errors = np.abs(self.found[start : start + _CHUNK] - (cos[0] + 1j * sin[0]))
            wrong = ~(errors <= self.slack(self.exact, positions))
            begins = np.where(wrong.any(axis=0), start + wrong.argmax(axis=0), n)
            first = np.minimum(first, begins)
            largest = np.maximum(largest, errors.max(axis=0))
        self.first = first
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

    def slack(self, theta: Array, positions: Array, least: float = 0.0) -> Array:
        """Return the error that float32 arithmetic accounts for. Shapes: (p,), (s,) -> (s, p)."""
        relative = np.maximum(self.tolerance, least) + 2 * FP32.unit_roundoff
        turned = np.abs(positions[:, None] * theta) * relative
        return np.asarray(self.factor * (turned + 3 * FP32.unit_roundoff))

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, and every stage that may have been cast.

        They are judged by some positions: the first ones, later ones, and those where pairs begin to be off.
        """
        n = len(self.found)
        some = (np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round(), self.first[self.first < n])
        positions = np.unique(np.concatenate(some)).astype(np.float64)
        points, least = self.found[positions.astype(np.int64)], _least(self.setting)
        for cast in (None, *_holding(np.concatenate([points.real, points.imag]))):
            for factor, words, extra in self._factors(points):
                for text, angles, theta, cost in self._angles(positions, cast.name if cast else ""):
                    said = " and ".join(filter(None, (words, text)))
                    if not said:
                        continue
                    angles = np.clip(angles, -self.setting.clip, self.setting.clip)
                    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
                    slack = self.slack(theta, positions, least)
                    fits = _within(points.real, cos, slack, cast) & _within(points.imag, sin, slack, cast)
                    allowed = _STRAY if "angle" in text else 0.0
                    errors = np.abs(points - (_cast(cos, cast) + 1j * _cast(sin, cast)))
                    explains = float(np.mean(~fits)) <= allowed
                    yield _scored(said, explains, errors, cost + extra + _cost(cast))

    def _factors(self, points: NDArray[np.complex128]) -> list[tuple[float, str, float]]:
        """The attention factor that is expected, and the one that the lengths of the points tell."""
        found = {self.factor: ("", 0.0)}
        seen = float(np.median(np.abs(points)))
        if abs(seen / self.factor - 1) > 1e-3:
            for factor in ([1.0] if abs(seen - 1) < 1e-2 else []) + [float(f"{seen:.{k}g}") for k in (3, 6)]:
                words = f"cos and sin are multiplied by {factor:.6g} instead of {self.factor:.6g}"
                found.setdefault(factor, (words, 1.0 + 0.1 * len(found)))
        return [(factor, *rest) for factor, rest in found.items()]

    def _angles(self, positions: Array, table: str) -> Iterator[tuple[str, Array, Array, float]]:
        """Yield (text, angles (s, p), the frequencies to judge them by, cost)."""
        at, exact = positions[:, None], self.exact
        cast = f"the cos/sin table was cast to {table}" if table else ""
        yield cast, at * exact, exact, 0.0
        for text, angles in (
            ("the table begins at position 1 instead of 0", (at + 1) * exact),
            ("sin has the opposite sign", -at * exact),
            ("cos and sin are swapped", math.pi / 2 - at * exact),
        ):
            yield " and ".join(filter(None, (text, cast))), angles, exact, 1.0
        for fmt in CASTS[:3]:
            for steps in (*((step,) for step in _STEPS), ("position", "frequency", "angle")):
                chosen = {step: fmt if step in steps else parse("fp64") for step in _STEPS}
                theta = round_to(exact, chosen["frequency"]).astype(np.float64)
                place = round_to(at, chosen["position"]).astype(np.float64)
                angles = round_to(place * theta, chosen["angle"]).astype(np.float64)
                if "position" in steps and np.array_equal(place, at):
                    continue
                verb = "cast" if steps[0] == "frequency" else "rounded"
                who = "every angle was computed in" if len(steps) > 1 else f"{_STEPS[steps[0]]} {verb} to"
                yield (
                    " and ".join(filter(None, (f"{who} {fmt.name}", cast))),
                    angles,
                    exact,
                    1 + _cost(fmt) / 10,
                )
        for variant in variants(self.setting, exact, self.recovered):
            yield variant.text("", table), at * variant.theta, variant.theta, variant.cost


def _recovered(points: NDArray[np.complex128]) -> Array:
    """Return the frequencies that a table's phases tell, refined from position 1 to ever later ones.

    Shapes: (n, p) -> (p,). Angles rounded coarsely lose count of the turns; the early positions decide then.
    """
    phases, n = np.angle(np.nan_to_num(points)), len(points)
    found, at = phases[1].copy(), 1
    while at < n - 1:
        at = min(2 * at, n - 1)
        rest = phases[at] - found * at
        found += (rest - 2 * math.pi * np.round(rest / (2 * math.pi))) / at
    return np.asarray(found)


def _holding(values: Array) -> list[Format]:
    """The formats narrower than float32 that hold every value; not tf32 where float16 does."""
    found = [fmt for fmt in CASTS if np.array_equal(_cast(values, fmt), values)]
    return [fmt for fmt in found if not (fmt.name == "tf32" and CASTS[0] in found)]


def _cast(values: Array, fmt: Format | None) -> Array:
    return values if fmt is None else round_to(values, fmt).astype(np.float64)


def _within(found: Array, predicted: Array, slack: Array, cast: Format | None) -> NDArray[np.bool_]:
    """Tell where a value is what a cast makes of a number within `slack` of the predicted one."""
    low, high = _cast(predicted - slack, cast), _cast(predicted + slack, cast)
    return np.asarray((low <= found) & (found <= high))


def _scored(text: str, explains: bool, errors: Array, cost: float) -> Hypothesis:
    if not explains:
        text = text.replace(EXPLAINS, " instead of ")
    return Hypothesis(text, explains, float(np.sqrt(np.mean(errors**2))), float(errors.max()), cost)


def _sizes(theta: Array) -> Array:
    """What errors are relative to: the frequency, or the largest one where it is 0."""
    return np.where(theta == 0, np.abs(theta).max(initial=0.0) or 1.0, np.abs(theta))


def _least(setting: RopeSetting) -> float:
    """A tolerance for scalings that the expected one may have been taken for."""
    return (2 * math.log(effective_base(setting)) + 40) * FP32.unit_roundoff


def _cost(cast: Format | None) -> float:
    return 0.0 if cast is None else 1.0 + 0.01 * CASTS.index(cast)
