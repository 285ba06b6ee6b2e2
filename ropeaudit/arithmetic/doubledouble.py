"""Arithmetic on unevaluated sums of float64 numbers, and cos/sin to about 75 bits.

A double-double is a pair (high, low) with |low| <= ulp(high)/2: about 106 bits. Constants are
split into three words (159 bits) from `decimal`, so that nothing here depends on the machine's
mathematical library or on extended hardware formats.
Sources: Dekker, Numer. Math. 18 (1971); Knuth, TAOCP 2, section 4.2.2; Hida, Li, Bailey,
"Library for double-double and quad-double arithmetic" (2007).
"""

from __future__ import annotations

import functools
from decimal import Context, Decimal, localcontext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[Array, Array]
Words: TypeAlias = tuple[Any, Any, Any]  # high, middle and low: floats, or arrays that broadcast

DIGITS = 60
# OEIS A000796; tests/arithmetic/test_doubledouble.py compares it with mpmath.
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")

# |computed - exact| of `unit_circle` for multipliers x with |x·w| up to 2^52 turns. The largest
# term is the float64 evaluation of y^4/24 - ... with y <= pi/64: y^4/24 <= 2^-22, a dozen roundings of
# 2^-53 each stay below 2^-71. Measured: tests/arithmetic/test_doubledouble.py.
CIRCLE_ERROR = 2.0**-71

_SPLIT = 134217729.0  # 2^27 + 1
_STEPS = 64  # points of the table on the circle
_CHUNK = 32768  # elements worked on at once: a dozen temporaries stay in cache


def precise() -> Any:
    """Return a context manager for `decimal` arithmetic with `DIGITS` digits and no traps."""
    return localcontext(Context(prec=DIGITS, Emin=-999999, Emax=999999))


def words(value: Decimal) -> tuple[float, float, float]:
    """Split a decimal into three float64 words, equal to 2^-159 relative."""
    with precise():
        high = float(value)
        middle = float(value - Decimal(high))
        low = float(value - Decimal(high) - Decimal(middle))
    return high, middle, low


def two_sum(a: Any, b: Any) -> Pair:
    """Return (s, e) with s = fl(a + b) and s + e = a + b exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Any, b: Any) -> Pair:
    """Return (p, e) with p = fl(a * b) and p + e = a * b exactly, barring over- and underflow."""
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def add(a: Pair, b: Pair) -> Pair:
    """Add two double-doubles; relative error about 2^-104 where signs agree."""
    s, e = two_sum(a[0], b[0])
    return two_sum(s, e + (a[1] + b[1]))


def subtract(a: Pair, b: Pair) -> Pair:
    """Subtract two double-doubles; the error is about 2^-104 of the larger one."""
    return add(a, (-b[0], -b[1]))


def multiply(a: Pair, b: Any) -> Pair:
    """Multiply a double-double by a float64 number or a double-double; error about 2^-103."""
    high, low = b if isinstance(b, tuple) else (b, None)
    p, e = two_product(a[0], high)
    e = e + a[1] * high
    if low is not None:
        e = e + a[0] * low
    return two_sum(p, e)


def to_odd(pair: Pair) -> Array:
    """Return high + low rounded to odd, so that rounding to under 52 bits is correct.

    An inexact value gets an odd last bit, on its side of `high`, so no later tie is false.
    Where the sum is not finite `high` is returned. Source: Boldo, Melquiond, IEEE Trans. Comp. 57 (2008).
    """
    high, low = pair
    bits = np.array(high, dtype=np.float64).view(np.int64)
    inexact = (low != 0) & np.isfinite(low) & np.isfinite(high) & (bits & 1 == 0)
    outward = np.signbit(low) == np.signbit(high)
    return np.where(inexact, np.where(outward, bits + 1, bits - 1), bits).view(np.float64)


def unit_circle(x: Array, w: Words) -> tuple[Pair, Pair]:
    """Return cos and sin of 2*pi*x*w as double-doubles, for exact x and a three-word w.

    x (s, 1) or (s, p) and the words of w, scalars or (p,), broadcast to (s, p). x*w is in turns,
    so that reducing it is exact: whole turns are dropped, whatever their number.
    Each of the four results is within `CIRCLE_ERROR` of the exact cosine or sine.
    """
    shape = np.broadcast_shapes(x.shape, np.shape(w[0]))
    out = np.empty((4, *shape))
    rows = max(1, _CHUNK // max(1, shape[-1]))
    for start in range(0, shape[0], rows):
        block = slice(start, start + rows)
        step, rotate = _reduce(x[block], w)
        sin, cos = _small_sin_cos(multiply(rotate, _two_pi_and_sixth()[0]))
        table = _circle_table()[:, step % _STEPS]
        at_cos, at_sin = (table[0], table[1]), (table[2], table[3])
        out[0, block], out[1, block] = subtract(multiply(at_cos, cos), multiply(at_sin, sin))
        out[2, block], out[3, block] = add(multiply(at_sin, cos), multiply(at_cos, sin))
    return (out[0], out[1]), (out[2], out[3])


def _reduce(x: Array, w: Words) -> tuple[NDArray[np.int64], Pair]:
    """Split x*w, less whole turns, into the nearest step/_STEPS and a rest <= half a step."""
    p, p_error = two_product(x, w[0])
    m, m_error = two_product(x, w[1])
    fraction = p - np.rint(p)
    rest, rest_error = two_sum(p_error, m)
    rest = rest - np.rint(rest)
    fraction, carry = two_sum(fraction, rest)
    fraction = fraction - np.rint(fraction)
    step = np.rint(fraction * _STEPS)
    low = carry + (rest_error + (m_error + x * w[2]))
    return step.astype(np.int64), two_sum(fraction - step / _STEPS, low)


def _small_sin_cos(y: Pair) -> tuple[Pair, Pair]:
    """Return sin and cos by Taylor, |y| <= pi/_STEPS; terms past the second in float64."""
    square = multiply(y, y)
    cube = multiply(square, y)
    z = square[0]
    tail = 1 / 120 - z * (1 / 5040 - z * (1 / 362880 - z * (1 / 39916800 - z / 6227020800)))
    third = multiply(cube, _two_pi_and_sixth()[1])
    s, e = two_sum(y[0], third[0])
    sin = two_sum(s, e + (y[1] + third[1] + cube[0] * z * tail))
    tail = 1 / 24 - z * (1 / 720 - z * (1 / 40320 - z * (1 / 3628800 - z / 479001600)))
    c, e = two_sum(1.0, -0.5 * z)
    cos = two_sum(c, e + (z * z * tail - 0.5 * square[1]))
    return sin, cos


@functools.cache
def _two_pi_and_sixth() -> tuple[Pair, Pair]:
    """Return 2 pi and -1/6."""
    with precise():
        pairs = (words(2 * PI)[:2], words(Decimal(-1) / 6)[:2])
    two_pi, minus_sixth = ((np.float64(high), np.float64(low)) for high, low in pairs)
    return two_pi, minus_sixth  # type: ignore[return-value]


@functools.cache
def _circle_table() -> Array:
    """Return the _STEPS points of the circle, rows (cos, cos low, sin, sin low)."""
    table = np.empty((4, _STEPS))
    with precise():
        angle, parts, term, n = 2 * PI / _STEPS, [Decimal(0), Decimal(0)], Decimal(1), 0
        while abs(term) > Decimal(10) ** -(DIGITS + 2):  # the Taylor series
            parts[n % 2] += term if n % 4 < 2 else -term
            n += 1
            term = term * angle / n
        cos, sin = parts
        c, s = Decimal(1), Decimal(0)
        for step in range(_STEPS):
            table[:, step] = *words(c)[:2], *words(s)[:2]
            c, s = c * cos - s * sin, s * cos + c * sin
    return table
