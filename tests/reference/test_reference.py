"""The judge against 50-digit arithmetic."""

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference import exact_scores as reference
from ropeaudit.rope import scaling
from ropeaudit.rope.setting import RopeSetting

DIGITS = 50


def exact_angles(distances: np.ndarray, setting: RopeSetting) -> list[list[mpf]]:
    with mp.workdps(DIGITS):
        base = mpf(setting.base)
        thetas = [mpmath.power(base, -mpf(2 * i) / setting.rotary_dim) for i in range(setting.pairs)]
        return [[int(distance) * theta for theta in thetas] for distance in distances]


def worst_table_error(distances: np.ndarray, setting: RopeSetting) -> float:
    (cos, cos_low), (sin, sin_low) = reference.distance_table(distances.astype(np.float64), setting)
    worst = mpf(0)
    with mp.workdps(DIGITS):
        for row, angles in enumerate(exact_angles(distances, setting)):
            for pair, angle in enumerate(angles):
                c, s = mpmath.cos_sin(angle)
                worst = max(
                    worst,
                    abs(mpf(cos[row, pair]) + mpf(cos_low[row, pair]) - c),
                    abs(mpf(sin[row, pair]) + mpf(sin_low[row, pair]) - s),
                )
    return float(worst)


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6 + 0.5])
def test_table_to_distance_2_to_the_24(base: float) -> None:
    rng = np.random.default_rng(0)
    distances = np.concatenate([rng.integers(-(2**24), 2**24, 38), [2**24, 0]])
    assert worst_table_error(distances, RopeSetting.of(128, base=base)) < dd.CIRCLE_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_table_on_a_hundred_thousand_pairs(base: float) -> None:
    rng = np.random.default_rng(1)
    distances = np.unique(np.concatenate([np.arange(200), rng.integers(0, 2**24, 700), [2**24]]))
    setting = RopeSetting.of(256, base=base)
    assert distances.size * setting.pairs > 100_000
    assert worst_table_error(distances, setting) < dd.CIRCLE_ERROR


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
def test_a_scaling_is_as_long_as_its_two_lengths_say_where_no_factor_is_given(kind) -> None:
    values = {"original": 4096, "maximum": 16384}
    values |= {"short": [1.0] * 4, "long": [2.0] * 4} if kind == "longrope" else {}
    ours, theirs = (
        RopeSetting.of(8, scaling=scaling.from_mapping(kind, values | more), length=16384)
        for more in ({}, {"factor": 4.0})
    )
    factor = exact_frequencies.attention_factor(ours.scaling)
    assert factor == exact_frequencies.attention_factor(theirs.scaling) > 1
    assert exact_frequencies.frequencies(ours) == exact_frequencies.frequencies(theirs)


@pytest.mark.parametrize("precision", ["double", "extended"])
def test_the_certificate_is_of_the_size_of_the_vectors(precision) -> None:
    setting, rng = RopeSetting.of(32), np.random.default_rng(3)
    table, (q, k) = reference.distance_table(np.arange(4.0), setting), rng.standard_normal((2, 4, 32))

    def bound(size: float) -> float:
        left = reference.rotated(size * q, table, setting, precision)
        return reference.certificate(left, reference.rotated(k, table, setting, precision))

    size = float(np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max())
    if precision == "double":  # Higham's gamma of 32 + 12 operations
        assert bound(1.0) / size - 3 * dd.CIRCLE_ERROR == pytest.approx(44 / (2**53 - 44), rel=4e-15, abs=0)
    assert bound(2.0**-60) == 2.0**-60 * bound(1.0)
    assert bound(2.0**60) == 2.0**60 * bound(1.0)
