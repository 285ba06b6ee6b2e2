"""The terms of `ropeaudit.bounds`: errors of angles, of rotated pairs and of scores.

Known errors of the angles (a rounded position, a rounded frequency) are computed with their sign; roundings
of the angle count as half an ulp, or 0 where exact. Then follow the relative errors of a rotated pair, the
absolute ones of underflow, half the smallest subnormal number each, and the errors of scaling and storing.
Letters: s positions, p pairs. Source: numerics.md, section 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.frequencies import FrequencyForm, effect, frequencies
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.rope.grids import Grid

_SLACK = 2.0**-50  # of a few float64 operations
_PARTS = ("known", "worst", "variance")

NOISE = 0.42**2  # mean square of a relative rounding error, in units of u squared
# a bit that is cut off costs 1/8 ulp², a rounding 1/12; each octave below costs a quarter as much
_GROWTH = 2.0
_COSINE = 2.0**-49  # of NumPy's float64 cos and sin, absolute: 4 ulp


Frequencies = tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True)
class Phase:
    """Errors of the angles of one side, radians: known ones, the largest others, their variance. All (s, p).

    Only differences of `known` count: what is common to all positions is left out.
    """

    known: Array
    worst: Array
    variance: Array


def stored_frequencies(subject: Emulated) -> Frequencies:
    """Return the stored numbers, the frequencies that they stand for, and the errors of these.

    Shapes: -> three of (p,). Units: those of `rope.frequencies.unscaled`, radians per token twice.
    """
    recipe = subject.recipe
    return _stored_frequencies(subject.setting, recipe.recipe.frequency_form, *recipe.frequency)


@functools.lru_cache(maxsize=256)
def _stored_frequencies(
    setting: RopeSetting, form: FrequencyForm, computed: Format, stored: Format
) -> Frequencies:
    cached = round_to(frequencies(setting, form, computed), stored).astype(np.float64)
    effects = [Decimal(x) for x in effect(setting, stored).tolist()] if form == "recurrence" else []
    meant, error = [], []
    with dd.precise():
        exact_thetas = exact_frequencies.frequencies(setting)
        for i, (value, exact) in enumerate(zip(cached.tolist(), exact_thetas, strict=True)):
            theta = Decimal(value)
            if form == "divide":
                theta = 1 / theta
            elif form == "recurrence":
                theta = (theta**i if i else Decimal(1)) * effects[i]
            meant.append(float(theta))
            error.append(float(theta - exact))
    return cached, np.array(meant), np.array(error)


def rate(subject: Emulated) -> Array:
    """Return the errors of the frequencies, by which phase errors grow with distance. Shapes: -> (p,).

    0 where angles are clipped, for there they do not grow evenly, and on a grid, where there are several
    distances: then the errors of the angles hold all of it.
    """
    _, _, error = stored_frequencies(subject)
    uneven = subject.setting.clipped or subject.setting.grid is not None
    return np.zeros_like(error) if uneven else error


def aliasing(subject: Emulated, seq_len: int, offset: int) -> Array:
    """Return by how much each position is rounded. -> (s,), on a grid (s, p)."""
    grid = subject.setting.grid
    if grid is not None:
        steps = np.arange(seq_len, dtype=np.int64)
        return _moved_by_rounding(subject, grid, steps, offset)[:, grid.of_pairs()]
    exact = np.arange(seq_len, dtype=np.float64) + offset
    return round_to(exact, subject.recipe.position).astype(np.float64) - exact


def phase(subject: Emulated, steps: Positions, offset: int) -> Phase:
    """Return the errors of the angles at steps + offset, radians; not finite where an angle is not.

    Shapes: steps (s,) -> three of (s, p).
    """
    if (grid := subject.setting.grid) is not None:
        # along an axis of one token all angles are the same number, and so are their errors: they cancel
        _, theta, error = stored_frequencies(subject)
        of_pairs = grid.of_pairs()
        from_position = _moved_by_rounding(subject, grid, steps, offset)[:, of_pairs] * theta
        from_frequency = grid.per_pair(steps) * error
        held = subject.on_grid(steps, offset).astype(np.float64)
        worst, variance = _roundings(subject, held[:, of_pairs])
        known = from_position + from_frequency
        worst += _SLACK * (np.abs(from_position) + np.abs(from_frequency))
        differ = (np.array(grid.sizes) > 1)[of_pairs] | ~np.isfinite(known + worst)
        return Phase(*(np.where(differ, part, 0.0) for part in (known, worst, variance)))
    shifted = _phase_errors_at(subject, steps, offset, offset)
    if subject.axes is None or not offset:
        return shifted
    unshifted, moved = _phase_errors_at(subject, steps, 0, offset), subject.axes.moved()
    return Phase(*(np.where(moved, getattr(shifted, name), getattr(unshifted, name)) for name in _PARTS))


def _moved_by_rounding(subject: Emulated, grid: Grid, steps: Positions, offset: int) -> Array:
    """Return how far the position stage moves tokens. Shapes: (s,) -> (s, a)."""
    high, low = dd.two_sum(grid.positions(steps), grid.shift(offset))
    return np.asarray((subject.on_grid(steps, offset) - high) - low)


def _phase_errors_at(subject: Emulated, steps: Positions, shift: int, origin: int) -> Phase:
    """Return the errors at steps + shift; with clipped angles compared with steps + origin."""
    recipe, setting = subject.recipe, subject.setting
    _, theta, error = stored_frequencies(subject)
    exact = (steps + shift).astype(np.float64)
    position = round_to(exact, recipe.position).astype(np.float64)
    reference = (steps + origin).astype(np.float64) if setting.clipped else exact
    span = reference if setting.clipped else steps.astype(np.float64)
    from_position, from_frequency = (position - reference)[:, None] * theta, span[:, None] * error
    worst, variance = _roundings(subject, position[:, None])
    known = from_position + from_frequency
    worst += _SLACK * (np.abs(from_position) + np.abs(from_frequency))
    if setting.clipped:
        clip, exact_angle = setting.clip, reference[:, None] * (theta - error)
        inside = (np.abs(exact_angle) < clip) & (np.abs(exact_angle + known) < clip)
        capped = np.clip(exact_angle + known, -clip, clip) - np.clip(exact_angle, -clip, clip)
        known = np.where(inside, known, capped)
        smallest = np.minimum(np.abs(exact_angle), np.abs(exact_angle + known)) - worst
        variance = np.where(smallest > clip, 0.0, variance)
        stored_clip = float(recipe.angle[1].carrier.type(clip))
        worst += _SLACK * np.minimum(np.abs(exact_angle), clip) + abs(stored_clip - clip)
    return Phase(known, worst, variance)


def _roundings(subject: Emulated, position: Array) -> tuple[Array, Array]:
    """Return the largest sum and the variance of roundings of the angles, by the positions as they are held.

    Shapes: (s, 1) or (s, p) -> two of (s, p).
    """
    recipe, form = subject.recipe, subject.recipe.recipe.frequency_form
    cached, _, _ = stored_frequencies(subject)
    product, angle = recipe.angle
    worst, variance = np.zeros((2, len(position), cached.size))
    if form == "recurrence":
        angles, raw = np.empty_like(worst), position[:, 0]
        before, noise = np.zeros((2, len(position)))
        for i, step in enumerate(cached):
            current = round_to(raw, product).astype(np.float64)
            half = half_ulp(raw, product)
            if i == 0:
                half = np.where(current != raw, half, 0.0)
            wide = 0.0 if product is FP64 else 2.0**-53
            angles[:, i], worst[:, i] = current, before + half + wide * np.abs(raw)
            variance[:, i] = noise + half**2 / 3
            raw, before, noise = current * step, worst[:, i] * abs(step), variance[:, i] * step**2
        raw, low = dd.two_product(angles, weight := effect(subject.setting, recipe.frequency[1]))
        worst, variance, inexact = worst * np.abs(weight), variance * weight**2, low != 0
    elif form == "divide":
        raw = position / cached
        back, low = dd.two_product(raw, cached)
        inexact = (back != position) | (low != 0)
    else:
        raw, low = dd.two_product(position, cached)
        inexact = low != 0
    first = round_to(raw, product).astype(np.float64)
    half = np.where(inexact | (first != raw), half_ulp(raw, product), 0.0)
    worst = worst + half + (0.0 if product is FP64 else 2.0**-53) * np.abs(raw)
    second = round_to(first, angle).astype(np.float64)
    other = np.where(second != first, half_ulp(first, angle), 0.0)
    worst = np.where(np.isfinite(second), worst + other, np.inf)
    return worst, variance + (half**2 + other**2) / 3


def half_ulp(x: Array, fmt: Format) -> Array:
    """Return the largest error of rounding x to `fmt`; half the smallest subnormal at 0."""
    _, exponent = np.frexp(x)
    exponent = np.where(x == 0, fmt.emin, np.maximum(exponent - 1, fmt.emin))
    return np.asarray(np.ldexp(1.0, exponent - fmt.precision))


def last_exact_offset(fmt: Format, seq_len: int) -> int:
    """Return the last offset where `fmt` holds all positions; negative: none."""
    return fmt.first_inexact_integer - seq_len


def covers(subject: Emulated, seq_len: int, offset: int) -> bool:
    """Return whether `phase_up_to` holds for a subject and offset."""
    if subject.setting.clipped or subject.recipe.recipe.frequency_form == "recurrence":
        return False
    return 0 <= offset <= last_exact_offset(subject.recipe.position, seq_len)


def phase_up_to(subject: Emulated, steps: Positions, offset: int) -> Phase:
    """Return errors of the angles that none exceeds at any offset from 0 to `offset`.

    The known ones, of rounded frequencies, depend on distances alone; `worst` of a row grows with the offset.
    They hold where `covers` is true. Shapes: steps (s,) -> three of (s, p).
    """
    _, _, error = stored_frequencies(subject)
    place = steps.astype(np.float64)
    known = place[:, None] * error
    worst = _worst(subject, place + offset)
    if subject.axes is not None:
        worst = np.where(subject.axes.moved(), worst, _worst(subject, place))
    return Phase(known, worst + _SLACK * np.abs(known), np.zeros_like(known))


def _worst(subject: Emulated, position: Array) -> Array:
    """Return half an ulp of each inexact rounding of angles. Shapes: (s,) -> (s, p)."""
    recipe, form = subject.recipe, subject.recipe.recipe.frequency_form
    cached, _, _ = stored_frequencies(subject)
    product, angle = recipe.angle
    divided = form == "divide"
    raw = position[:, None] / cached if divided else position[:, None] * cached
    step = np.abs(1 / cached if divided else cached)
    first = round_to(raw, product).astype(np.float64)
    second = round_to(first, angle).astype(np.float64)
    worst = np.where(_exact(position, step, product), 0.0, half_ulp(raw, product))
    worst += (0.0 if product is FP64 else 2.0**-53) * np.abs(raw)
    if angle.precision < product.precision or angle.emin > product.emin:
        worst += np.where(_exact(position, step, angle), 0.0, half_ulp(first, angle))
    return np.where(np.isfinite(second), worst, np.inf)


def _exact(position: Array, step: Array, fmt: Format) -> Array:
    """Return whether `fmt` holds all multiples of step up to each position. (s,), (p,) -> (s, p)."""
    mantissa, _ = np.frexp(step)
    power = (mantissa == 0.5) & (step >= fmt.smallest_subnormal)
    return np.asarray(power & (position[:, None] <= 2.0**fmt.precision))


@dataclass(frozen=True, slots=True)
class PairError:
    """The rounding errors of a rotated pair, or of a dimension that is not rotated.

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
    # cos and sin: computed, multiplied by the attention factor, stored
    recipe, trig, table = subject.recipe, subject.recipe.trig, subject.recipe.table
    u, weight, bias = trig.unit_roundoff, 1.0, 0.0
    grown, table_small = (1 + u) * (1 + _COSINE), trig.smallest_subnormal / math.sqrt(2)
    noise = u * u
    factor = attention_factor(subject.setting.scaling)
    exact = exact_frequencies.attention_factor(subject.setting.scaling)
    if factor != 1.0 or exact != 1:
        weight, used = float(exact), float(round_to(np.array(factor), trig))
        bias = abs(float(Decimal(used) / exact - 1))
        grown, noise = grown * (1 + bias) * (1 + u), noise + u * u
        table_small *= 2 * used + 2
    if table is not None:
        v = table.unit_roundoff
        grown = grown * (1 + v)
        table_small = table_small * (1 + v) + table.smallest_subnormal / math.sqrt(2)
        noise += v * v if table.precision < trig.precision else 0.0
    # rotated by them and stored
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
    """The errors of scaling and storing: error -> grows * error + adds * |score| + small.

    |score| is the exact one, unscaled; the result is scaled. variance: mean square relative error.
    largest: the largest number that a score may be on its way, unscaled.
    """

    grows: float
    adds: float
    small: float
    variance: float
    largest: float


def score(subject: Emulated) -> ScoreError:
    """Return the errors that scaling and storing add to a score."""
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
    """The count of numbers of q and of k whose last bit is at each exponent (2, e).

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
        """Return the sum of all parts."""
        return cls(
            np.sum([part.counts for part in parts], axis=0), np.sum([part.numbers for part in parts], axis=0)
        )

    def share_below(self, exponent: int) -> float:
        """Return the share of products of q and k with a last bit below an exponent."""
        q, k = self.counts
        total, below = float(self.numbers.prod()), np.concatenate([[0.0], np.cumsum(k)])
        highest = np.clip(exponent - 2 * _LOWEST - np.arange(q.size), 0, q.size)
        return float(q @ below[highest]) / total if total else 0.0
