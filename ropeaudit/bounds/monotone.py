"""Errors of the angles that hold at all offsets up to one: what a bound needs to cover a range.

The errors at a single offset go up and down: a rounding is exact here and not there. Here every rounding of
an angle counts half an ulp at its size, unless it is exact at all smaller positions too; sizes grow with the
position, so these errors do. Only positions that their format holds exactly are spoken of: every integer up
to 2^precision.
Letters: s positions, p pairs.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import phases
from ropeaudit.bounds.phases import Phase
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

_SLACK = 2.0**-50  # of a few float64 operations


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
    _, _, error = phases.stored_frequencies(subject)
    place = steps.astype(np.float64)
    known = place[:, None] * error
    worst = _worst(subject, place + offset)
    if subject.axes is not None:
        worst = np.where(subject.axes.moved(), worst, _worst(subject, place))
    return Phase(known, worst + _SLACK * np.abs(known), np.zeros_like(known))


def _worst(subject: Emulated, position: Array) -> Array:
    """Return half an ulp of every rounding of the angles that is not always exact. Shapes: (s,) -> (s, p)."""
    recipe, form = subject.recipe, subject.recipe.recipe.frequency_form
    cached, _, _ = phases.stored_frequencies(subject)
    product, angle = recipe.angle
    divided = form == "divide"
    raw = position[:, None] / cached if divided else position[:, None] * cached
    step = np.abs(1 / cached if divided else cached)
    first = round_to(raw, product).astype(np.float64)
    second = round_to(first, angle).astype(np.float64)
    worst = np.where(_exact(position, step, product), 0.0, phases.half_ulp(raw, product))
    worst += (0.0 if product is FP64 else 2.0**-53) * np.abs(raw)
    if angle.precision < product.precision or angle.emin > product.emin:
        worst += np.where(_exact(position, step, angle), 0.0, phases.half_ulp(first, angle))
    return np.where(np.isfinite(second), worst, np.inf)


def _exact(position: Array, step: Array, fmt: Format) -> Array:
    """Return whether `fmt` holds position * step, there and at smaller positions. (s,), (p,) -> (s, p)."""
    mantissa, _ = np.frexp(step)
    power = (mantissa == 0.5) & (step >= fmt.smallest_subnormal)
    return np.asarray(power & (position[:, None] <= 2.0**fmt.precision))
