"""The emulated engine against mathematics and against torch, transformers and NumPy's own rotations."""

import functools
import itertools
import json

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import RopeSetting, parse, recipes, round_to
from ropeaudit.audits.cases import Case
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.rope.frequencies import FORMS, unscaled
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated, StoredKeys, Turns
from ropeaudit.subjects.exact_rotation import Exact

POSITIONS = np.array([0, 1, 7, 1000, 131071, -3])


def emulated(recipe: str, dtype: str, setting: RopeSetting | None = None, **changes: str) -> Emulated:
    resolved = recipes.named(recipe).changed(changes).resolve(parse(dtype))
    return Emulated(resolved, setting or RopeSetting.of())


def test_a_recipe_and_the_exact_rotation_are_subjects() -> None:
    exact = Exact(RopeSetting.of(64), parse("bf16"))
    assert isinstance(emulated("hf", "bf16"), Subject)
    assert isinstance(exact, Subject)
    assert (exact.refusal(8, 10**6), exact.stages(), exact.distinct_positions(POSITIONS)) == ("", {}, 6)


def test_every_form_gives_the_same_frequencies_up_to_rounding() -> None:
    """A power at relative accuracy u of an exponent that is off by u: (1 + ln base) u and a few more."""
    with mpmath.workdps(40):
        exact = np.array([float(mpmath.mpf(10000) ** (-mpmath.mpf(i) / 32)) for i in range(32)])
    for form, fmt in itertools.product(FORMS, map(parse, ("fp64", "fp32", "bf16"))):
        result = unscaled(10000.0, 64, form, fmt).astype(np.float64)
        if form == "divide":
            result = 1 / result
        if form == "recurrence":
            assert np.ptp(result) == 0
            result = np.cumprod(np.concatenate([[1.0], result[1:]]))
        steps = 34 if form in ("recurrence", "step_power") else 1
        allowed = (steps + 3 + np.log(10000.0)) * fmt.unit_roundoff
        assert np.max(np.abs(result / exact - 1)) < allowed, (form, fmt.name)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_hugging_face_bit_for_bit(dtype: str) -> None:
    """cos, sin and the rotation of transformers' Llama on this machine.

    A float32 pow or cos of the library may be an ulp off the correctly rounded one: a few table entries
    may then be the neighbouring number; all others are equal.
    """
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    config = llama.LlamaConfig(hidden_size=1024, num_attention_heads=8, head_dim=128, rope_theta=10000.0)
    built = qk.make("gaussian", 2, 2, POSITIONS.size, RopeSetting.of(128))
    q = torch.from_numpy(built.q).to(torch_dtype)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, torch.from_numpy(POSITIONS)[None])
    rotated, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    subject = emulated("hf", dtype)
    table = subject.table(POSITIONS, 0)
    ours = np.stack([subject.rotate(round_to(x, subject.input), table) for x in built.q])
    for seen, expected in ((cos[0, :, :64], table[0]), (sin[0, :, :64], table[1]), (rotated[0], ours)):
        seen = seen.to(torch.float32).numpy()
        assert np.mean(seen != expected) < (0.2 if dtype == "fp32" else 0.01)
        assert np.abs(seen - expected).max() < (1e-6 if dtype == "fp32" else 0.02)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [16, 8, 0])
def test_float64_rotation_is_complex_multiplication(layout: str, rotary_dim: int) -> None:
    setting = RopeSetting.of(16, rotary_dim, layout=layout)
    x = np.random.default_rng(0).standard_normal((POSITIONS.size, 16))
    subject = emulated("uniform", "fp64", setting)
    rotated = subject.rotate(x, subject.table(POSITIONS, 0))
    p = rotary_dim // 2
    first = np.arange(p) * (2 if layout == "interleaved" else 1)
    second = first + (1 if layout == "interleaved" else p)
    theta = 10000.0 ** (-2 * np.arange(p) / max(rotary_dim, 1))
    z = (x[:, first] + 1j * x[:, second]) * np.exp(1j * POSITIONS[:, None] * theta)
    expected = x.copy()
    expected[:, first], expected[:, second] = z.real, z.imag
    assert np.allclose(rotated, expected, atol=1e-10, rtol=0)


def test_layouts_are_permutations_of_each_other() -> None:
    x = round_to(np.random.default_rng(1).standard_normal((6, 128)), parse("bf16"))
    order = np.concatenate([np.arange(0, 128, 2), np.arange(1, 128, 2)])
    half = emulated("hf", "bf16")
    interleaved = emulated("hf", "bf16", RopeSetting.of(layout="interleaved"))
    table = half.table(POSITIONS, 0)
    assert np.array_equal(interleaved.rotate(x, table)[:, order], half.rotate(x[:, order], table))


@pytest.mark.parametrize(
    ("dtype", "position", "stored"), [("bf16", 8190, 1), ("fp16", 131072, 0), ("fp32", 2**24, 129)]
)
def test_positions_collapse(dtype: str, position: int, stored: int) -> None:
    """[8190, 8191] -> [8192, 8192] in bf16; float32 collides from 2^24."""
    count = 256 if dtype == "fp32" else 2
    assert emulated("uniform", dtype).distinct_positions(np.arange(count) + position) == stored


def test_rounding_once_is_at_least_as_good_as_rounding_each_time() -> None:
    x = round_to(np.random.default_rng(2).standard_normal((6, 128)), parse("bf16"))
    exact = emulated("xformers-f64", "fp64", table="bf16", trig="fp32", angle="fp32", frequency="fp32")
    each, once = emulated("hf", "bf16"), emulated("hf", "bf16", rotation_rounding="once")
    reference = exact.rotate(x.astype(np.float64), each.table(POSITIONS, 0))
    errors = [np.abs(s.rotate(x, s.table(POSITIONS, 0)) - reference).mean() for s in (each, once)]
    assert errors[1] < 0.8 * errors[0]
    assert np.array_equal(once.rotate(x, once.table(POSITIONS, 0)), round_to(reference, parse("bf16")))


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_norms_are_kept_wherever_a_row_stands(position: int) -> None:
    x = np.ones((1, 128))
    subject = emulated("uniform", "fp64")
    rotated = subject.rotate(x, subject.table(np.array([position]), 0))
    assert np.linalg.norm(rotated) == pytest.approx(np.sqrt(128), rel=1e-14)


def test_a_float64_rotation_of_float32_numbers_is_done_in_float64() -> None:
    """(1 + 2^-20)² needs 41 bits: a float32 product would lose its last term."""
    x = np.full((1, 128), 1 + 2.0**-20, np.float32)
    subject = emulated("meta", "fp32", rotation="fp64", output="fp64")
    cos, sin = np.full((1, 64), 1 + 2.0**-20, np.float32), np.zeros((1, 64), np.float32)
    assert (subject.rotate(x, (cos, sin)) == (1 + 2.0**-20) ** 2).all()


def test_a_float64_rotation_of_16_bit_numbers_has_the_range_of_float64() -> None:
    """A product of 8 bits each is exact in float32, unless it is too small or too large for it."""
    for size in (2.0**-100, 2.0**100):
        x = np.full((1, 128), size, np.float32)
        cos, sin = np.full((1, 64), size, np.float32), np.zeros((1, 64), np.float32)
        subject = emulated("hf", "bf16", rotation="fp64", output="fp64")
        assert (subject.rotate(x, (cos, sin)) == size**2).all()


def test_p_rope_turns_as_many_pairs_in_code_as_for_the_judge() -> None:
    """The count is defined in floating point: int(0.3 * 80 // 2) is 12 although 0.3 is below 3/10."""
    from ropeaudit.reference import exact_frequencies
    from ropeaudit.rope import scaled, scaling

    for dims in (16, 80, 100, 128, 160, 320):
        for thousandth in range(0, 1001, 7):
            spec = scaling.parse(f"proportional:fraction={thousandth / 1000}")
            setting = RopeSetting.of(dims, scaling=spec)
            exact = sum(theta != 0 for theta in exact_frequencies.frequencies(setting))
            assert exact == scaled.rotator_pairs(setting)


GROUPS = {"tensor": (0, 1, 2), "head": (1, 2), "token": (2,), "channel": (1,)}  # axes of (g, s, d)
CASE = Case(heads=2, seq_len=70, head_dim=16)
SMALL = ["--heads", "2", "--seq-len", "70", "--head-dim", "16"]


def quantised(k: np.ndarray, codes: str, axes: tuple[int, ...]) -> np.ndarray:
    values = torch.from_numpy(k).float()
    scale = values.abs().amax(axes, keepdim=True) / (127.0 if codes == "int8" else 448.0)
    if codes == "int8":
        return ((values / scale).round().clamp(-127, 127).to(torch.int8).float() * scale).numpy()
    return ((values / scale).to(torch.float8_e4m3fn).float() * scale).numpy()


STORED = [
    *(("input", None, offset) for offset in (0, 1000)),
    *(("output", turns, offset) for turns in (None, Turns(0, -16), Turns(3, 5)) for offset in (0, 1000)),
]


def test_keys_are_those_of_torch() -> None:
    """Stored before the rotation, after it, and again after each of some turns."""
    inputs, setting = CASE.load()
    bf16, at = parse("bf16"), np.arange(70, dtype=np.int64)
    plain, given, wrong = Emulated(named("hf").resolve(bf16), setting), round_to(inputs.k, bf16), []

    def rotated(k: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return np.stack([plain.rotate(head, plain.table(positions, 0)) for head in k])

    for (stage, turns, offset), codes, group in itertools.product(STORED, ("int8", "e4m3"), GROUPS):
        recipe = named("hf").changed({stage: f"{codes}:{group}"}).resolve(bf16, stores_keys=True)
        subject = StoredKeys(recipe, setting, None, turns, inputs)
        steps = turns or Turns(0, 0)
        store = functools.partial(quantised, codes=codes, axes=GROUPS[group])
        if stage == "input":
            k = rotated(round_to(store(given), bf16), at + offset)
        else:
            k = round_to(store(rotated(given, at + steps.start(offset))), bf16)
        for _ in range(steps.number):
            k = round_to(store(rotated(k, np.full(70, steps.by))), bf16)
        own, fresh = subject.table(at, offset), rotated(given, at + offset)
        for head in range(2):
            good = subject.rotate_head(given[head], own, True, head).tobytes() == k[head].tobytes()
            good &= subject.rotate(given[head], own).tobytes() == fresh[head].tobytes()
            wrong += [] if good else [(stage, turns, offset, codes, group, head)]
    assert not wrong


def rows(capsys, *line: str) -> list[dict]:
    every = ["--columns", "all"] if line[0] == "shift" else []
    assert main([*line, *SMALL, "--dtype", "bf16", "-q", *every, "-f", "jsonl"]) == 0
    return [json.loads(row) for row in capsys.readouterr().out.splitlines()]


def test_after_the_rotation_keys_depend_on_the_position_and_before_it_they_do_not(capsys) -> None:
    own = {}
    for stage in ("input", "output"):
        for group in GROUPS:
            line = ("--offset", "1000", "--recipe", "fp64-angles", "--set", f"{stage}=e4m3:{group}")
            [row] = rows(capsys, "shift", *line)
            own[stage, group] = row["change_rms"]
            assert row["implementation"] == f"fp64-angles[{stage}=e4m3:{group}]"
            assert f"keys={stage}:float8_e4m3:{group}" in row["stages"]
            assert row["predicted_rms"] is None
            assert 0.01 < row["drift_relative"] < 0.06
    assert max(own["input", group] for group in GROUPS) < min(own["output", group] for group in GROUPS) / 3


def test_attention_parity_and_samples_store_keys_too(capsys) -> None:
    line = ("--recipe", "hf", "--set", "output=int8:token", "--offset", "1000")
    [whole] = rows(capsys, "shift", *line, "--attention")
    [plain] = rows(capsys, "shift", "--recipe", "hf", "--offset", "1000", "--attention")
    assert whole["attention_tv_mean"] > 1.2 * plain["attention_tv_mean"]
    [sampled] = rows(capsys, "shift", *line, "--sample", "2000")
    assert sampled["drift_rms"] == pytest.approx(whole["drift_rms"], rel=0.2)
    [pair] = rows(capsys, "parity", "hf[output=int8:head]", "hf", "--offset", "1000")
    assert 0.004 < pair["parity_rms"] < 0.02
