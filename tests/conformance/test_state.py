"""State that leaks between calls: found, named with its remedy, and not seen where there is none."""

import re
from pathlib import Path

import numpy as np
import pytest
from cases import first_fast, table
from planted import Planted, plant, rotated, under_test

from ropeaudit.conformance import environments
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.subjects import factories

STATELESS = [("mlx", "fp16"), ("ggml", "fp32"), ("mistral-inference", "fp32")]
STATELESS += [("transformers-llama", "fp16"), ("x-transformers", "fp32"), ("onnxruntime", "fp16")]
KERNELS = Path(__file__).parents[1] / "kernels" / "conformance"


def own(name):
    return f"{KERNELS / 'kernels_state.py'}:{name}"


def found(name, dtype="fp32", head_dim=32, up_to=20000, under=()):
    """Return the findings on the state of code."""
    layout = "half" if ":" in name else factories.implementation(name).layouts[0]
    return list(environments.stateless(under_test(name, dtype, up_to, head_dim, layout, environments=under)))


def differing(finding):
    """Return the kinds of earlier calls that change numbers, by the first position of the call."""
    entries = re.findall(r"positions (\d+) to \d+ after a call [^;]*? \(([^()]*)\): \S+ ", finding.detail)
    return {first: {kind for at, kind in entries if at == first} for first, _ in entries}


@pytest.mark.parametrize(("dtype", "others"), [("fp32", {"bfloat16"}), ("bf16", {"float32", "float16"})])
def test_the_leak_of_rotary_embedding_torch_is_found_and_named(dtype, others) -> None:
    pytest.importorskip("rotary_embedding_torch")
    [one] = found("rotary-embedding-torch", dtype, 128)
    assert one.failed
    assert differing(one) == {"1000": {"another dtype from 0"}}
    leaking = re.findall(
        r"after a call in (\w+) at positions 0 to 1063 \(another dtype from 0\): ", one.detail
    )
    assert set(leaking) == others
    assert one.remedy == "store tables in float32 whatever dtype comes in, or make an instance for each dtype"


def test_it_is_what_two_calls_by_hand_give() -> None:
    torch = pytest.importorskip("torch")
    RotaryEmbedding = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding
    code = under_test("rotary-embedding-torch", "fp32", 20000, 128, "interleaved")
    used, fresh = RotaryEmbedding(128), RotaryEmbedding(128)
    used.rotate_queries_or_keys(torch.ones(1, 1, 1064, 128, dtype=torch.bfloat16))
    count, largest = 0, 0.0
    for x in code.batched_vectors(64):
        x = torch.from_numpy(x)
        apart = used.rotate_queries_or_keys(x, offset=1000) - fresh.rotate_queries_or_keys(x, offset=1000)
        count, largest = count + int((apart != 0).sum()), max(largest, float(apart.abs().max()))
    [one] = environments.stateless(code)
    assert f"(another dtype from 0): {count:,} of 65,536 numbers differ by up to {largest:.3g}" in one.detail


@pytest.mark.parametrize(("name", "dtype"), first_fast(STATELESS, 3))
def test_what_keeps_no_state_leaks_none(name, dtype) -> None:
    try:
        [one] = found(name, dtype)
    except ImportError as error:
        pytest.skip(str(error))
    assert (one.status, one.differing, one.remedy) == ("pass", 0.0, "")
    assert "numbers differ" not in one.detail


class Broken(Planted):
    """Gives nan from its third call on, and takes no bfloat16 and no high position."""

    def refuses(self, setting, dtype):
        return "" if dtype.name == "float32" else "it takes float32 alone"

    def instance(self, setting, dtype):
        calls = []

        def rotate(x, positions):
            calls.append(1)
            if positions.max() > 4096:
                raise IndexError("past the table")
            y = rotated(x, positions, setting).astype(np.float32)
            return y * np.nan if len(calls) > 2 else y

        return rotate


def test_lost_numbers_and_errors_are_findings(monkeypatch) -> None:
    plant(monkeypatch, Broken)
    [one] = found("planted", up_to=9000)
    assert one.failed
    assert "(the same call): 16,384 of 16,384 numbers differ by up to inf" in one.detail
    assert "(another dtype): it takes float32 alone" in one.detail
    assert "(another offset): IndexError: past the table" in one.detail


def test_what_takes_nothing_before_is_not_checked(monkeypatch) -> None:
    class Alone(Planted):
        def refuses(self, setting, dtype):
            return "never"

    plant(monkeypatch, Alone)
    [one] = found("planted")
    assert one.status == "not applicable"
    assert one.detail.startswith("no other call works: ")


@pytest.mark.parametrize(
    ("name", "dtype", "kinds", "remedy"), first_fast(map(tuple, table(__file__, "leaks.toml")["leaks"]), 4)
)
def test_what_leaks_gets_its_remedy(name, dtype, kinds, remedy) -> None:
    [one] = found(f"{KERNELS / name}", dtype)
    assert one.failed
    assert differing(one)["1000"] == set(kinds)
    assert one.remedy.startswith(remedy)
    assert ";" not in one.remedy


def test_state_within_what_is_allowed_is_noted_with_how_many_numbers_differ() -> None:
    [one] = found(own("RoundedTable"), "bf16")
    assert (one.status, one.remedy) == ("info", "")
    assert one.detail.startswith("what an earlier call left changes numbers, each within what is allowed; ")
    assert "another dtype" in differing(one)["1000"]
    counts = [int(text.replace(",", "")) for text in re.findall(r"([\d,]+) of 32,768 numbers", one.detail)]
    assert min(counts) > 1000
    [wide] = found(own("RoundedTable"), "fp32")
    assert wide.failed  # a table of bfloat16 is no rounding of float32 code


def test_a_clean_call_after_one_in_an_environment() -> None:
    [clean] = found(own("UnderAutocast"))
    assert clean.status == "pass"
    [one] = found(own("UnderAutocast"), under=DEFAULT)
    assert one.failed
    assert differing(one) == {"1000": {"another environment"}}
    assert "under autocast:bf16 (another environment): " in one.detail
    assert one.remedy.endswith("or make an instance for each environment")


@pytest.mark.slow  # a whole check
def test_requested_environments_are_looked_at_from_inside() -> None:
    pytest.importorskip("rotary_embedding_torch")
    clean, inside = found("rotary-embedding-torch", "fp32", 128, under=("default-dtype:bf16",))
    assert (clean.check, inside.check) == ("stateless", "stateless under default-dtype:bf16")
    assert inside.failed
    refused = found("rotary-embedding-torch", "fp32", 128, under=("compile",))[1]
    assert (refused.check, refused.status) == ("stateless under compile", "not applicable")
