"""A fault is named as what it is, or not at all; what hides in the batch or the heads is seen."""

import warnings

import misnamed_kernels
import numpy as np
import pytest

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.inputs.qk import on_16_bit_grid
from ropeaudit.recognition import rotation, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.setting import RopeSetting
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


def test_a_side_that_nothing_explains_is_said_beside_the_other() -> None:
    """That k alone is not rotated would say that q is right."""
    sides = {"q": Diagnosis("unexplained"), "k": Diagnosis("no-rotation")}
    assert wording.sentence(rotation.joined(sides)) == "k: no rotation; q: nothing known explains it"
    assert wording.sentence(rotation.joined({"k": Diagnosis("no-rotation")})) == "k alone: no rotation"
