"""Heads that look at one distance: what they attend to exactly, after rounding, and past a collapse."""

import numpy as np
import pytest

from ropeaudit import RopeSetting, shift
from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs import qk
from ropeaudit.reference import exact_scores
from ropeaudit.rope import scaling

SETTINGS = [
    RopeSetting.of(),
    RopeSetting.of(64, 32, 5e5, "interleaved"),
    RopeSetting.of(16, scale=1.0),
    RopeSetting.of(128, scaling=scaling.parse("yarn:factor=4,original=32768")),
]


def exact_weights(some: qk.Inputs, setting: RopeSetting) -> np.ndarray:
    """The softmax of one head's exact scores, causal. Shapes: -> (s, s)."""
    size = some.q.shape[1]
    table = exact_scores.distance_table(np.arange(size, dtype=np.float64), setting)
    q, k = (exact_scores.rotated(x[0], table, setting, "double", 1.0).whole for x in (some.q, some.k))
    scores = np.where(np.tril(np.ones((size, size))), q @ k.T * setting.scale, -np.inf)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.head_dim}-{s.rotary_dim}-{s.scaling}")
@pytest.mark.parametrize("kind", ["diagonal", "previous"])
def test_most_of_the_exact_weight_is_on_the_right_token(kind, setting) -> None:
    some = qk.make(kind, 2, 1, 256, setting, seed=3)
    weights = exact_weights(some, setting)
    behind = qk.BEHIND[kind]
    rows = np.arange(behind, 256)
    assert 0.9 <= weights[rows, rows - behind].min() <= 0.98  # and no sharper than that takes
    assert (some.q == some.q[:1, :1]).all()  # the same at every token, and in heads that share a key
    assert all(some.unchanged_by(parse(fmt)) for fmt in ("bf16", "fp16", "fp32"))
    assert (some.q == some.k.repeat(2, 0)).all() == (kind == "diagonal")


def test_the_seed_chooses_the_phases_of_each_head() -> None:
    one, other = (qk.make("diagonal", 2, 2, 3, RopeSetting.of(), seed=seed) for seed in (0, 1))
    assert (one.q[0] != one.q[1]).any()
    assert (one.q != other.q).any()
    assert (one.q == qk.make("diagonal", 2, 2, 3, RopeSetting.of(), seed=0).q).all()
    slow = np.r_[16:64, 80:128]  # all but the fastest quarter of the pairs
    assert not one.q[:, :, slow].any()
    assert np.delete(one.q, slow, axis=2).any()


@pytest.mark.parametrize("kind", ["diagonal", "previous"])
def test_right_tokens_survive_hf_and_not_aliased_positions(kind) -> None:
    given = {"qk": kind, "heads": 4, "attention": True}
    for record in shift((0, 131072), "bf16", "hf", **given):
        assert record.right_token == 1.0
        assert record.top1_flips == 0
    (alias,) = shift(131072, "bf16", "uniform", **given)
    assert alias.distinct_positions == 1
    assert alias.right_token < 0.05
    (partly,) = shift(1000, "bf16", "uniform", **given)
    assert partly.right_token < 0.5


def test_the_first_row_has_no_previous_token() -> None:
    (record,) = shift(0, "fp32", "hf", qk="previous", heads=1, seq_len=2, attention=True)
    assert record.right_token == 1.0
    (record,) = shift(0, "fp32", "hf", qk="previous", heads=1, seq_len=1, attention=True)
    assert record.right_token is None


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp32"])
def test_gaussian_inputs_are_what_narrow_formats_hold(fmt: str) -> None:
    result = qk.make("gaussian", 2, 1, 500, SETTINGS[0], seed=3)
    assert result.unchanged_by(parse(fmt))
    for x in (result.q, result.k):
        assert np.array_equal(round_to(x, parse(fmt)), x)
