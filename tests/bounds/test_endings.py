"""Where products of q and k end, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit.bounds.terms import Endings

NUMBERS = st.lists(st.floats(-(2.0**40), 2.0**40, allow_subnormal=False), min_size=1, max_size=6)


@given(NUMBERS, NUMBERS, st.integers(-200, 60))
def test_the_share_is_that_of_all_products(q, k, exponent) -> None:
    endings = Endings()
    for side, x in enumerate((q, k)):
        endings.add(side, np.array(x))
    scaled = [Fraction(a) * Fraction(b) / Fraction(2) ** exponent for a in q for b in k]
    want = sum(x.denominator > 1 for x in scaled) / len(scaled)
    assert endings.share_below(exponent) == pytest.approx(want, abs=1e-12)


def test_parts_add_up_and_what_is_not_finite_has_no_last_bit() -> None:
    parts = [Endings(), Endings()]
    for part, x in zip(parts, (3.0, 0.5), strict=True):
        part.add(0, np.array([x, math.inf]))
        part.add(1, np.array([1.0, math.nan]))
    assert Endings.joined(parts).share_below(0) == pytest.approx(2 / 16)  # 0.5 times 1.0, twice
    assert Endings().share_below(0) == 0.0
