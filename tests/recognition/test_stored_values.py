"""What a tensor holds by its values, which base it shows, and what wrong values do to scores."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropeaudit import RopeSetting
from ropeaudit.recognition.stored_values import best_guess, drifts
from ropeaudit.rope import scaling
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files.rope_values import Dump


@pytest.mark.parametrize(("head_dim", "factor"), [(128, 1.0), (256, 1.0), (128, 1.5), (256, 1.5)])
def test_the_effect_of_a_table_is_that_on_random_scores(head_dim, factor) -> None:
    """Scores of Gaussian q and k, turned by hand in float64, within 64 tokens of a table of 64 rows."""
    rng, n, pairs = np.random.default_rng(5), 64, 64
    explicit = scaling.parse(f"yarn:factor=1,original=4096,attention_factor={factor}")
    setting = RopeSetting.of(head_dim, 128, scaling=explicit if factor != 1 else scaling.DEFAULT)
    angles = np.arange(n)[:, None] * 1e4 ** (-np.arange(pairs) / pairs)
    cos, sin = (factor * np.round(part(angles) * 16) / 16 for part in (np.cos, np.sin))
    near, far = drifts(Dump("x", "the cos/sin table", cos=cos, sin=sin), setting)
    q, k = (rng.standard_normal((200, n, pairs, 2)) @ [1, 1j] for _ in "qk")
    rest = rng.standard_normal((2, 200, n, head_dim - 128))

    def scores(table):
        rotated = np.einsum("bmp,bnp->bmn", q * table, np.conj(k * table)).real
        return (rotated + np.einsum("bmd,bnd->bmn", *rest))[:, *np.tril_indices(n)]

    exact = scores(factor * np.exp(1j * angles))
    drift = scores(cos + 1j * sin) - exact
    assert near == pytest.approx(np.sqrt(np.mean(drift**2) / np.mean(exact**2)), rel=0.03)
    assert far is None


def test_the_effect_of_frequencies_counts_every_distance_as_often_as_it_occurs() -> None:
    theta = 1e4 ** (-np.arange(16) / 16)
    wrong = theta * 1.01
    dump = Dump("x", "inv_freq", frequencies=wrong)
    near, far = drifts(dump, RopeSetting.of(32))
    for head_dim, factor in ((32, 2.0), (64, 2.0), (64, 1.0)):  # half of the scores, times factor² each
        yarn = scaling.parse(f"yarn:factor=1,original=4096,attention_factor={factor}")
        share = math.sqrt(factor**4 / (factor**4 + head_dim / 32 - 1))
        assert drifts(dump, RopeSetting.of(head_dim, 32, scaling=yarn))[0] == pytest.approx(near * share)
    distances = np.arange(256)[:, None] - np.arange(256)
    distances = distances[np.tril_indices(256)][:, None]
    expected = np.mean(np.abs(np.exp(1j * distances * wrong) - np.exp(1j * distances * theta)) ** 2)
    assert near == pytest.approx(np.sqrt(expected), rel=1e-9)
    at_far = np.mean(np.abs(np.exp(131072j * wrong) - np.exp(131072j * theta)) ** 2)
    assert far == pytest.approx(np.sqrt(at_far), rel=1e-6)
    one_row = Dump("x", "the cos/sin table", cos=np.ones((1, 16)), sin=np.zeros((1, 16)))
    assert drifts(one_row, RopeSetting.of(32)) == (None, None)


@pytest.mark.parametrize(("base", "pairs"), [(100.0, 96), (9999.0, 4), (123456.0, 16), (3.7e7, 96)])
def test_any_base_is_guessed(base, pairs) -> None:
    """From frequencies in float32, in one digit or in seven; and from a table in bfloat16."""
    theta = (base ** (-np.arange(pairs) / pairs)).astype(np.float32).astype(np.float64)
    dump = Dump("x", "inv_freq", frequencies=theta)
    found, _, setting = best_guess(dump, lambda base: RopeSetting.of(2 * pairs, base=base))
    assert (found.agrees, setting.pairs) == (True, pairs)
    assert setting.base == pytest.approx(base, rel=1e-5)
    noise = 0.004 * np.cos(np.arange(pairs) ** 2)
    noisy = Dump("x", "inv_freq", frequencies=theta * (1 + noise))
    assert best_guess(noisy, lambda base: RopeSetting.of(2 * pairs, base=base)) is None


@given(
    base=st.floats(2, 8).map(lambda exponent: 10**exponent),
    pairs=st.integers(4, 64),
    kind=st.sampled_from(["inv_freq", "periods", "angles", "cos", "sin", "both"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    twice=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_values_tell_what_a_tensor_holds(base, pairs, kind, dtype, twice) -> None:
    theta = base ** (-torch.arange(pairs).double() / pairs)
    if kind == "periods":
        assume(dtype != torch.float16 or base < 6e4)
    angles = torch.arange(200)[:, None] * theta
    one = {
        "inv_freq": theta,
        "periods": 1 / theta,
        "angles": angles,
        "cos": angles.cos(),
        "sin": angles.sin(),
        "both": torch.cat([angles.sin(), angles.cos()], -1),
    }[kind]
    one = torch.cat([one, one], -1) if twice and kind != "both" else one
    values = one.to(dtype).double().numpy()
    assert rope_values.kind_of(values) == kind
    assert rope_values.kind_of(values[:4] if values.ndim == 2 and kind != "angles" else values) == kind


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.5])
def test_frequencies_over_a_factor_are_frequencies_and_slopes_are_not(factor) -> None:
    theta = 1e4 ** (-np.arange(32) / 32)
    assert rope_values.kind_of(theta / factor) == "inv_freq"
    assert rope_values.kind_of(2.0 ** -np.arange(1.0, 9.0)) == ""  # those of ALiBi for eight heads
