"""What to change, where what code behaves like is known."""

import pytest
from ropeaudit.conformance.remedies import remedy

from ropeaudit import RopeSetting, parse
from ropeaudit.recognition import known_recipes
from ropeaudit.recognition.faults import faults

BUFFER = "frequencies (inv_freq; casting a module casts its buffers)"


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("uniform", "bf16", f"keep positions, {BUFFER} and angles in float32"),
        ("hf-model-cast", "fp16", f"keep {BUFFER} in float32"),
        ("gpt-neox-te", "bf16", "keep angles in float32"),
        ("rotary-embedding-torch", "bf16", "keep positions in float32"),
        ("hf", "fp64", "compute positions, frequencies, angles, cos and sin and the rotation in float64"),
        ("hf", "bf16", ""),
    ],
)
def test_the_narrow_stages_of_a_recipe(name, dtype, words):
    [group] = [one for one in known_recipes.groups(parse(dtype)) if name in one.names]
    assert remedy(str(group), parse(dtype), 131072) == words


def test_a_table_or_a_rotation_is_narrow_below_the_dtype_alone():
    assert remedy("float16 table, float32 rotation", parse("fp32"), 100) == "keep table in float32"
    assert remedy("float16 table, float32 rotation", parse("bf16"), 100) == ""
    assert remedy("bfloat16 rotation", parse("fp16"), 100) == "keep rotation in float32"


def test_positions_past_float32_are_kept_in_float64():
    assert remedy("bfloat16 positions, float32 rotation", parse("bf16"), 2**24) == "keep positions in float32"
    assert remedy("bfloat16 positions, float32 rotation", parse("bf16"), 2**25) == "keep positions in float64"


def test_every_usual_fault_has_a_remedy():
    for fault in faults(RopeSetting.of(64), 100):
        assert remedy(f"k alone: {fault.text}", parse("bf16"), 100), fault.text


def test_what_is_not_known_has_none():
    assert remedy("", parse("bf16"), 100) == remedy("pair 3 alone", parse("bf16"), 100) == ""
