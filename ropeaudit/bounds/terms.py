"""What a recipe may do wrong, stage by stage: the terms from which `ropeaudit.bounds` is made.

Phases: the errors that are known (a rounded position, a rounded frequency) with their sign, computed; the
roundings of the angle as half an ulp, 0 where nothing was rounded. The rest: relative errors of a
rotated pair, and absolute ones of underflow, half the smallest subnormal number each.
Letters: s positions, p pairs. Source: numerics.md, section 4.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.frequencies import FrequencyForm, effect, frequencies
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

NOISE = 0.42**2  # mean square of a relative rounding error, in units of u squared
_COSINE = 2.0**-49  # of NumPy's float64 cos and sin, absolute: 4 ulp
_SLACK = 2.0**-50  # of a few float64 operations
_PARTS = ("known", "worst", "variance")

Frequencies = tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True)
class Phase:
    """Errors of the angles of one side, radians: known ones, the largest others, their variance. All (s, p).

    Only differences of `known` count: what is common to all positions is left out.
    """

    known: Array
    worst: Array
    variance: Array


@functools.lru_cache(maxsize=256)
def stored_frequencies(
    setting: RopeSetting, form: FrequencyForm, computed: Format, stored: Format
) -> Frequencies:
    """Return what is kept, the frequency that it stands for, and the error of that. Shapes: -> (p,)."""
    cached = round_to(frequencies(setting, form, computed), stored).astype(np.float64)
    after = [Decimal(x) for x in effect(setting, stored).tolist()] if form == "recurrence" else []
    meant, error = [], []
    with dd.precise():
        right = exact_frequencies.frequencies(setting)
        for i, (value, exact) in enumerate(zip(cached.tolist(), right, strict=True)):
            theta = Decimal(value)
            if form == "divide":
                theta = 1 / theta
            elif form == "recurrence":
                theta = (theta**i if i else Decimal(1)) * after[i]
            meant.append(float(theta))
            error.append(float(theta - exact))
    return cached, np.array(meant), np.array(error)


def thetas(subject: Emulated) -> Array:
    """Return the frequencies that the recipe's stand for, radians per token. Shapes: -> (p,)."""
    return stored_frequencies(
        subject.setting, subject.recipe.recipe.frequency_form, *subject.recipe.frequency
    )[1]


def rate(subject: Emulated) -> Array:
    """Return the errors of the frequencies, by which phase errors grow with distance. Shapes: -> (p,).

    0 where angles are clipped: there they do not grow evenly.
    """
    _, _, error = stored_frequencies(
        subject.setting, subject.recipe.recipe.frequency_form, *subject.recipe.frequency
    )
    return np.zeros_like(error) if subject.setting.clipped else error


def aliasing(subject: Emulated, seq_len: int, offset: int) -> Array:
    """Return by how much each shifted position is rounded. Shapes: -> (s,). Units: tokens."""
    exact = np.arange(seq_len, dtype=np.float64) + offset
    return round_to(exact, subject.recipe.position).astype(np.float64) - exact


def phase(subject: Emulated, steps: Positions, offset: int) -> Phase:
    """Return the errors of the angles at steps + offset; not finite where an angle is not."""
    shifted = _phase_at(subject, steps, offset, offset)
    if subject.axes is None or not offset:
        return shifted
    still, moved = _phase_at(subject, steps, 0, offset), subject.axes.moved()
    return Phase(*(np.where(moved, getattr(shifted, name), getattr(still, name)) for name in _PARTS))


def _phase_at(subject: Emulated, steps: Positions, shift: int, origin: int) -> Phase:
    """The errors at steps + shift; where angles are clipped the reference stands at steps + origin."""
    recipe, setting = subject.recipe, subject.setting
    _, theta, error = stored_frequencies(setting, recipe.recipe.frequency_form, *recipe.frequency)
    exact = (steps + shift).astype(np.float64)
    position = round_to(exact, recipe.position).astype(np.float64)
    reference = (steps + origin).astype(np.float64) if setting.clipped else exact
    span = reference if setting.clipped else steps.astype(np.float64)
    moved, rotated = (position - reference)[:, None] * theta, span[:, None] * error
    worst, variance = _roundings(subject, position)
    known = moved + rotated
    worst += _SLACK * (np.abs(moved) + np.abs(rotated))
    if setting.clipped:
        clip, right = setting.clip, reference[:, None] * (theta - error)
        inside = (np.abs(right) < clip) & (np.abs(right + known) < clip)
        capped = np.clip(right + known, -clip, clip) - np.clip(right, -clip, clip)
        known = np.where(inside, known, capped)
        variance = np.where(np.minimum(np.abs(right), np.abs(right + known)) - worst > clip, 0.0, variance)
        stored = float(recipe.angle[1].carrier.type(clip))
        worst += _SLACK * np.minimum(np.abs(right), clip) + abs(stored - clip)
    return Phase(known, worst, variance)


def _roundings(subject: Emulated, position: Array) -> tuple[Array, Array]:
    """Largest sum and variance of the roundings of the angles. Shapes: (s,) -> two of (s, p)."""
    recipe, form = subject.recipe, subject.recipe.recipe.frequency_form
    stored, _, _ = stored_frequencies(subject.setting, form, *recipe.frequency)
    product, angle = recipe.angle
    worst, variance = np.zeros((2, position.size, stored.size))
    if form == "recurrence":
        raw, worst, variance = _recurrence(position, stored, product)
        raw, low = dd.two_product(raw, weight := effect(subject.setting, recipe.frequency[1]))
        worst, variance, inexact = worst * np.abs(weight), variance * weight**2, low != 0
    elif form == "divide":
        raw = position[:, None] / stored
        back, low = dd.two_product(raw, stored)
        inexact = (back != position[:, None]) | (low != 0)
    else:
        raw, low = dd.two_product(position[:, None], stored)
        inexact = low != 0
    first = round_to(raw, product).astype(np.float64)
    half = np.where(inexact | (first != raw), half_ulp(raw, product), 0.0)
    worst = worst + half + (0.0 if product is FP64 else 2.0**-53) * np.abs(raw)
    second = round_to(first, angle).astype(np.float64)
    other = np.where(second != first, half_ulp(first, angle), 0.0)
    worst = np.where(np.isfinite(second), worst + other, np.inf)
    return worst, variance + (half**2 + other**2) / 3


def _recurrence(position: Array, step: Array, fmt: Format) -> tuple[Array, Array, Array]:
    """The angles of a recurrence, the largest errors and variances. Shapes: (s,), (p,) -> three of (s, p)."""
    result, worst, variance = np.empty((3, position.size, step.size))
    raw, before, noise = position, np.zeros(position.size), np.zeros(position.size)
    for i in range(step.size):
        current = round_to(raw, fmt).astype(np.float64)
        half = half_ulp(raw, fmt) if i else np.where(current != raw, half_ulp(raw, fmt), 0.0)
        wide = 0.0 if fmt is FP64 else 2.0**-53
        result[:, i], worst[:, i] = current, before + half + wide * np.abs(raw)
        variance[:, i] = noise + half**2 / 3
        raw, before, noise = current * step[i], worst[:, i] * abs(step[i]), variance[:, i] * step[i] ** 2
    return result, worst, variance


def half_ulp(x: Array, fmt: Format) -> Array:
    """Return the largest error of rounding x to `fmt`; half the smallest subnormal at 0."""
    _, exponent = np.frexp(x)
    exponent = np.where(x == 0, fmt.emin, np.maximum(exponent - 1, fmt.emin))
    return np.asarray(np.ldexp(1.0, exponent - fmt.precision))


@dataclass(frozen=True, slots=True)
class Pair:
    """A rotated pair, or a dimension that is not rotated: what its roundings add.

    worst: relative to its absolute value times `weight`, the attention factor. small: absolute, of
    underflow. variance: mean square relative error. bias: a relative error common to all.
    """

    weight: float
    worst: float
    small: float
    variance: float
    bias: float = 0.0


def rotated(subject: Emulated) -> Pair:
    """Return the errors of a rotated pair; (1 + sqrt 2) u of a rotation holds for operands of any width.

    Each product adds u times itself and the sum u times itself; products of |x| |cos| and |y| |sin| are
    sqrt 2 |x + iy| at most.
    """
    recipe, factor = subject.recipe, attention_factor(subject.setting.scaling)
    trig, rotation, output = recipe.trig, recipe.rotation, recipe.output
    weight, bias, u = 1.0, 0.0, trig.unit_roundoff
    grown, small = (1 + u) * (1 + _COSINE), trig.smallest_subnormal / math.sqrt(2)
    noise = u * u
    exact = exact_frequencies.attention_factor(subject.setting.scaling)
    if factor != 1.0 or exact != 1:
        weight, used = float(exact), float(round_to(np.array(factor), trig))
        bias = abs(float(Decimal(used) / exact - 1))
        grown, small, noise = grown * (1 + bias) * (1 + u), small * (2 * used + 2), noise + u * u
    if recipe.table is not None:
        v = recipe.table.unit_roundoff
        grown, small = grown * (1 + v), small * (1 + v) + recipe.table.smallest_subnormal / math.sqrt(2)
        noise += v * v if recipe.table.precision < trig.precision else 0.0
    r, each = rotation.unit_roundoff, recipe.recipe.rotation_rounding == "each"
    rotate, noise = (r * (math.sqrt(2) * (1 + r) + 1), noise + 2 * r * r) if each else (r, noise + r * r)
    low = rotation.smallest_subnormal * (1.5 if each else 0.5) * math.sqrt(2) * (1 + r)
    if output is not rotation:
        w = output.unit_roundoff
        rotate, low = (1 + rotate) * (1 + w) - 1, low * (1 + w) + output.smallest_subnormal / math.sqrt(2)
        noise += w * w if output.precision < rotation.precision else 0.0
    worst = grown * (1 + rotate) - 1 + small / weight * (1 + rotate)
    return Pair(weight, worst, low, NOISE * noise, bias)


def passed(subject: Emulated) -> Pair:
    """Return the errors of a dimension that is not rotated: it is rounded to the output's format."""
    output, given = subject.recipe.output, subject.input
    if output.precision >= given.precision and output.emin <= given.emin and output.emax >= given.emax:
        return Pair(1.0, 0.0, 0.0, 0.0)
    u = output.unit_roundoff
    return Pair(1.0, u, output.smallest_subnormal / 2, NOISE * u * u)


def later(subject: Emulated) -> float:
    """Return the mean square relative error of what follows the rotation: the sum and the stored score."""
    u, d = subject.accumulate.unit_roundoff, subject.setting.head_dim
    return NOISE * u * u * d / 2 + score(subject).variance


@dataclass(frozen=True, slots=True)
class Score:
    """From an accumulated score to the stored one: error -> grows * error + adds * |score| + small.

    |score| is the exact one, unscaled; the result is scaled. variance: mean square relative error.
    largest: the largest number that a score may be on its way, unscaled.
    """

    grows: float
    adds: float
    small: float
    variance: float
    largest: float


def score(subject: Emulated) -> Score:
    """Return what scaling and storing do to a score. A scale that is a power of two rounds nothing."""
    scale, fmt, first = subject.setting.scale, subject.score, subject.accumulate
    wide = FP64 if first is FP64 else FP32
    even, early = math.frexp(scale)[0] == 0.5, scale != 1.0 and subject.scale_after_store
    store, tiny = fmt.unit_roundoff, fmt.smallest_subnormal / 2
    steps: list[tuple[float, float, float]] = []  # factor, relative error, absolute error
    if early and fmt.precision < first.precision:
        steps.append((1.0, store, tiny))
    if scale != 1.0:
        steps.append((scale, 0.0 if wide is FP64 else abs(float(np.float32(scale)) / scale - 1), 0.0))
        steps.append((1.0, 0.0 if even else wide.unit_roundoff, wide.smallest_subnormal))
    current = first if scale == 1.0 else wide
    if fmt.precision < current.precision:
        steps.append((1.0, 0.0 if even and early and scale != 1.0 else store, tiny))
    grows, adds, small, size, squares = 1.0, 0.0, 0.0, 1.0, 0.0
    for factor, u, low in steps:
        size *= factor
        grows, adds, small = (x * factor * (1 + u) for x in (grows, adds, small))
        adds, small, squares = adds + u * size, small + low, squares + u * u
    stored = fmt.largest / (max(1.0, scale) if early else scale)
    top = min(first.largest, stored, wide.largest / max(1.0, scale))
    return Score(grows, adds, small, NOISE * squares, top)
