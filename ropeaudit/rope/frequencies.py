"""Frequencies as code computes them: in seven forms, every operation rounded.

Mathematically all forms give base^(-2i/d) radians per token; in finite precision they do not.
Where positions have several axes, those of each axis are.
Exact values come from `ropeaudit.reference`, which shares nothing with this file.
Letters: d rotary_dim, p = d/2 pairs, i = 0 ... p-1, x_i = 2i/d.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias, get_args

import numpy as np

from ropeaudit.arithmetic import elementary
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.rope import scaled
from ropeaudit.rope.axial import FACTORS, AxialRope
from ropeaudit.rope.setting import RopeSetting

FrequencyForm: TypeAlias = Literal[
    "inverse_power",  # 1 / base^x
    "power",  # base^-x
    "divide",  # base^x; the position is divided by it
    "step_power",  # (base^(-2/d))^i
    "recurrence",  # base^(-2/d); the angle is multiplied by it from pair to pair (ggml)
    "exp",  # exp(-i * (ln base / p))
    "exp2",  # 2^(-x * log2 base)
]
FORMS: tuple[str, ...] = get_args(FrequencyForm)


def check_form(name: str) -> None:
    """Raise UnknownName unless `name` is a frequency form."""
    if name not in FORMS:
        raise UnknownName("frequency_form", name, FORMS)


@functools.lru_cache(maxsize=256)
def frequencies(setting: RopeSetting, form: FrequencyForm, fmt: Format) -> FloatArray:
    """Return the numbers that code of a form stores for a setting, every operation rounded to `fmt`.

    Inverse frequencies are scaled by `rope.scaled`. Other stored numbers are multiplied by the effect of the
    scaling, scaled / unscaled, rounded to `fmt`.
    Shapes: -> (p,), see `unscaled`; for "recurrence" the starting ratio of the angles is in `effect`.
    """
    if setting.grid is not None:
        return _of_axes(setting.grid.rope, form, fmt)
    plain = unscaled(scaled.effective_base(setting), setting.rotary_dim, form, fmt)
    if not setting.scaling.rules.rescales or form == "recurrence":
        return plain
    if form == "divide":
        with np.errstate(divide="ignore"):
            return round_to(plain.astype(np.float64) / effect(setting, fmt), fmt)
    return round_to(scaled.scaled(plain.astype(np.float64), setting, fmt), fmt)


@functools.lru_cache(maxsize=256)
def effect(setting: RopeSetting, fmt: Format) -> FloatArray:
    """Return scaled / unscaled frequency, rounded to `fmt`. Shapes: -> (p,)."""
    plain = unscaled(scaled.effective_base(setting), setting.rotary_dim, "inverse_power", FP64)
    return round_to(scaled.scaled(plain, setting, FP64) / plain, fmt).astype(np.float64)


def unscaled(base: float, rotary_dim: int, form: FrequencyForm, fmt: Format) -> FloatArray:
    """Return the numbers that a form stores for base^(-2i/d), every operation rounded to `fmt`.

    Powers, exponentials and logarithms are correctly rounded; a mathematical library may be an
    ulp off. base is a Python number in real code and is taken as exact.

    Shapes: -> (p,): inverse frequencies in radians per token; for "divide" their inverses, in
    tokens per radian; for "recurrence" p times the same ratio.
    Source: the forms are those of the implementations cited in data/recipes.toml.
    """
    check_form(form)
    pairs = rotary_dim // 2
    if pairs == 0:
        return np.zeros(0, fmt.carrier)
    i = np.arange(pairs, dtype=np.float64)
    x = round_to(2.0 * i / rotary_dim, fmt)
    if form in ("inverse_power", "divide"):
        powers = _rounded([elementary.power(base, e) for e in x.tolist()], fmt)
        with np.errstate(divide="ignore", over="ignore"):
            return powers if form == "divide" else round_to(1.0 / powers.astype(np.float64), fmt)
    if form == "power":
        return _rounded([elementary.power(base, -e) for e in x.tolist()], fmt)
    if form == "exp":
        slope = _rounded([elementary.log(base)], fmt).astype(np.float64) / pairs
        exponents = round_to(i * round_to(slope, fmt).astype(np.float64), fmt)
        return _rounded([elementary.exp(-e) for e in exponents.tolist()], fmt)
    if form == "exp2":
        slope = _rounded([elementary.log_to_base(base, 2.0)], fmt).astype(np.float64)
        exponents = round_to(x.astype(np.float64) * slope, fmt)
        return _rounded([elementary.power(2.0, -e) for e in exponents.tolist()], fmt)
    exponent = round_to(np.array(-2.0 / rotary_dim), fmt)
    step = _rounded([elementary.power(base, float(exponent))], fmt)
    if form == "recurrence":
        return np.repeat(step, pairs)
    return _rounded([elementary.power(float(step[0]), n) for n in range(pairs)], fmt)


def _rounded(values: list[float], fmt: Format) -> FloatArray:
    return round_to(np.array(values, dtype=FP64.carrier), fmt)


def _of_axes(rope: AxialRope, form: FrequencyForm, fmt: Format) -> FloatArray:
    """Return the numbers that a form stores for pairs on several axes, every operation rounded.

    The arrangement "linspace", base^0 to base^1, has its own formula in any form. A pair that does
    not rotate has 0. Shapes: -> (p,). Raises: UsageError for a form that goes from pair to pair.
    """
    if form == "recurrence" or (form == "step_power" and rope.arrangement == "linspace"):
        raise UsageError(f"frequency_form {form} goes from pair to pair, and {rope.name} has several axes")
    kept, ladders = np.zeros(len(rope.pairs())), dict[tuple[float, int], FloatArray]()
    for place, (axis, numerator, denominator) in enumerate(rope.pairs()):
        if not denominator:
            continue
        base, rising = rope.base[axis], numerator < 0 or rope.arrangement == "linspace"
        if (base, denominator) not in ladders:
            if rising:  # base^x for even x from 0 to 1
                x = round_to(np.arange(denominator + 1) / np.float64(max(1, denominator)), fmt)
                ladder = _rounded([elementary.power(base, exponent) for exponent in x.tolist()], fmt)
            else:
                ladder = unscaled(base, denominator, form, fmt)
            ladders[base, denominator] = ladder.astype(np.float64)
        kept[place] = ladders[base, denominator][-numerator if rising else numerator // 2]
    divided = form == "divide" and rope.arrangement != "linspace"
    factor = 1 / FACTORS[rope.factor] if divided else FACTORS[rope.factor]
    numbers = round_to(kept * factor, fmt) if factor != 1.0 else kept.astype(fmt.carrier)
    with np.errstate(divide="ignore"):
        return round_to(1 / numbers.astype(np.float64), fmt) if form == "divide" and not divided else numbers
