"""Roundings of rotated pairs and of scores: what a recipe may do wrong after the angle.

Relative errors of a rotated pair, and absolute ones of underflow, half the smallest subnormal number each;
then what scaling and storing do to a score. The errors of the angles are those of `ropeaudit.bounds.phases`.
Source: numerics.md, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.subjects.emulated import Emulated

NOISE = 0.42**2  # mean square of a relative rounding error, in units of u squared
# a bit that is cut off costs 1/8 ulp², a rounding 1/12; each octave below costs a quarter as much
_GROWTH = 2.0
_COSINE = 2.0**-49  # of NumPy's float64 cos and sin, absolute: 4 ulp


@dataclass(frozen=True, slots=True)
class PairError:
    """A rotated pair, or a dimension that is not rotated: what its roundings add.

    worst: relative to its absolute value times `weight`, the attention factor. small: absolute, of
    underflow. variance: mean square relative error. bias: a relative error common to all.
    """

    weight: float
    worst: float
    small: float
    variance: float
    bias: float = 0.0


def rotated_pair(subject: Emulated) -> PairError:
    """Return the errors of a rotated pair; (1 + sqrt 2) u of a rotation holds for operands of any width.

    Each product adds u times itself and the sum u times itself; products of |x| |cos| and |y| |sin| are
    sqrt 2 |x + iy| at most.
    """
    recipe, (weight, grown, table_small, noise, bias) = subject.recipe, _table_error(subject)
    rotation, output = recipe.rotation, recipe.output
    u, each = rotation.unit_roundoff, recipe.recipe.rotation_rounding == "each"
    rotate, noise = (u * (math.sqrt(2) * (1 + u) + 1), noise + 2 * u * u) if each else (u, noise + u * u)
    small = rotation.smallest_subnormal * (1.5 if each else 0.5) * math.sqrt(2) * (1 + u)
    if output is not rotation:
        v = output.unit_roundoff
        rotate = (1 + rotate) * (1 + v) - 1
        small = small * (1 + v) + output.smallest_subnormal / math.sqrt(2)
        noise += v * v if output.precision < rotation.precision else 0.0
    worst = grown * (1 + rotate) - 1 + table_small / weight * (1 + rotate)
    return PairError(weight, worst, small, NOISE * noise, bias)


def _table_error(subject: Emulated) -> tuple[float, float, float, float, float]:
    """Return the errors of cos and sin: computed, multiplied by the attention factor, stored.

    weight, by how much they grow at most, what underflow adds, noise and bias: see `PairError`.
    """
    trig, table = subject.recipe.trig, subject.recipe.table
    u, weight, bias = trig.unit_roundoff, 1.0, 0.0
    grown, small = (1 + u) * (1 + _COSINE), trig.smallest_subnormal / math.sqrt(2)
    noise = u * u
    factor = attention_factor(subject.setting.scaling)
    exact = exact_frequencies.attention_factor(subject.setting.scaling)
    if factor != 1.0 or exact != 1:
        weight, used = float(exact), float(round_to(np.array(factor), trig))
        bias = abs(float(Decimal(used) / exact - 1))
        grown, small, noise = grown * (1 + bias) * (1 + u), small * (2 * used + 2), noise + u * u
    if table is not None:
        v = table.unit_roundoff
        grown, small = grown * (1 + v), small * (1 + v) + table.smallest_subnormal / math.sqrt(2)
        noise += v * v if table.precision < trig.precision else 0.0
    return weight, grown, small, noise, bias


def unrotated_dim(subject: Emulated, inputs: Inputs | SampledInputs) -> PairError:
    """Return the errors of a dimension that is not rotated: it is rounded to the output's format.

    Its mean square error is 0 where that format holds these q and k as they are.
    """
    output, given = subject.recipe.output, subject.input
    if output.precision >= given.precision and output.emin <= given.emin and output.emax >= given.emax:
        return PairError(1.0, 0.0, 0.0, 0.0)
    u = output.unit_roundoff
    fewer_bits = output.precision < given.precision and inputs.distinct([output])[output] is not FP64
    return PairError(1.0, u, output.smallest_subnormal / 2, NOISE * u * u if fewer_bits else 0.0)


def accumulated(subject: Emulated, rotated: float, rest: float, endings: Endings) -> float:
    """Return the mean square error of the accumulated sum: of its d roundings, the dims in their order.

    A sum of products that the accumulator holds exactly is rounded only when it grows by a bit: that costs
    `_GROWTH` roundings of the last sum. So it is with dims that are not rotated, where q and k have few bits.

    rotated, rest: the mean squares of what rotated pairs and other dims add to an unscaled score, squared
    score units. endings: the last bits of these other dims.
    """
    u, first = subject.accumulate.unit_roundoff, subject.setting.rotary_dim
    others, size = subject.setting.head_dim - first, math.sqrt(rotated + rest)
    if not math.isfinite(size):
        return math.inf
    last_bit = math.frexp(size)[1] + 2 - subject.accumulate.precision  # of sums of four times the score's RMS
    inexact = endings.share_below(last_bit) if others and size else 0.0
    exact = (1 - inexact) * min(_GROWTH, others / 2)
    return NOISE * u * u * (rotated * (first / 2 + inexact * others) + rest * (inexact * others / 2 + exact))


@dataclass(frozen=True, slots=True)
class ScoreError:
    """From an accumulated score to the stored one: error -> grows * error + adds * |score| + small.

    |score| is the exact one, unscaled; the result is scaled. variance: mean square relative error.
    largest: the largest number that a score may be on its way, unscaled.
    """

    grows: float
    adds: float
    small: float
    variance: float
    largest: float


def score(subject: Emulated) -> ScoreError:
    """Return what scaling and storing do to a score. A scale that is a power of two rounds nothing."""
    scale, store, accumulate = subject.setting.scale, subject.score, subject.accumulate
    multiply = FP64 if accumulate is FP64 else FP32  # the format in which the scale multiplies
    scaled, power_of_two = scale != 1.0, math.frexp(scale)[0] == 0.5
    u, tiny = store.unit_roundoff, store.smallest_subnormal / 2
    steps: list[tuple[float, float, float]] = []  # factor, relative and absolute error of the rounding
    stored_unscaled = scaled and subject.scale_after_store
    if stored_unscaled and store.precision < accumulate.precision:
        steps.append((1.0, u, tiny))
    if scaled:
        rounded_scale = 0.0 if multiply is FP64 else abs(float(np.float32(scale)) / scale - 1)
        steps.append((scale, rounded_scale, 0.0))
        product = 0.0 if power_of_two else multiply.unit_roundoff
        steps.append((1.0, product, multiply.smallest_subnormal))
    if store.precision < (multiply if scaled else accumulate).precision:
        unchanged = power_of_two and stored_unscaled  # it was stored already
        steps.append((1.0, 0.0 if unchanged else u, tiny))
    grows, adds, small, size, squares = 1.0, 0.0, 0.0, 1.0, 0.0
    for factor, relative, absolute in steps:
        size *= factor
        grows, adds, small = (x * factor * (1 + relative) for x in (grows, adds, small))
        adds, small = adds + relative * size, small + absolute
        squares += relative * relative
    largest_stored = store.largest / (max(1.0, scale) if stored_unscaled else scale)
    largest = min(accumulate.largest, largest_stored, multiply.largest / max(1.0, scale))
    return ScoreError(grows, adds, small, NOISE * squares, largest)


_LOWEST, _HIGHEST = -1100, 1100  # exponents of last bits of float64, and more


@dataclass(slots=True)
class Endings:
    """How many numbers of q and of k have their last bit at each exponent (2, e).

    numbers: how many there are (2,), those among them that are 0 and have no last bit.
    """

    counts: Array = field(default_factory=lambda: np.zeros((2, _HIGHEST - _LOWEST)))
    numbers: Array = field(default_factory=lambda: np.zeros(2))

    def add(self, side: int, x: Array) -> None:
        """Count numbers of q (side 0) or k (side 1)."""
        finite = x[np.isfinite(x)]
        mantissas, exponents = np.frexp(finite[finite != 0])
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        last_bits = exponents - 54 + np.frexp((whole & -whole).astype(np.float64))[1]
        self.counts[side] += np.bincount(last_bits - _LOWEST, minlength=self.counts.shape[1])
        self.numbers[side] += x.size

    @classmethod
    def joined(cls, parts: Sequence[Endings]) -> Endings:
        """Return what was counted in all the parts."""
        return cls(
            np.sum([part.counts for part in parts], axis=0), np.sum([part.numbers for part in parts], axis=0)
        )

    def share_below(self, exponent: int) -> float:
        """Return the share of products of a number of q and one of k whose last bit is below an exponent."""
        q, k = self.counts
        total, below = float(self.numbers.prod()), np.concatenate([[0.0], np.cumsum(k)])
        highest = np.clip(exponent - 2 * _LOWEST - np.arange(q.size), 0, q.size)
        return float(q @ below[highest]) / total if total else 0.0
