"""The gradient of own code: right kernels pass, and each fault is named."""

from dataclasses import replace
from pathlib import Path

import gradient_kernels
import pytest
import torch
from planted import under_test

from ropeaudit import RopeSetting
from ropeaudit.conformance import every_position
from ropeaudit.recognition import allowance
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.scaling import parse as scaling

KERNELS = Path(gradient_kernels.__file__)
UP_TO = 131072


def found(name, dtype="bf16"):
    [finding] = every_position.gradient(under_test(f"{KERNELS}:{name}", dtype, UP_TO, 128))
    return finding


def test_float64_is_held_to_float64():
    assert found("float64_tables", "fp64").status == "pass"
    assert found("float32_tables", "fp64").status == "fail"


def test_the_gradient_is_multiplied_by_the_attention_factor():
    setting = RopeSetting.of(128, scaling=scaling("yarn:factor=4,original=32768"))
    inverse, factor = (
        torch.from_numpy(allowance.frequencies(setting).copy()),
        attention_factor(setting.scaling),
    )

    def yarn(q, k, positions):
        cos, sin = gradient_kernels.tables(positions, inverse=inverse)
        return gradient_kernels.both(q, k, factor * cos, factor * sin)

    def without(q, k, positions):
        """The factor is applied to values that autograd does not see."""
        found = yarn(q, k, positions)
        plain = gradient_kernels.both(q, k, *gradient_kernels.tables(positions, inverse=inverse))
        return tuple(x.detach() + (y - y.detach()) for x, y in zip(found, plain, strict=True))

    for function, status in ((yarn, "pass"), (without, "fail")):
        tested = replace(under_test(function, "fp32", UP_TO), setting=setting)
        assert [one.status for one in every_position.gradient(tested)] == [status]


def test_code_that_overwrites_its_input_is_given_copies_which_is_said():
    assert "copies of the leaves" in found("in_place").detail
    assert "copies" not in found("float32_tables").detail


def test_numpy_code_has_no_gradient():
    numpy = f"{KERNELS.with_name('faulty_calls.py')}:right_numpy"
    [finding] = every_position.gradient(under_test(numpy, "fp32"))
    assert finding.status == "not applicable"
    assert "no torch tensors" in finding.detail


def test_an_implementation_of_torch_is_called_too():
    pytest.importorskip("rotary_embedding_torch")
    for dtype, status in (("fp32", "pass"), ("bf16", "fail")):
        code = under_test("rotary-embedding-torch", dtype, UP_TO, 128, "interleaved")
        [finding] = every_position.gradient(code)
        assert finding.status == status, finding


@pytest.mark.parametrize("name", ["inference", "inference_in_place", "inference_mode"])
def test_code_for_inference_alone_is_not_judged(name):
    finding = found(name)
    assert finding.status == "not applicable"
    assert finding.detail == "the code switches autograd off: it is for inference alone"
