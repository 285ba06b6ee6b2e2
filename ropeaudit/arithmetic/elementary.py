"""cos, sin, logarithms and powers of which every machine gets the same bits.

Libraries differ by an ulp in some values. A logarithm or a power is rounded from 40 digits. cos and sin of
arrays are the library's, rounded to a narrower format: the same for every library within `_ULPS`, unless a
midpoint lies between. Those few are computed in double-double, as all are in float64.
"""

from __future__ import annotations

import functools
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_own

_ULPS = 8  # twice the loosest vector library's for cos and sin in float64; C library: below 1
_TINY = 2.0**-26  # sin x is x - x³/6 to a relative 2^-110 below it
_BLOCK = 8192  # values looked at together: they stay in a core's first cache


def log(value: float) -> float:
    """Return the natural logarithm of a positive number, correctly rounded to float64."""
    with _precise():
        return float(Decimal(value).ln())


def log_to_base(value: float, base: float) -> float:
    """Return the logarithm of `value` to `base`, correctly rounded to float64."""
    with _precise():
        return float(Decimal(value).ln() / Decimal(base).ln())


@functools.lru_cache(maxsize=4096)
def power(base: float, exponent: float) -> float:
    """Return base^exponent, correctly rounded to float64; for base <= 0: 0, or 1 for exponent 0."""
    if base <= 0.0:  # a step that underflowed
        return 1.0 if exponent == 0 else 0.0
    with _precise():
        return float((Decimal(base).ln() * Decimal(exponent)).exp())


@functools.lru_cache(maxsize=4096)
def exp(exponent: float) -> float:
    """Return e^exponent, correctly rounded to float64."""
    with _precise():
        return float(Decimal(exponent).exp())


def _precise() -> Any:
    return localcontext(Context(prec=40, Emin=-99999, Emax=99999))


def cos_sin(angles: FloatArray, fmt: Format, twice: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return cos and sin rounded once to `fmt`; of an infinite angle they are nan.

    Correctly rounded, but where the exact value is within `dd.CIRCLE_ERROR` of a midpoint. twice: they are
    rounded to float64 first.
    Shapes: angles (s, p), float32 or float64 -> two of (s, p), in `fmt.carrier`. Units: radians.
    """
    wide = np.ascontiguousarray(angles, dtype=np.float64)
    if fmt is FP64:
        (cos, _), (sin, _) = dd.unit_circle(wide, _rotations_per_radian())
        return cos, sin
    values = np.cos(wide), np.sin(wide)
    for which, value in enumerate(values):
        flat = value.reshape(-1)
        where = _near_midpoint(flat, fmt)
        if where.size:
            few = wide.reshape(-1)[where]
            high, low = (part[:, 0] for part in dd.unit_circle(few[:, None], _rotations_per_radian())[which])
            if which == 1 and not twice:
                tiny = np.abs(few) < _TINY
                high, low = np.where(tiny, few, high), np.where(tiny, few**3 / -6, low)
            flat[where] = high if twice else dd.to_odd((high, low))
    return round_own(values[0], fmt), round_own(values[1], fmt)


def _near_midpoint(values: NDArray[np.float64], fmt: Format) -> NDArray[np.intp]:
    """Return where a value lies within `_ULPS` of a midpoint of `fmt`.

    Shapes: values (n,), at most 1 in size -> (m,), indices.
    """
    drop = FP64.precision - fmt.precision
    low_bits, window = (1 << drop) - 1, 2 * _ULPS
    from_window = _ULPS - (1 << (drop - 1))  # takes the window around a midpoint to 0 ... window
    found = []
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        rest = block.view(np.int64) + from_window
        rest &= low_bits
        if rest.min() <= window:
            found.append(start + np.flatnonzero(rest <= window))
        if block.size and np.abs(block).min() < fmt.smallest_normal:  # midpoints there are on a grid
            steps = block * (2.0 / fmt.smallest_subnormal)
            near = np.abs(steps - np.rint(steps)) <= np.abs(steps) * (_ULPS * 2.0**-52)
            found.append(start + np.flatnonzero(near & (np.abs(block) < fmt.smallest_normal) & (block != 0)))
    return np.concatenate(found) if found else np.zeros(0, np.intp)


@functools.cache
def _rotations_per_radian() -> dd.Words:
    with dd.precise():
        return dd.words(1 / (2 * dd.PI))
