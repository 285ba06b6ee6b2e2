"""What a check offers for a setting makes the code right; what faults are called: net/matrix.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeaudit import RopeSetting, parse, shift
from ropeaudit.conformance import every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.recognition import wording
from ropeaudit.subjects.calling import loading

KERNELS = Path(__file__).parents[1] / "kernels" / "recognition" / "kernels_of_one_voice.py"


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
