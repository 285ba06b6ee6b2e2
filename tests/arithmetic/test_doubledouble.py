"""Constants, words and the unit circle of the judge against mpmath."""

from __future__ import annotations

from decimal import Decimal

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from ropeaudit.arithmetic import doubledouble as dd

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100).filter(
    lambda x: x == 0 or abs(x) > 1e-100
)


def whole(pair) -> mpf:
    return mpmath.fsum(mpf(float(part)) for part in pair)


def test_pi_is_that_of_mpmath_to_all_its_digits() -> None:
    with mpmath.workdps(100):
        assert abs(mpf(str(dd.PI)) - mpmath.pi) < mpf(10) ** -80


@pytest.mark.parametrize(
    "digits", ["0.1", "3.14159265358979323846264338327950288419716939937510582097", "-1e-9"]
)
def test_words_hold_159_bits(digits: str) -> None:
    with mpmath.workdps(100):
        exact = mpf(digits)
        assert abs(whole(dd.words(Decimal(digits))) - exact) <= abs(exact) * mpf(2) ** -158


@settings(deadline=None)
@given(finite, finite)
def test_sums_and_products_are_without_error(a: float, b: float) -> None:
    with mpmath.workprec(3000):
        assert whole(dd.two_sum(a, b)) == mpf(a) + mpf(b)
        assert whole(dd.two_product(a, b)) == mpf(a) * mpf(b)


@settings(deadline=None)
@given(finite, finite, finite, finite)
def test_double_doubles_have_twice_the_digits(a: float, b: float, c: float, d: float) -> None:
    x, y = dd.two_sum(a, b * 2.0**-60), dd.two_sum(c, d * 2.0**-60)
    with mpmath.workprec(3000):
        left, right = whole(x), whole(y)
        assert abs(whole(dd.multiply(x, y)) - left * right) <= abs(left * right) * mpf(2) ** -101
        larger = max(abs(left), abs(right))
        assert abs(whole(dd.add(x, y)) - (left + right)) <= larger * mpf(2) ** -103
        assert abs(whole(dd.subtract(x, y)) - (left - right)) <= larger * mpf(2) ** -103


@pytest.mark.parametrize("largest", [1, 2**20, 2**40, 2**52])
def test_the_unit_circle_is_within_its_error(largest: int) -> None:
    """Positions up to 2^52, angles of every size, the table's points and halfway between among them."""
    dice = np.random.default_rng(largest)
    points = [Decimal(step) / 128 for step in (0, 1, 2, 63, 64, 127)]
    with dd.precise():
        rotations = [*map(Decimal, dice.random(6)), *points, Decimal(1) / 3, 1 / (2 * dd.PI)]
    x = np.concatenate([[0.0, 1.0, -1.0, largest - 1.0], dice.integers(-largest, largest, 40, endpoint=True)])
    split = np.array([dd.words(rotate) for rotate in rotations]).T
    cos, sin = dd.unit_circle(x[:, None], tuple(split))
    worst = mpf(0)
    with mpmath.workdps(80):
        for j, rotate in enumerate(rotations):
            exact = mpf(str(rotate))
            for i, value in enumerate(x):
                angle = 2 * mpmath.pi * mpf(value) * exact
                for pair, right in ((cos, mpmath.cos(angle)), (sin, mpmath.sin(angle))):
                    worst = max(worst, abs(whole((pair[0][i, j], pair[1][i, j])) - right))
    assert dd.CIRCLE_ERROR / 1000 < worst <= dd.CIRCLE_ERROR


@settings(deadline=None)
@given(finite, st.floats(-1, 1))
def test_rounding_to_odd_decides_later_ties(high: float, share: float) -> None:
    """high + low seen through float32 is what 200 bits seen through float32 are."""
    pair = dd.two_sum(high, high * 2.0**-54 * share)
    if not 1e-30 < abs(high) < 1e30:
        return
    once = np.float32(dd.to_odd((np.array([pair[0]]), np.array([pair[1]])))[0])
    with mpmath.workprec(200):
        exact = whole(pair)
        error = abs(mpf(float(once)) - exact)
        for neighbour in (np.nextafter(once, np.float32(np.inf)), np.nextafter(once, np.float32(-np.inf))):
            assert error <= abs(mpf(float(neighbour)) - exact)
