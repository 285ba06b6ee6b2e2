"""Every scaling against transformers' own code, and the judge's decimals against both."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropeaudit import RopeSetting, parse
from ropeaudit.errors import UsageError
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import scaled, scaling
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.scaling import HF_NAMES, Scaling
from ropeaudit.rope.scaling_names import short_name, short_names

FP32, FP64 = parse("fp32"), parse("fp64")
U = 2.0**-24
TYPES = sorted(name for name, kind in scaling.KINDS.items() if kind.in_config)


def draw(rope_type: str, rng: np.random.Generator) -> tuple[dict, int, float, int, int]:
    """Random rope parameters, rotary dims, base, maximum positions and current length."""
    pairs = int(rng.choice([8, 16, 32, 40, 48, 64, 128]))
    base = float(rng.choice([10000.0, 500000.0, 1e6, 150000.0, 12345.5]))
    original = int(rng.choice([2048, 4096, 8192, 32768]))
    factor = float(rng.choice([1.0, 2.0, 4.0, 8.0, 40.0, 3.7]))
    maximum = int(original * factor)
    length = int(rng.choice([16, original, original + 1, 3 * original, 2 * maximum]))
    values: dict = {"rope_type": rope_type, "rope_theta": base, "factor": factor}
    if rope_type == "default":
        del values["factor"]
    if rope_type in ("yarn", "llama3", "longrope"):
        values["original_max_position_embeddings"] = original
    if rope_type == "yarn":
        values |= {"beta_fast": float(rng.choice([32, 16, 1])), "beta_slow": 1.0}
        values["truncate"] = bool(rng.integers(2))
        kind = rng.integers(3)
        values |= {"mscale": 0.707, "mscale_all_dim": float(rng.choice([0.707, 1.0]))} if kind == 1 else {}
        values |= {"attention_factor": 1.25} if kind == 2 else {}
    if rope_type == "llama3":
        low = float(rng.choice([1.0, 2.0]))
        values |= {"low_freq_factor": low, "high_freq_factor": low * float(rng.choice([1.0, 4.0]))}
    if rope_type == "longrope":
        values |= {name: (1 + 9 * rng.random(pairs)).tolist() for name in ("short_factor", "long_factor")}
        if rng.integers(2):
            values["attention_factor"] = 1.19
    if rope_type == "proportional":
        values["partial_rotary_factor"] = float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0]))
    return values, 2 * pairs, base, maximum, length


def theirs(values: dict, dim: int, maximum: int, length: int) -> tuple[np.ndarray, float]:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim)
    config.max_position_embeddings = maximum
    config.rope_parameters = dict(values)
    if values["rope_type"] == "default":
        result, factor = llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        assert values["rope_type"] in llama.ROPE_INIT_FUNCTIONS, "transformers lacks it: not one of TYPES"
        compute = llama.ROPE_INIT_FUNCTIONS[values["rope_type"]]
        result, factor = compute(config, torch.device("cpu"), seq_len=length)
    return result.double().numpy(), float(factor)


def ours(
    values: dict,
    dim: int,
    base: float,
    maximum: int,
    length: int,
) -> RopeSetting:
    kind = values["rope_type"]
    stored = {HF_NAMES[k]: v for k, v in values.items() if k not in ("rope_type", "rope_theta")}
    if kind == "dynamic":
        stored["maximum"] = maximum
    return RopeSetting.of(dim, base=base, scaling=scaling.from_mapping(kind, stored), length=length)


def blend_error(setting: RopeSetting) -> np.ndarray:
    """What a float32 weight w may be off in w theta + (1 - w) theta / factor: theta times the error of w.

    Near the slow end of the ramp the result is theta / factor, so that relative to it the error is up to
    factor times as large. YaRN's w = 1 - (i - low) / (high - low): low, i - low and high - low round, by
    high u each over the width at most, then the quotient and 1 - w, at most u each. llama3's
    w = (L / wavelength - low) / (high - low): the wavelength is as far off as theta is, by (ln base + 4) u,
    and L over it rounds, all of them over the width; then two roundings of w and the one of 1 - w.
    """
    s = setting.scaling
    theta = setting.base ** (-2.0 * np.arange(setting.pairs) / setting.rotary_dim)
    if s.kind == "yarn":
        low, high = scaled.yarn_range(setting)
        weight, error = (np.arange(setting.pairs) - low) / (high - low), (3 * high / (high - low) + 2) * U
    elif s.kind == "llama3" and s.high > s.low:
        turns = s.original * theta / (2 * np.pi)
        weight = (turns - s.low) / (s.high - s.low)
        error = ((np.log(setting.base) + 6) * s.high / (s.high - s.low) + 3) * U
    else:
        return np.zeros(setting.pairs)
    within = (weight > -error) & (weight < 1 + error)  # beyond, the weight is clipped to 0 or 1
    return np.where(within, theta * error, 0.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning", "ignore::FutureWarning")
@settings(max_examples=40)
@given(st.integers(0, 10**6))
@example(419)  # pairs near the end of a ramp whose factor is 40
@example(104)
def test_random_settings_agree_with_transformers(seed: int) -> None:
    for rope_type in TYPES:
        agrees(rope_type, seed)


def agrees(rope_type: str, seed: int) -> None:
    values, dim, base, maximum, length = draw(rope_type, np.random.default_rng(seed))
    setting = ours(values, dim, base, maximum, length)
    expected, factor = theirs(values, dim, maximum, length)
    code = frequencies(setting, "inverse_power", FP32).astype(np.float64)
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    # A power off by ln(base) u through its exponent, and a dozen operations behind it, each relative to the
    # result; what a ramp's weight is off multiplies the frequency before scaling: see `blend_error`.
    tolerance = (np.log(scaled.effective_base(setting)) + 12) * U * np.abs(exact) + blend_error(setting)
    tolerance += 1e-12 * exact.max()
    assert np.all(np.abs(code - expected) <= tolerance)
    assert np.all(np.abs(exact - expected) <= tolerance)
    wide = frequencies(setting, "inverse_power", FP64)
    assert np.allclose(wide, exact, rtol=1e-13, atol=0)
    assert scaled.attention_factor(setting.scaling) == pytest.approx(factor, rel=1e-15)
    assert float(exact_frequencies.attention_factor(setting.scaling)) == pytest.approx(factor, rel=1e-15)


def test_every_kind_has_its_formulas_and_an_example_that_is_read() -> None:
    assert set(scaled.FORMULAS) == set(scaling.KINDS)
    assert {*exact_frequencies.FORMULAS, "explicit"} == set(scaling.KINDS)
    for name, rules in scaling.KINDS.items():
        assert scaling.parse(rules.example).kind == name
        assert str(scaling.parse(rules.example)).startswith(name)


def test_every_registered_type_is_covered() -> None:
    registered = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    assert set(registered) <= {*scaling.KINDS, "axial"}, sorted(registered)
    assert set(TYPES) <= {*registered, "default"}, "leave what transformers lacks out of TYPES; test it apart"


def test_published_attention_factors() -> None:
    """gpt-oss 1.346574; phi-3.5 sqrt(1 + ln 32/ln 4096) = 1.190238; DeepSeek's m² = 1.8739 for f = 40."""
    assert scaled.attention_factor(Scaling("yarn", factor=32.0, original=4096)) == pytest.approx(
        1.346574, abs=5e-7
    )
    long = Scaling("longrope", factor=32.0, original=4096, short=(1.0,), long=(1.0,))
    assert scaled.attention_factor(long) == pytest.approx(1.190238, abs=5e-7)
    assert scaled.mscale(40.0, 1.0) ** 2 == pytest.approx(1.8739, abs=5e-5)


def test_text_reads_back_as_it_was_typed() -> None:
    for text in (
        "default",
        "linear:factor=4",
        "yarn:factor=4,original=32768,truncate=false",
        "longrope:factor=2,original=64,short=1.1;1.5,long=2.7;4",
        "proportional:fraction=0.3",
    ):
        kind, _, items = text.partition(":")
        assert str(scaling.parse(text)) == (f"{kind}({items.replace(',', ' ')})" if items else kind)
        assert scaling.parse(str(scaling.parse(text))) == scaling.parse(text)


def test_a_list_holds_numbers_and_no_truth_values() -> None:
    assert scaling.from_mapping("explicit", {"frequencies": [1, 0.5]}).frequencies == (1.0, 0.5)
    with pytest.raises(UsageError, match="frequencies"):
        scaling.from_mapping("explicit", {"frequencies": [True, 0.5]})


def test_what_differs_is_added() -> None:
    lists = [
        "longrope(original=4 maximum=8 short=1;2;3;4;5;6;7;8;9;10;11;12)",
        "longrope(original=4 maximum=8 short=1)",
    ]
    assert list(short_names(lists).values()) == ["longrope ×2 #1", "longrope ×2 #2"]
    assert short_name("linear(factor=8)") == "linear ×8"
    assert short_name("default") == "default"
