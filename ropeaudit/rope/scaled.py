"""Scalings as code applies them: on frequencies in a number format, every operation rounded.

The operations and their order are those of the public implementations that introduced each scaling, as
collected in transformers 5.23.0, modeling_rope_utils.py (read). The parameters, the correction range
of YaRN and the attention factor are Python floats there, and so they are here.
Letters: d rotary_dim, p = d/2 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ropeaudit.arithmetic import elementary
from ropeaudit.arithmetic.formats import FloatArray as Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting


def effective_base(setting: RopeSetting) -> float:
    """Return the base, which dynamic scaling raises with the length.

    Source: "NTK-aware scaled RoPE" (bloc97, emozilla), as in transformers.
    """
    scaling = setting.scaling
    if scaling.kind != "dynamic" or scaling.factor is None or scaling.maximum is None:
        return setting.base
    length = max(setting.length, scaling.maximum)
    stretch = scaling.factor * length / scaling.maximum - (scaling.factor - 1)
    return setting.base * elementary.power(stretch, setting.rotary_dim / (setting.rotary_dim - 2))


def attention_factor(scaling: Scaling) -> float:
    """Return the number that multiplies cos and sin; scores grow by its square."""
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)
    stretch = scaling.stretch
    if scaling.kind == "yarn":
        if scaling.mscale and scaling.mscale_all_dim:
            return mscale(stretch, scaling.mscale) / mscale(stretch, scaling.mscale_all_dim)
        return mscale(stretch, 1.0)
    if scaling.kind == "longrope" and stretch > 1 and scaling.original is not None:
        return math.sqrt(1 + elementary.log(stretch) / elementary.log(scaling.original))
    return 1.0


def mscale(stretch: float, weight: float) -> float:
    """Return YaRN's temperature. Source: arXiv 2309.00071, section 3.4."""
    return 0.1 * weight * elementary.log(stretch) + 1.0 if stretch > 1 else 1.0


def scaled(theta: Array, setting: RopeSetting, fmt: Format) -> Array:
    """Return the frequencies after scaling, every operation on them rounded to `fmt`.

    Shapes: theta (p,), in radians per token, before scaling -> (p,).
    """

    def rounded(value: Array) -> Array:
        return round_to(np.asarray(value, dtype=np.float64), fmt).astype(np.float64)

    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return FORMULAS[setting.scaling.kind](theta, setting, rounded)


Round = Callable[[Array], Array]


def _unchanged(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    return theta


def _linear(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    return rounded(theta / rounded(np.array(setting.scaling.stretch)))


def rotator_pairs(setting: RopeSetting) -> int:
    """Return how many pairs are rotated at all: the fastest ones in p-RoPE, else all."""
    fraction = setting.scaling.fraction
    if setting.scaling.kind != "proportional" or fraction is None:
        return setting.pairs
    return int(fraction * setting.rotary_dim // 2)


def _proportional(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    rotated_theta = np.where(np.arange(setting.pairs) < rotator_pairs(setting), theta, 0.0)
    return _linear(rotated_theta, setting, rounded) if setting.scaling.factor else rotated_theta


def yarn_range(setting: RopeSetting) -> tuple[float, float]:
    """Return the ends of YaRN's ramp, in pairs. Source: arXiv 2309.00071, appendix A.2."""
    scaling, d = setting.scaling, setting.rotary_dim
    original = scaling.original or 1.0

    def pair_of(rotations: float) -> float:
        return d * elementary.log(original / (rotations * 2 * math.pi)) / (2 * elementary.log(setting.base))

    low, high = pair_of(scaling.beta_fast or 32), pair_of(scaling.beta_slow or 1)
    if scaling.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    return low, high + 0.001 if low == high else high


def _yarn(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    low, high = yarn_range(setting)
    ramp = rounded(rounded(np.arange(setting.pairs) - low) / rounded(np.array(high - low)))
    keep = rounded(1 - np.clip(ramp, 0.0, 1.0))
    shrunk = _linear(theta, setting, rounded)
    return rounded(rounded(shrunk * rounded(1 - keep)) + rounded(theta * keep))


def _longrope(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    scaling = setting.scaling  # whose long divisors count past the original number of positions
    divisors = scaling.long if setting.length > (scaling.original or 0) else scaling.short
    return rounded(1.0 / rounded(rounded(np.array(divisors or ())) * rounded(1.0 / theta)))


def _llama3(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    s = setting.scaling
    factor, low, high, original = s.factor or 1.0, s.low or 1.0, s.high or 1.0, s.original or 1.0
    wavelength = rounded(2 * math.pi / theta)
    slow, fast = wavelength > original / low, wavelength < original / high
    if high <= low:  # no band between: of equal ones the smooth part would divide by zero
        smooth = np.zeros_like(theta)
    else:
        smooth = rounded(rounded(rounded(original / wavelength) - low) / rounded(np.array(high - low)))
    shrunk = rounded(theta / factor)
    between = rounded(rounded(rounded(rounded(1 - smooth) * theta) / factor) + rounded(smooth * theta))
    return np.where(slow, shrunk, np.where(fast, theta, between))


def _explicit(theta: Array, setting: RopeSetting, rounded: Round) -> Array:
    return rounded(np.array(setting.scaling.frequencies, dtype=np.float64))


# kind -> frequencies before scaling (p,), radians per token, to those after
FORMULAS: dict[str, Callable[[Array, RopeSetting, Round], Array]] = {
    "default": _unchanged,
    "linear": _linear,
    "dynamic": _unchanged,  # through the base
    "proportional": _proportional,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "explicit": _explicit,
}
