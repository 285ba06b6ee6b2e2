"""Frequencies of several position axes as code computes them: those of each axis, rounded as they go.

The exact ones are the business of `ropeaudit.reference.exact_frequencies`. Letters: p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UsageError
from ropeaudit.rope.axial import AxialRope

_FACTORS = {"1": 1.0, "2pi": 2 * math.pi, "pi/2": math.pi / 2}  # Python floats in real code


def frequencies(
    rope: AxialRope, form: str, fmt: Format, of_axis: Callable[[float, int], FloatArray]
) -> FloatArray:
    """Return the numbers that `form` keeps of every pair, every operation rounded once to `fmt`.

    of_axis: those of base^(-2i/d), from base and d, as an axis alone has them. Where a preset says
    base^0 to base^1 its own formula holds, whatever the form. A pair that stands still keeps 0.
    Shapes: -> (p,). Raises: UsageError for a form that goes from pair to pair.
    """
    if form == "recurrence" or (form == "step_power" and rope.arrangement == "linspace"):
        raise UsageError(f"frequency_form {form} goes from pair to pair, and {rope.name} has several axes")
    kept, ladders = np.zeros(len(rope.pairs())), dict[tuple[float, int], FloatArray]()
    for place, (axis, numerator, denominator) in enumerate(rope.pairs()):
        base, rising = rope.base[axis], numerator < 0 or rope.arrangement == "linspace"
        if denominator and (base, denominator) not in ladders:
            ladder = _rising(base, denominator + 1, fmt) if rising else of_axis(base, denominator)
            ladders[base, denominator] = ladder.astype(np.float64)
        if denominator:
            kept[place] = ladders[base, denominator][-numerator if rising else numerator // 2]
    divided = form == "divide" and rope.arrangement != "linspace"
    factor = 1 / _FACTORS[rope.factor] if divided else _FACTORS[rope.factor]
    scaled = round_to(kept * factor, fmt) if factor != 1.0 else kept.astype(fmt.carrier)
    with np.errstate(divide="ignore"):
        return round_to(1 / scaled.astype(np.float64), fmt) if form == "divide" and not divided else scaled


def _rising(base: float, count: int, fmt: Format) -> FloatArray:
    """Return base^x for `count` even x from 0 to 1, every operation rounded to `fmt`. Shapes: -> (count,)."""
    exponents = round_to(np.arange(count) / np.float64(max(1, count - 1)), fmt).astype(np.float64)
    with localcontext(Context(prec=40, Emin=-99999, Emax=99999)):
        log = Decimal(base).ln()
        return round_to(np.array([float((log * Decimal(x)).exp()) for x in exponents.tolist()]), fmt)
