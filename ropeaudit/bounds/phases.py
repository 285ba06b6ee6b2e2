"""Errors of the angles of a recipe, the first of the terms from which `ropeaudit.bounds` is made.

The errors that are known (a rounded position, a rounded frequency) count with their sign, computed; the
roundings of the angle as half an ulp, 0 where nothing was rounded.
Letters: s positions, p pairs. Source: numerics.md, section 4.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.frequencies import FrequencyForm, effect, frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.rope.grids import Grid

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


def thetas(subject: Emulated) -> Array:
    """Return the frequencies that the recipe's stand for, radians per token. Shapes: -> (p,)."""
    return stored_frequencies(subject)[1]


def rate(subject: Emulated) -> Array:
    """Return the errors of the frequencies, by which phase errors grow with distance. Shapes: -> (p,).

    0 where angles are clipped, for there they do not grow evenly, and on a grid, where there are several
    distances: then the errors of the angles hold all of it.
    """
    _, _, error = stored_frequencies(subject)
    uneven = subject.setting.clipped or subject.setting.grid is not None
    return np.zeros_like(error) if uneven else error


def aliasing(subject: Emulated, seq_len: int, offset: int) -> Array:
    """Return by how much each shifted position is rounded, on a grid for each pair. -> (s,) or (s, p)."""
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
    shifted = _phase_at(subject, steps, offset, offset)
    if subject.axes is None or not offset:
        return shifted
    unshifted, moved = _phase_at(subject, steps, 0, offset), subject.axes.moved()
    return Phase(*(np.where(moved, getattr(shifted, name), getattr(unshifted, name)) for name in _PARTS))


def _moved_by_rounding(subject: Emulated, grid: Grid, steps: Positions, offset: int) -> Array:
    """Return by how much the position stage moves tokens of a grid. Shapes: (s,) -> (s, a)."""
    high, low = dd.two_sum(grid.positions(steps), grid.shift(offset))
    return np.asarray((subject.on_grid(steps, offset) - high) - low)


def _phase_at(subject: Emulated, steps: Positions, shift: int, origin: int) -> Phase:
    """Return the errors at steps + shift; where angles are clipped the reference stands at steps + origin."""
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
        raw, worst, variance = _recurrence(position[:, 0], cached, product)
        raw, low = dd.two_product(raw, weight := effect(subject.setting, recipe.frequency[1]))
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


def _recurrence(position: Array, step: Array, fmt: Format) -> tuple[Array, Array, Array]:
    """Return a recurrence's angles, largest errors and variances. Shapes: (s,), (p,) -> three of (s, p)."""
    angles, worst, variance = np.empty((3, position.size, step.size))
    raw, before, noise = position, np.zeros(position.size), np.zeros(position.size)
    for i in range(step.size):
        current = round_to(raw, fmt).astype(np.float64)
        half = half_ulp(raw, fmt) if i else np.where(current != raw, half_ulp(raw, fmt), 0.0)
        wide = 0.0 if fmt is FP64 else 2.0**-53
        angles[:, i], worst[:, i] = current, before + half + wide * np.abs(raw)
        variance[:, i] = noise + half**2 / 3
        raw, before, noise = current * step[i], worst[:, i] * abs(step[i]), variance[:, i] * step[i] ** 2
    return angles, worst, variance


def half_ulp(x: Array, fmt: Format) -> Array:
    """Return the largest error of rounding x to `fmt`; half the smallest subnormal at 0."""
    _, exponent = np.frexp(x)
    exponent = np.where(x == 0, fmt.emin, np.maximum(exponent - 1, fmt.emin))
    return np.asarray(np.ldexp(1.0, exponent - fmt.precision))


def last_exact_offset(fmt: Format, seq_len: int) -> int:
    """Return the largest offset up to which all positions are integers that `fmt` holds; negative: none."""
    return fmt.first_inexact_integer - seq_len


def covers(subject: Emulated, seq_len: int, offset: int) -> bool:
    """Return whether such errors are known: not with clipped angles, a recurrence, rounded positions."""
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
    """Return half an ulp of every rounding of the angles that is not always exact. Shapes: (s,) -> (s, p)."""
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
    """Return whether `fmt` holds position * step, there and at smaller positions. (s,), (p,) -> (s, p)."""
    mantissa, _ = np.frexp(step)
    power = (mantissa == 0.5) & (step >= fmt.smallest_subnormal)
    return np.asarray(power & (position[:, None] <= 2.0**fmt.precision))
