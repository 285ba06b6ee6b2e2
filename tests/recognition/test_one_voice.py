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

KERNELS = """
import math
import torch

def rotated(x, angles, interleaved=False):
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = x.float()[..., ::2], x.float()[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

def inverse(d, base=1e4, over=None):
    return base ** (-torch.arange(0, d, 2).float() / (over or d))

def angles(x, positions, base=1e4, over=None):
    return positions.float()[..., None] * inverse(x.shape[-1], base, over)

TABLE = (torch.arange(9000).bfloat16().float()[:, None] * inverse(80)).cos(), (
    torch.arange(9000).bfloat16().float()[:, None] * inverse(80)).sin()

def bf16_positions_in_a_table(positions, query, key):
    cos, sin = (part[positions] for part in TABLE)
    def turn(x):
        a, b = x.float().chunk(2, -1)
        more = (1,) * (x.ndim - cos.ndim)
        c, s = (part.reshape(part.shape[:-2] + more + part.shape[-2:]) for part in (cos, sin))
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)
    return turn(query), turn(key)

def unscaled(x, positions):
    return rotated(x, angles(x, positions, 5e5))

def over_128(x, positions):
    return rotated(x, angles(x, positions, over=128))

def bf16_frequencies_of_another_base(x, positions):
    return rotated(x, positions.float()[..., None] * inverse(x.shape[-1], 5e5).bfloat16().float())

def interleaved_keys(q, k, positions):
    return rotated(q, angles(q, positions)), rotated(k, angles(k, positions), True)

def swapped_on_odd_heads(x, positions):
    right, swapped = (rotated(x, one) for one in (angles(x, positions), math.pi / 2 - angles(x, positions)))
    odd = torch.arange(x.shape[-3]) % 2 == 1 if x.ndim > 2 else torch.tensor(False)
    return torch.where(odd.reshape(-1, 1, 1) if x.ndim > 2 else odd, swapped, right)

def random(x, positions):
    return rotated(x, angles(x, positions)) * (1 + 0.1 * torch.rand(1))
"""
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


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("voices") / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.mark.parametrize("name", first_fast(FOUND, 2))
def test_every_command_says_the_same(name: str, kernels: Path) -> None:
    more = LLAMA3 if name == "unscaled" else {}
    spec, sizes = f"{kernels}:{name}", {"heads": 4, "seq_len": 64, "head_dim": 80}
    (row,) = shift(4000, "bf16", implementations=spec, **sizes, **more)
    assert row.diagnosis == FOUND[name], row.resembles
    own = loading.load(spec)
    setting = RopeSetting.of(80, base=more.get("base", 1e4), scaling=scaling(more.get("scaling", "default")))
    code = CodeUnderTest(own, setting, parse("bf16"), 8192)
    (finding,) = every_position.short_calls(code)
    assert codes(finding.diagnosis) == FOUND[name], finding.resembles
    if not more:  # the helper has no scaling
        with pytest.raises(AssertionError, match=re.escape(f"[{FOUND[name]}]")):
            assert_shift_invariant(own.thing, head_dim=80, offsets=(4000,), whole=False)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("unscaled", {"base": 500000.0}),
        ("interleaved", {"layout": "interleaved"}),
        ("half_of_it", {"rotary_dim": 40}),
    ],
)
def test_an_option_that_is_offered_makes_the_code_right(name: str, given, kernels: Path) -> None:
    extra = KERNELS + (
        "\ndef interleaved(x, positions):\n    return rotated(x, angles(x, positions), True)\n"
        "\ndef half_of_it(x, positions):\n    y = x[..., :40]\n"
        "    return torch.cat([rotated(y, angles(y, positions)), x[..., 40:]], -1)\n"
    )
    path = kernels.with_name("more.py")
    path.write_text(extra)
    spec, sizes = f"{path}:{name}", {"heads": 2, "seq_len": 64, "head_dim": 80}
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
