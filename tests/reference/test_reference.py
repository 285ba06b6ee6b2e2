"""The judge against 50-digit arithmetic."""

import numpy as np
import pytest

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference import exact_scores as reference
from ropeaudit.rope import scaling
from ropeaudit.rope.setting import RopeSetting


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
