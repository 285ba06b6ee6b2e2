"""A fault is named as what it is, or not at all; what hides in the batch or the heads is seen."""

import warnings

import misnamed_kernels
import numpy as np
import pytest

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs.qk import on_16_bit_grid
from ropeaudit.recognition import faults, rotation, solving, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.scaling import parse as scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import exact_rotation
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.testing import assert_shift_invariant


def test_no_base_is_named_by_the_helper_where_the_first_pair_is_off() -> None:
    message = r"behaves like: linear\(factor=1\.001\) instead of no scaling \[other-scaling\]$"
    with pytest.raises(AssertionError, match=message):
        assert_shift_invariant(misnamed_kernels.interpolated, recipe="hf", heads=2, head_dim=64)


def test_the_second_batch_element_is_another_one_for_every_seed() -> None:
    """The numbers of q came twice: zeros at the end of a seed are lost."""
    for seed in range(3):
        q = on_16_bit_grid(np.random.default_rng(seed).standard_normal((2, 16, 8)))
        vectors = verification.GivenVectors(q, q, np.arange(16), seed)
        for given in next(vectors.blocks(FP32))[:2]:
            assert not (given[0] == given[1]).all(axis=-1).any()


def test_warnings_of_trial_calls_are_silent(recwarn) -> None:
    def rotate(x, positions):
        if positions.ndim == 1 and x.ndim == 4:
            warnings.warn("nonsense", stacklevel=1)
        return misnamed_kernels.right(x, positions)

    in_process(OwnCode("rotate", rotate)).fit(RopeSetting.of(8))
    assert not [one for one in recwarn if "nonsense" in str(one.message)]


@pytest.mark.parametrize(("right_heads", "named"), [(0, True), (1, False)])
def test_a_factor_is_that_of_all_heads_or_of_none(right_heads, named) -> None:
    """Heads that it leaves within what is allowed by chance do not tell which are wrong."""
    setting, at = RopeSetting.of(32), np.arange(64)[None]
    x = round_to(np.random.default_rng(0).standard_normal((1, 4, 64, 32)), parse("bf16"))
    times = np.array([1.0] * right_heads + [1.0165] * (4 - right_heads))[None, :, None, None]
    y = round_to(times * exact_rotation.rotated(x, at[0], setting), parse("bf16"))
    found = solving.common_factor(at, x, y, setting, parse("bf16"))
    assert found == (Diagnosis("scaled-vectors", {"times": 1.016}) if named else None)


def test_a_side_that_nothing_explains_is_said_beside_the_other() -> None:
    """That k alone is not rotated would say that q is right."""
    sides = {"q": Diagnosis("unexplained"), "k": Diagnosis("no-rotation")}
    assert wording.sentence(rotation.joined(sides)) == "k: no rotation; q: nothing known explains it"
    assert wording.sentence(rotation.joined({"k": Diagnosis("no-rotation")})) == "k alone: no rotation"


def test_a_length_is_that_of_the_pairs_less_their_factor_or_that_of_whole_vectors() -> None:
    """The attention factor is on the pairs that rotate; whole vectors have a factor of their own."""
    setting = RopeSetting.of(32, scaling=scaling("yarn:factor=4,original=64,attention_factor=1.25"))
    x = np.random.default_rng(0).standard_normal((16, 32))
    found = {fault.times for fault in solving.amplitude(x, 1.5 * x, setting, FP32)}
    assert found == {1.2, 1.5}


def test_twice_the_positions_come_with_the_attention_factor_twice_too() -> None:
    for factor, expected in ((1.25, [1.0, 1.25]), (1.0, [1.0])):
        twice = [one for one in faults.of_positions(factor=factor) if one.diagnosis.code == "rotated-twice"]
        assert [one.turned(np.ones(1), np.ones(1))[0] for one in twice] == expected


def test_heads_that_are_predicted_alike_are_predicted_as_the_first() -> None:
    """Rotated by the number of the head, head 0 is left as it is."""
    x = np.random.default_rng(0).standard_normal((1, 4, 32))
    predicted = {
        told.code: make for told, make in rotation.predictions(x, np.arange(4) + 7, RopeSetting.of(32), FP32)
    }
    assert np.allclose(predicted["rotated-by-head"](), x, rtol=0, atol=1e-12)
