"""Code whose frequencies follow each call's length is held to those of its own, and other code to one length.

Expected frequencies are those of transformers' longrope and dynamic; `kernels_lengths` holds them twice.
"""

from __future__ import annotations

from pathlib import Path

import kernels_lengths
import pytest

from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding
from ropeaudit.features.check import code_target
from ropeaudit.features.check.checked import CheckOptions, Target
from ropeaudit.rope.scaling import parse as scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import factories

FILE = Path(kernels_lengths.__file__)
UP_TO = int(kernels_lengths.FACTOR) * kernels_lengths.ORIGINAL
OWN = "its frequencies follow each call's length, and each call is held to those of its own"
ONE = f"every call is held to the frequencies for {UP_TO} positions (--up-to)"


def scaling_of(name: str) -> str:
    return kernels_lengths.LONGROPE if name.lower().startswith("phi3") else kernels_lengths.DYNAMIC


def checked(name: str, dtype: str, up_to: int = UP_TO) -> tuple[list[Finding], str]:
    noted: list[str] = []
    case = Case(head_dim=kernels_lengths.HEAD_DIM, scaling=scaling_of(name), layout="half")
    options = CheckOptions(up_to=up_to, environments=("none",), dtypes=(parse(dtype),))
    results = code_target.checks(Target(f"{FILE}:{name}", "code", case, options, noted.extend))
    found = [one.finding for one in results]
    return found, next(one for one in noted if "depends on the length" in one)


def switch(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.check == "frequency-switch"]


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize(("name", "dtype"), [("phi3", "bf16"), ("dynamic", "fp32")])
def test_what_follows_each_calls_length_passes_and_its_cached_keys_are_noted(name: str, dtype: str) -> None:
    findings, noted = checked(name, dtype)
    assert [one for one in findings if one.failed] == []
    assert OWN in noted
    held, cached = switch(findings)
    assert (held.status, cached.status) == ("pass", "info")
    assert "599, 600, 601, 600 positions" in held.detail
    assert "keys that were cached before position 600 was reached" in cached.detail
    assert cached.where == "from position 600 on"
    assert 1 < cached.measured < 2.3  # at most both lengths, each times the attention factor: 2 x 1.103
    by_check = {one.check: one for one in findings}
    for check in ("decode", "chunked-prefill"):
        assert "each call held to the frequencies for its own length" in by_check[check].detail
    assert (
        by_check["chunked-prefill"].differing > 0.01
    )  # of bits: a piece before the switch comes out otherwise


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize("name", ["phi3_fixed", "dynamic_fixed"])
def test_what_holds_the_frequencies_of_one_length_passes_and_has_no_switch(name: str) -> None:
    findings, noted = checked(name, "bf16")
    assert [one for one in findings if one.failed] == []
    assert ONE in noted
    assert switch(findings) == []


def under_test(name: str, up_to: int) -> CodeUnderTest:
    setting = RopeSetting.of(kernels_lengths.HEAD_DIM, scaling=scaling(scaling_of(name))).for_positions(up_to)
    return CodeUnderTest(factories.implementation(f"{FILE}:{name}"), setting, parse("bf16"), up_to)


@pytest.mark.parametrize("name", ["phi3", "dynamic"])
def test_without_a_call_longer_than_the_original_length_nothing_is_followed(name: str) -> None:
    original = kernels_lengths.ORIGINAL
    assert every_position.follows_length(under_test(name, original + 64))
    assert not every_position.follows_length(under_test(name, original))
