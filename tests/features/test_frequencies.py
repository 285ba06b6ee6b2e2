"""Frequencies: where formats merge positions, and what recipes store."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from dumped_tables import BF16, FP16, FP32, PLAIN

from ropeaudit import RopeSetting, parse, recipes
from ropeaudit.arithmetic.formats import FORMATS, Format
from ropeaudit.features.list.frequencies import first_shared_angle, rows
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import scaling
from ropeaudit.rope.frequencies import FORMS

TINY = (Format("tiny", (), 3, -4, 5), Format("small", (), 4, -3, 3), parse("e4m3"), parse("e5m2"), BF16, FP16)


# --- positions that share an angle


def in_a_row(theta: Decimal, fmt: Format, limit: int) -> int | None:
    """The first shared angle by trying every position, rounding fractions."""

    def rounded(value: Fraction) -> Fraction | str:
        e = max(fmt.emin, value.numerator.bit_length() - value.denominator.bit_length() - 1)
        while Fraction(2) ** (e + 1) <= value:
            e += 1
        spacing = Fraction(2) ** (e - fmt.precision + 1)
        result = round(value / spacing) * spacing
        return "beyond" if result > fmt.largest else result

    before = rounded(Fraction(0))
    for position in range(limit):
        after = rounded(Fraction(theta) * (position + 1))
        if after == before:
            return position
        before = after
    return None


@pytest.mark.parametrize("fmt", TINY, ids=lambda fmt: fmt.name)
def test_the_first_shared_angle_is_the_one_that_trying_finds(fmt: Format) -> None:
    rng = np.random.default_rng(7)
    near_one = [1.0 + sign * 2.0**-k for k in (2, 5, 9, 14) for sign in (-1, 1)]
    powers = [2.0**k for k in (-30, -15, -9, -3, -1, 0, 2, 5)]
    sampled = [*rng.random(20), *(10.0 ** rng.uniform(-9, 3, 20)), *(rng.integers(1, 200, 10) / 16)]
    for theta in map(Decimal, map(float, [*near_one, *powers, *sampled])):
        result, tried = first_shared_angle(theta, fmt), in_a_row(theta, fmt, 600)
        assert result == tried or (tried is None and result >= 600), (theta, fmt.name, result, tried)


def test_in_float32_the_neighbours_of_the_first_shared_angle_agree_with_numpy() -> None:
    for theta in map(float, exact_frequencies.frequencies(PLAIN)[:40:7]):
        result = first_shared_angle(Decimal(theta), FP32)
        positions = np.arange(result - 200_000, result + 2, dtype=np.float64)
        angles = np.float32(positions * theta)  # exact products round twice only in the rarest of cases
        assert np.flatnonzero(np.diff(angles) == 0).tolist() == [200_000]


def test_positions_themselves() -> None:
    for fmt in FORMATS:
        assert first_shared_angle(Decimal(1), fmt) == 2**fmt.precision
    assert first_shared_angle(Decimal(0), FP32) == 0
    assert first_shared_angle(Decimal("1e-9"), FP16) == 0  # underflow: every angle is 0
    assert first_shared_angle(Decimal(65520), FP16) == 1  # halfway to the next number, and beyond the largest
    assert first_shared_angle(Decimal(464), parse("e4m3")) == 2  # halfway too, but to 448, which is even
    assert first_shared_angle(Decimal(60000), FP16) == 2  # 120000 and 180000 overflow; nothing else is shared


# --- rows


@pytest.mark.parametrize("form", FORMS)
def test_every_form_stands_for_the_frequency(form: str) -> None:
    recipe = recipes.named("hf").changed({"frequency_form": form, "frequency": "fp64"})
    yarn = scaling.parse("yarn:factor=40,original=4096,truncate=true")
    for setting in (RopeSetting.of(64), RopeSetting.of(64, base=1e4, scaling=yarn)):
        errors = [row[f"{recipe.name}_error"] for row in rows("x", setting, 4096, [FP32], [recipe])]
        assert max(map(abs, errors)) < 1e-13, form
