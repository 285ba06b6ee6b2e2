"""The exact frequencies: every scaling in 60-digit decimals, from its formula.

Independent of `ropeaudit.rope.scaled`, which imitates what code does: here nothing is rounded on the
way, and nothing is shared with it. The parameters are taken as exactly the float64 numbers that they are.
Letters: d rotary_dim, p = d/2 pairs.
Sources: linear: Chen et al., arXiv 2306.15595; dynamic: as in transformers; yarn: arXiv 2309.00071;
longrope: arXiv 2402.13753; llama3: Llama 3.1's reference code; proportional: arXiv 2410.06205.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from ropeaudit.arithmetic.doubledouble import PI, precise
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting

_ONE = Decimal(1)


def frequencies(setting: RopeSetting) -> list[Decimal]:
    """Return theta_i of every pair, radians per token, to `doubledouble.DIGITS` digits. Shapes: -> (p,)."""
    scaling, d = setting.scaling, setting.rotary_dim
    with precise():
        if setting.grid is not None:
            rope = setting.grid.rope
            logs = [Decimal(base).ln() for base in rope.base]
            factor = {"1": _ONE, "2pi": 2 * PI, "pi/2": PI / 2}[rope.factor]
            return [  # factor · base^(-numerator/denominator), radians per unit of a pair's axis
                factor * (-logs[axis] * numerator / denominator).exp() if denominator else Decimal(0)
                for axis, numerator, denominator in rope.pairs()
            ]
        if scaling.kind == "explicit":
            return [Decimal(value) for value in scaling.frequencies or ()]
        log_base = Decimal(setting.base).ln()
        if scaling.kind == "dynamic":  # it multiplies the base by a power of the length
            maximum, factor = Decimal(scaling.maximum or 1), Decimal(scaling.factor or 1)
            length = max(Decimal(setting.length), maximum)
            exponent = Decimal(d) / (d - 2)
            log_base += exponent * (factor * length / maximum - (factor - 1)).ln()
        thetas = [(-log_base * 2 * i / d).exp() for i in range(setting.pairs)]
        formula = FORMULAS[scaling.kind]
        return [+formula(theta, i, setting) for i, theta in enumerate(thetas)]


def attention_factor(scaling: Scaling) -> Decimal:
    """Return the factor on cos and sin, to `doubledouble.DIGITS` digits."""
    with precise():
        if scaling.attention_factor is not None:
            return Decimal(scaling.attention_factor)
        stretch = _stretch(scaling)
        if stretch <= 1:
            return _ONE
        if scaling.kind == "longrope":
            return (1 + stretch.ln() / Decimal(scaling.original or 2).ln()).sqrt()
        if scaling.kind == "yarn":
            if scaling.mscale and scaling.mscale_all_dim:
                return _mscale(stretch, scaling.mscale) / _mscale(stretch, scaling.mscale_all_dim)
            return _mscale(stretch, 1.0)
        return _ONE


def _mscale(stretch: Decimal, weight: float) -> Decimal:
    return 1 + Decimal(weight) * stretch.ln() / 10


def _stretch(scaling: Scaling) -> Decimal:
    if scaling.factor is not None:
        return Decimal(scaling.factor)
    if scaling.maximum is not None and scaling.original is not None:
        return Decimal(scaling.maximum) / Decimal(scaling.original)
    return _ONE


def _unchanged(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    return theta


def _linear(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    return theta / _stretch(setting.scaling)


def _proportional(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    # A count, not a number to be exact about: this floating-point formula is its definition.
    rotator = int((setting.scaling.fraction or 0.0) * setting.rotary_dim // 2)
    return theta / _stretch(setting.scaling) if pair < rotator else Decimal(0)


def _longrope(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    scaling = setting.scaling
    divisors = scaling.long if setting.length > (scaling.original or 0) else scaling.short
    return theta / Decimal((divisors or ())[pair])


def _yarn(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    scaling, d = setting.scaling, setting.rotary_dim
    two_log_base = 2 * Decimal(setting.base).ln()

    def border(rotations: float) -> Decimal:
        return d * (Decimal(scaling.original or 1) / (2 * PI * Decimal(rotations))).ln() / two_log_base

    low, high = border(scaling.beta_fast or 32), border(scaling.beta_slow or 1)
    if scaling.truncate is not False:
        low = low.to_integral_value(ROUND_FLOOR)
        high = high.to_integral_value(ROUND_CEILING)
    low, high = max(low, Decimal(0)), min(high, Decimal(d - 1))
    if low == high:
        high += Decimal("0.001")
    # 0 for pairs that rotate often enough to stay, 1 for interpolated ones
    weight = min(max((pair - low) / (high - low), Decimal(0)), _ONE)
    return weight * theta / _stretch(scaling) + (1 - weight) * theta


def _llama3(theta: Decimal, pair: int, setting: RopeSetting) -> Decimal:
    scaling = setting.scaling
    factor, original = Decimal(scaling.factor or 1), Decimal(scaling.original or 1)
    low, high = Decimal(scaling.low or 1), Decimal(scaling.high or 1)
    rotations = original * theta / (2 * PI)  # of this pair over the original length
    if rotations < low:
        return theta / factor
    if rotations > high or low >= high:
        return theta
    smooth = (rotations - low) / (high - low)
    return (1 - smooth) * theta / factor + smooth * theta


# kind -> scaling of a pair's frequency, radians per token; explicit ones are given
FORMULAS: dict[str, Callable[[Decimal, int, RopeSetting], Decimal]] = {
    "default": _unchanged,
    "linear": _linear,
    "dynamic": _unchanged,  # through the base
    "proportional": _proportional,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
