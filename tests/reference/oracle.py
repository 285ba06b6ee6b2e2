"""A second opinion on every drift: the same computation, one number at a time, in exact arithmetic.

Nothing of ropeaudit is imported. A number of any format is a Python float; every operation is done exactly
on `Fraction` (or to 60 digits in mpmath where it is transcendental) and rounded once by `rounded`, on
integers. Recipes are read as the TOML text that they are. The one thing taken from NumPy is the order of
its float32 and float64 sums, which no specification fixes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import mp, mpf

DIGITS = 60
Matrix = list[list[float]]


@dataclass(frozen=True)
class Fmt:
    """precision with the implicit bit, exponents of the smallest normal and of the largest binade."""

    precision: int
    emin: int
    emax: int
    largest: Fraction
    infinite: bool = True


def _ieee(precision: int, exponent_bits: int) -> Fmt:
    emax = 2 ** (exponent_bits - 1) - 1
    return Fmt(precision, 1 - emax, emax, (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** emax)


FLOAT64, FLOAT32 = _ieee(53, 11), _ieee(24, 8)
FORMATS = {
    "float64": FLOAT64,
    "float32": FLOAT32,
    "tf32": _ieee(11, 8),
    "float16": _ieee(11, 5),
    "bfloat16": _ieee(8, 8),
    "float8_e4m3": Fmt(4, -6, 8, Fraction(448), infinite=False),
    "float8_e5m2": _ieee(3, 5),
}
FORMATS |= {"fp64": FLOAT64, "fp32": FLOAT32, "fp16": FORMATS["float16"], "bf16": FORMATS["bfloat16"]}
FORMATS |= {"e4m3": FORMATS["float8_e4m3"], "e5m2": FORMATS["float8_e5m2"]}


def rounded(x: Any, fmt: Fmt) -> float:
    """Round an exact number once, to nearest, ties to even. x: float, int, Fraction or mpf."""
    if isinstance(x, float) and not math.isfinite(x):
        return x if fmt.infinite else math.nan
    exact = _fraction(x) if isinstance(x, mpf) else Fraction(x)
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)
    nearest = round(size / quantum) * quantum  # round() of a Fraction takes ties to even
    if nearest > fmt.largest:
        return math.copysign(math.inf, exact) if fmt.infinite else math.nan
    return math.copysign(float(nearest), exact)


def _fraction(x: mpf) -> Fraction:
    """An mpf as a Fraction; its last digits are dropped, so that 10000^0.5 is 100 and no neighbour."""
    with mp.workprec(170):
        sign, mantissa, exponent, _ = (+x)._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def times(a: float, b: float, fmt: Fmt) -> float:
    return rounded(Fraction(a) * Fraction(b) if _finite(a, b) else a * b, fmt)


def plus(a: float, b: float, fmt: Fmt) -> float:
    return rounded(Fraction(a) + Fraction(b) if _finite(a, b) else a + b, fmt)


def over(a: float, b: float, fmt: Fmt) -> float:
    if _finite(a, b):
        return rounded(Fraction(a) / Fraction(b), fmt) if b else math.copysign(math.inf, a)
    return rounded(a / b, fmt)


def sum_of_products(a: Sequence[float], b: Sequence[float], fmt: Fmt) -> float:
    """Exact until one rounding."""
    if not _finite(*a, *b):
        return sum(x * y for x, y in zip(a, b, strict=True))
    return rounded(sum(Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), fmt)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


@dataclass(frozen=True)
class Rope:
    """The setting; the softmax scale is a float64."""

    head_dim: int
    rotary_dim: int
    base: float
    layout: str
    scale: float

    def pairs(self) -> list[tuple[int, int]]:
        half = self.rotary_dim // 2
        if self.layout == "half":
            return [(i, i + half) for i in range(half)]
        return [(2 * i, 2 * i + 1) for i in range(half)]


class Model:
    """A recipe, which is the table of one TOML section, in a dtype."""

    def __init__(self, recipe: Mapping[str, Any], dtype: str, rope: Rope) -> None:
        self.rope, self.form = rope, recipe["frequency_form"]
        self.once = recipe["rotation_rounding"] == "once"
        self.scale_after_store = recipe["scale_after_store"] in (True, "true")
        model = FORMATS[dtype]
        words = {"model": model, "model32": model if model.precision > 24 else FLOAT32} | FORMATS

        def chain(stage: str) -> tuple[Fmt, Fmt]:
            computed, _, stored = recipe[stage].partition("/")
            return words[computed], words[stored or computed]

        def one(stage: str) -> Fmt:
            return words[recipe[stage]]

        self.frequency, self.angle = chain("frequency"), chain("angle")
        self.position, self.trig, self.input = one("position"), one("trig"), one("input")
        self.rotation, self.output = one("rotation"), one("output")
        self.table = None if recipe["table"] == "none" else one("table")
        wide = FLOAT64 if self.output.precision > 24 else FLOAT32
        self.accumulate = wide if recipe["accumulate"] == "auto" else one("accumulate")
        self.score = self.accumulate if recipe["score"] == "accumulate" else one("score")

    def frequencies(self) -> list[float]:
        """What the form keeps, computed and then stored."""
        computed, stored = self.frequency
        results = _frequencies(self.form, self.rope.base, self.rope.rotary_dim, computed)
        return [rounded(value, stored) for value in results]

    def angles(self, position: int) -> list[float]:
        product, stored = self.angle
        here, results = rounded(position, self.position), []
        current = rounded(here, product)
        for cached in self.frequencies():
            if self.form == "recurrence":
                results.append(current)
                current = times(current, cached, product)
            else:
                results.append((over if self.form == "divide" else times)(here, cached, product))
        return [rounded(angle, stored) for angle in results]

    def tables(self, position: int) -> list[tuple[float, float]]:
        """cos and sin of every pair."""
        table = [circle(angle, self.trig) for angle in self.angles(position)]
        if self.table is None:
            return table
        return [(rounded(cos, self.table), rounded(sin, self.table)) for cos, sin in table]

    def rotate(self, row: Sequence[float], position: int) -> list[float]:
        """Turn a row that is in the input format."""
        rotated, fmt = list(row), self.rotation
        for (i, j), (cos, sin) in zip(self.rope.pairs(), self.tables(position), strict=True):
            a, b = row[i], row[j]
            if self.once:
                rotated[i] = sum_of_products((a, -b), (cos, sin), fmt)
                rotated[j] = sum_of_products((b, a), (cos, sin), fmt)
            else:
                rotated[i] = plus(times(a, cos, fmt), -times(b, sin, fmt), fmt)
                rotated[j] = plus(times(b, cos, fmt), times(a, sin, fmt), fmt)
        return [rounded(x, self.output) for x in rotated]

    def scores(self, q: Matrix, k: Matrix, offset: int) -> Matrix:
        """Scores of every query (row) with every key; q and k are in the input format."""
        rotated_q = [self.rotate(row, m + offset) for m, row in enumerate(q)]
        rotated_k = [self.rotate(row, n + offset) for n, row in enumerate(k)]
        return [[self._finish(s) for s in row] for row in self._dots(rotated_q, rotated_k)]

    def _dots(self, q: Matrix, k: Matrix) -> Matrix:
        if self.accumulate is FLOAT64 and self.output is not FLOAT64:
            return [[sum_of_products(a, b, FLOAT64) for b in k] for a in q]
        if self.accumulate is self.output is FLOAT64:
            return _blas(q, k, np.dtype("float64"))
        if self.accumulate is FLOAT32 and self.output is not FLOAT64:
            return _blas(q, k, np.dtype("float32"))
        return [[self._one_by_one(a, b) for b in k] for a in q]

    def _one_by_one(self, a: Sequence[float], b: Sequence[float]) -> float:
        total = 0.0
        for x, y in zip(a, b, strict=True):
            total = sum_of_products((x, total), (y, 1.0), self.accumulate)
        return total

    def _finish(self, score: float) -> float:
        """Scale and store. An accumulator narrower than float32 hands over to float32 arithmetic."""
        arithmetic = FLOAT64 if self.accumulate is FLOAT64 else FLOAT32
        if self.scale_after_store:
            score = rounded(score, self.score)
        return rounded(times(score, rounded(self.rope.scale, arithmetic), arithmetic), self.score)

    def distinct_positions(self, seq_len: int, offset: int) -> int:
        places = {rounded(m + offset, self.position) for m in range(seq_len)}
        return sum(map(math.isfinite, places))


@functools.cache
def _frequencies(form: str, base: float, dim: int, fmt: Fmt) -> tuple[float, ...]:
    with mp.workdps(DIGITS):
        b, pairs = mpf(base), dim // 2
        x = [rounded(Fraction(2 * i, dim), fmt) for i in range(pairs)]
        if form in ("inverse_power", "divide"):
            powers = [rounded(mp.power(b, mpf(e)), fmt) for e in x]
            return tuple(powers if form == "divide" else (over(1.0, p, fmt) for p in powers))
        if form == "power":
            return tuple(rounded(mp.power(b, -mpf(e)), fmt) for e in x)
        if form == "exp":
            slope = over(rounded(mp.log(b), fmt), float(pairs), fmt)
            return tuple(rounded(mp.exp(-mpf(times(float(i), slope, fmt))), fmt) for i in range(pairs))
        if form == "exp2":
            slope = rounded(mp.log(b) / mp.log(2), fmt)
            return tuple(rounded(mp.power(2, -mpf(times(e, slope, fmt))), fmt) for e in x)
        step = rounded(mp.power(b, -mpf(rounded(Fraction(2, dim), fmt))), fmt)
        if form == "recurrence":
            return (step,) * pairs
        assert form == "step_power", form
        return tuple(rounded(Fraction(step) ** i, fmt) for i in range(pairs))


@functools.cache
def circle(angle: float, fmt: Fmt) -> tuple[float, float]:
    """cos and sin, correctly rounded."""
    if not math.isfinite(angle):
        return math.nan, math.nan
    with mp.workdps(DIGITS):
        cos, sin = mp.cos_sin(mpf(angle))
        return rounded(cos, fmt), rounded(sin, fmt)


def _blas(q: Matrix, k: Matrix, dtype: np.dtype[Any]) -> Matrix:
    """The order of these sums is NumPy's own; k lies transposed, as in the tool."""
    left, right = np.array(q, dtype), np.ascontiguousarray(np.array(k, dtype).T)
    with np.errstate(all="ignore"):
        result: Matrix = (left @ right).tolist()
    return result


@functools.cache
def _exact_circle(base: float, rotary_dim: int, pair: int, distance: int) -> tuple[mpf, mpf]:
    with mp.workdps(DIGITS):
        theta = mp.power(mpf(base), -mpf(2 * pair) / rotary_dim)
        result: tuple[mpf, mpf] = mp.cos_sin(distance * theta)
        return result


def exact_score(q: Sequence[float], k: Sequence[float], distance: int, rope: Rope) -> mpf:
    """scale * (sum_i Re(q_i conj(k_i) e^{j distance theta_i}) + the dims that are not rotated)."""
    with mp.workdps(DIGITS):
        total = mpf(0)
        for pair, (i, j) in enumerate(rope.pairs()):
            cos, sin = _exact_circle(rope.base, rope.rotary_dim, pair, distance)
            a, b, c, d = mpf(q[i]), mpf(q[j]), mpf(k[i]), mpf(k[j])
            total += (a * c + b * d) * cos - (b * c - a * d) * sin
        for i in range(rope.rotary_dim, rope.head_dim):
            total += mpf(q[i]) * mpf(k[i])
        return mpf(rope.scale) * total


@dataclass(frozen=True)
class Expected:
    """The columns of a record that are compared, and every drift by (head, query, key)."""

    columns: dict[str, float]
    drift: dict[tuple[int, int, int], float]
    nonfinite: int


def audit(model: Model, q: Sequence[Matrix], k: Sequence[Matrix], offset: int, causal: bool) -> Expected:
    """Audit one offset. q: heads x positions x dims; k: key-value heads x positions x dims."""
    drift: dict[tuple[int, int, int], float] = {}
    own, reference = [], []
    q, k = ([[[rounded(n, model.input) for n in row] for row in head] for head in x] for x in (q, k))
    with mp.workdps(DIGITS):
        for head, queries in enumerate(q):
            keys = k[head // (len(q) // len(k))]
            shifted, still = model.scores(queries, keys, offset), model.scores(queries, keys, 0)
            for m in range(len(queries)):
                for n in range(m + 1 if causal else len(keys)):
                    exact = exact_score(queries[m], keys[n], m - n, model.rope)
                    reference.append(float(exact))
                    drift[head, m, n] = float(mpf(shifted[m][n]) - exact)
                    own.append(shifted[m][n] - still[m][n] if offset else shifted[m][n] * 0.0)
    columns = {
        "drift_max": _largest(drift.values()),
        "drift_rms": _rms(drift.values()),
        "drift_mean_abs": _mean([abs(value) for value in drift.values()]),
        "drift_bias": _mean(list(drift.values())),
        "change_max": _largest(own),
        "change_rms": _rms(own),
        "reference_rms": _rms(reference),
        "distinct_positions": model.distinct_positions(len(q[0]), offset),
        "scores": len(drift),
    }
    return Expected(columns, drift, sum(not math.isfinite(d) for d in drift.values()))


def _largest(values: Any) -> float:
    sizes = [abs(value) for value in values]
    return max(sizes) if _finite(*sizes) else math.nan


def _rms(values: Any) -> float:
    squares = [value * value for value in values]
    return math.sqrt(math.fsum(squares) / len(squares)) if _finite(*squares) else math.nan


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if _finite(*values) else math.nan
