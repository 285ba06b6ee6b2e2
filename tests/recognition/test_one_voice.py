"""One fault gets one answer: what `shift`, a check and the pytest helper say of the same code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases import first_fast

from ropeaudit import RopeSetting, parse, shift
from ropeaudit.conformance import every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.rope.scaling import parse as scaling
from ropeaudit.subjects.calling import loading
from ropeaudit.testing import assert_shift_invariant

KERNELS = Path(__file__).parents[1] / "kernels" / "recognition" / "kernels_of_one_voice.py"
FOUND = {
    "bf16_positions_in_a_table": "narrow-positions",
    "unscaled": "missing-scaling",
    "over_128": "exponent-denominator",
    "bf16_frequencies_of_another_base": "wrong-base+narrow-frequencies",
    "interleaved_keys": "wrong-layout",
    "swapped_on_odd_heads": "cos-sin-swapped",
    "random": "random",
}
LLAMA3 = {"base": 5e5, "scaling": "llama3:factor=8,low=1,high=4,original=8192"}


@pytest.mark.parametrize("name", first_fast(FOUND, 2))
def test_every_command_says_the_same(name: str) -> None:
    more = LLAMA3 if name == "unscaled" else {}
    spec, sizes = f"{KERNELS}:{name}", {"heads": 4, "seq_len": 64, "head_dim": 80}
    (row,) = shift(4000, "bf16", implementations=spec, **sizes, **more)
    assert row.diagnosis == FOUND[name], row.resembles
    own = loading.load(spec)
    setting = RopeSetting.of(80, base=more.get("base", 1e4), scaling=scaling(more.get("scaling", "default")))
    code = CodeUnderTest(own, setting, parse("bf16"), 8192)
    (finding,) = every_position.short_calls(code)
    assert codes(finding.diagnosis) == FOUND[name], finding.resembles
    if not more:  # the helper has no scaling
        with pytest.raises(AssertionError, match=re.escape(f"[{FOUND[name]}]")):
            assert_shift_invariant(loading.here(spec)[0].thing, head_dim=80, offsets=(4000,), whole=False)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("unscaled", {"base": 500000.0}),
        ("interleaved", {"layout": "interleaved"}),
        ("half_of_it", {"rotary_dim": 40}),
    ],
)
def test_an_option_that_is_offered_makes_the_code_right(name: str, given) -> None:
    spec, sizes = f"{KERNELS}:{name}", {"heads": 2, "seq_len": 64, "head_dim": 80}
    if name != "half_of_it":  # which is refused, with the option to try
        (wrong,) = shift(1000, "fp32", implementations=spec, **sizes, layout="half")
        assert wrong.verdict == "wrong_rotation"
        [(option, value)] = given.items()
        own = loading.load(spec)
        (finding,) = every_position.short_calls(CodeUnderTest(own, RopeSetting.of(80), parse("fp32"), 8192))
        assert (
            wording.option(finding.diagnosis) == f"--{option} {value if option == 'layout' else f'{value:g}'}"
        )
    (right,) = shift(1000, "fp32", implementations=spec, **sizes, **given)
    assert right.rotation_excess < 1
    assert right.diagnosis is None
