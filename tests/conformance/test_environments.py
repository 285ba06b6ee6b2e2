"""Code in environments: each exposure is named, none is invented, and torch is afterwards as before."""

import re
from pathlib import Path
from types import SimpleNamespace

import kernels_environments
import numpy as np
import pytest
import torch
from cases import first_fast
from kernels_environments import (
    by_mm,
    elementwise,
    half_by_product,
    half_under_autocast,
)
from planted import under_test

from ropeaudit import parse
from ropeaudit.conformance import environments as checks
from ropeaudit.errors import ForeignError, UnknownName
from ropeaudit.features.check.checked import Checked
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling import environments
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode

SETTING = RopeSetting.of(32)
KERNELS = Path(kernels_environments.__file__)


def findings(function, dtype="fp32", names=checks.DEFAULT, up_to=8192):
    return list(checks.under(under_test(function, dtype, up_to, environments=names)))


def state():
    """Read what environments change of torch."""
    autocast = [(torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda")]
    tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return *autocast, torch.get_default_dtype(), *tf32


@pytest.mark.parametrize(
    ("name", "environment", "reason"),
    [
        ("by_linear", "tf32", "the angle is a matrix product (mm)"),
        ("positions_by_default", "default-dtype:fp16", "positions are computed in"),
        ("FrequenciesByDefault", "default-dtype:bf16", "frequencies are computed in"),
    ],
)
def test_an_exposure_says_its_cause_and_leaves_nothing_behind(name, environment, reason) -> None:
    """Which environments break which kernel is held by the table of kernels."""
    before = state()
    [exposed] = findings(getattr(kernels_environments, name), names=[environment])
    assert exposed.status in ("fail", "info")
    assert exposed.detail.startswith(reason)
    assert state() == before


def test_what_code_raises_leaves_no_environment_behind() -> None:
    def rude(x, positions):
        if positions[0] > 999:
            raise RuntimeError("not so far")
        return elementwise(x, positions)

    own, before = in_process(OwnCode("rude", rude)), state()
    for environment in environments.chosen(["all"])[1:-1]:
        rotator = own.under(environment).rotator(SETTING, parse("fp32"))
        x = np.ones((1, 1, 4, 32), np.float32)
        rotator.rotate_both(x, x, np.arange(4))
        with pytest.raises(ForeignError, match="not so far"):
            rotator.rotate_both(x, x, np.arange(4) + 1000)
        assert state() == before


def test_a_narrow_rotation_is_allowed_and_no_more_than_that(monkeypatch) -> None:
    """A matrix that rotates halves rounds x to bfloat16: right under autocast, and held to that alone."""
    [finding] = findings(half_by_product, names=["autocast:bf16"])
    assert (finding.status, finding.differing > 0.5) == ("pass", True)
    monkeypatch.setattr(environments.Environment, "narrowed", lambda one, dtype: dtype)
    assert findings(half_by_product, names=["autocast:bf16"])[0].failed


@pytest.mark.parametrize(
    ("name", "environment", "reason"),
    first_fast(
        [
            ("cached_product", "autocast:bf16", "the angle is a matrix product (bmm), computed in bfloat16"),
            ("cached_default", "default-dtype:bf16", "frequencies are computed in bfloat16"),
        ]
    ),
)
def test_a_table_of_the_first_call_is_made_in_the_environment(name, environment, reason) -> None:
    """Calls in the clean state come first; the file is executed anew for those in an environment."""
    code = under_test(f"{KERNELS}:{name}", "bf16", 8192, environments=[environment])
    x = np.ones((1, 1, 4, 32), np.float32)
    code.rotator().rotate_both(x, x, np.arange(4))
    [finding] = checks.under(code)
    assert finding.failed
    assert finding.detail.startswith(reason)
    clean, _ = checks.stateless(code)
    assert clean.failed
    [size] = re.findall(
        rf"under {environment} \(another environment\): [\d,]+ of [\d,]+ numbers differ by up to ([\d.]+)",
        clean.detail,
    )
    assert clean.detail.count("numbers differ") == 1
    assert float(size) > 0.1


def test_another_dtype_that_an_environment_makes_is_named() -> None:
    """It fails, but where autocast makes its own."""
    [finding] = findings(half_under_autocast, "bf16", ["autocast:bf16"])
    assert finding.failed
    assert finding.detail.startswith(
        "float16 comes back for bfloat16 (clean: bfloat16); its values are within"
    )
    assert np.isnan(finding.measured)  # no number is why it fails, and none leads the sentence
    checked = Checked("f", "code", "none", "bfloat16", SETTING, 8192, finding)
    assert checked.result_words.startswith("float16 comes back")
    [finding] = findings(lambda x, positions: half_under_autocast(x, positions), "fp32", ["autocast:fp16"])
    assert finding.status == "pass"
    assert finding.detail.endswith("float16 comes back for float32 (clean: float32)")


def test_a_product_is_named_where_it_does_no_harm_yet() -> None:
    [finding] = findings(by_mm, "bf16", ["tf32"], up_to=8)
    assert finding.status == "pass"
    reason = "the angle is a matrix product (mm), of factors rounded to 11 bits"
    assert finding.detail.endswith(f"{reason}, within what is allowed here")


def test_autocast_is_not_claimed_where_it_is_not_set() -> None:
    environment, fp32 = environments.ENVIRONMENTS["autocast:bf16"], parse("fp32")
    assert "is tried on cpu and cuda alone" in environment.lacking("torch", fp32, "mps")
    assert environment.lacking("torch", fp32, "cuda:1") == ""


def test_names_are_checked_and_the_clean_one_comes_first() -> None:
    assert [one.name for one in environments.chosen(["tf32", "TF32", "all"])][:2] == ["none", "tf32"]
    assert len(environments.chosen(["all"])) == 7
    with pytest.raises(UnknownName, match="unknown environment 'autocast'; did you mean autocast:bf16"):
        environments.chosen(["autocast"])


def test_only_the_copy_of_a_module_is_moved() -> None:
    module = kernels_environments.FrequenciesByDefault(32)
    [moved] = findings(module, names=["to:bf16"])
    assert (moved.status, codes(moved.diagnosis)) == ("fail", "narrow-frequencies")
    assert "keep inv_freq out of casts" in moved.remedy
    assert module.inv_freq.dtype == torch.float32
    own = in_process(OwnCode("alone", module, copied=False)).under(environments.ENVIRONMENTS["to:bf16"])
    x = np.ones((1, 1, 4, 32), np.float32)
    own.rotator(SETTING, parse("fp32")).rotate_both(x, x, np.arange(4))
    assert module.inv_freq.dtype == torch.float32
    [refused] = findings(elementwise, names=["to:bf16"])
    assert (refused.status, refused.detail) == (
        "not applicable",
        "moves a torch.nn.Module, and a function holds nothing to move; leave out --under",
    )
    assert not {"to:bf16", "to:fp16"} & {*checks.DEFAULT, *(one.name for one in environments.chosen(["all"]))}


@pytest.mark.parametrize("order", ["bhsd", "bsd", "hsd"])
def test_other_rows_and_heads_come_first_where_code_has_an_axis_of_them(order) -> None:
    code = SimpleNamespace(up_to=1000, own=None, order=order)
    kinds = {one.kind for one in checks.Call(parse("fp32"), 0, 8).before(code, ())}
    assert ("other batch" in kinds, "other heads" in kinds) == ("b" in order, "h" in order)
