"""Dumped tables of frequencies, or of cos and sin: what is wrong with them, and what explains it."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from dumped_tables import BASE, BF16, FP16, PLAIN, RIGHT, cast, inv, npz, table
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit import RopeSetting, module, parse
from ropeaudit.arithmetic.formats import Format
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes
from ropeaudit.recognition.wording import of_table as words
from ropeaudit.recognition.wording import sentence
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import scaling
from ropeaudit.tensor_files.rope_values import Dump


def yarn(truncate: str = "true", factor: int = 40) -> RopeSetting:
    text = f"yarn:factor={factor},original=4096,truncate={truncate}"
    return RopeSetting.of(64, base=1e4, scaling=scaling.parse(text))


def llama3(base: float = 5e5) -> RopeSetting:
    return RopeSetting.of(128, base=base, scaling=scaling.parse("llama3:factor=8,low=1,high=4,original=8192"))


def inverted(setting: RopeSetting) -> np.ndarray:
    """litgpt 0.5.13: the ramp keeps what it should interpolate."""
    plain = inv(replace(setting, scaling=scaling.DEFAULT))
    return cast(plain + plain / setting.scaling.factor - inv(setting), "fp32")


# --- a dumped inv_freq


def stored(points: tuple[np.ndarray, np.ndarray]) -> Dump:
    return Dump("x", "the cos/sin table", cos=points[0], sin=points[1])


def against(values: np.ndarray | tuple[np.ndarray, np.ndarray], setting: RopeSetting) -> TableFinding:
    """Return what is found of frequencies, or of cos and sin."""
    listed = not isinstance(values, tuple)
    result = check(Dump("x", "inv_freq", frequencies=values) if listed else stored(values), setting)
    assert result.agrees is (not result.hypotheses and not result.nonfinite)
    return result


def values_of(found: Diagnosis | None) -> Mapping[str, float | str]:
    """Return the values of all parts of a diagnosis."""
    return {name: value for part in found.parts() for name, value in part.values.items()} if found else {}


def test_every_way_to_compute_in_float32_agrees() -> None:
    forms = ("inverse_power", "power", "step_power", "exp", "exp2")
    asked = (PLAIN, RopeSetting.of(64), yarn(), yarn("false"), llama3())
    for form, setting in itertools.product(forms, asked):
        found = against(inv(setting, form=form), setting)
        assert (found.agrees, found.diagnosis) == (True, None), (form, setting)


YARN_FACTOR = 0.1 * np.log(40) + 1
ALL_CAST = table(cast(RIGHT, "bf16"), position=BF16, angle=BF16, stored="bf16")
ALL_BFLOAT16 = dict.fromkeys(("position", "frequency", "angle", "table"), "bfloat16")
HALVES_CAST = table(cast(RIGHT, "fp16"), stored="fp16"), {"frequency": "float16", "table": "float16"}
BASE_AND_TABLE = table(BASE, 9000, stored="bf16"), {"base": 5e5, "asked": 1e6, "table": "bfloat16"}
YARN40 = "yarn(factor=40 original=4096 truncate=true)"
YARN20, FALSE = YARN40.replace("40 ", "20 "), YARN40.replace("true", "false")
LLAMA3 = "llama3(factor=8 original=8192 low=1 high=4)"
DYNAMIC = RopeSetting.of(64, scaling=scaling.parse("dynamic:factor=4,maximum=64"), length=256)
BASE_AND_CAST = {"base": 5e5, "asked": 1e6, "frequency": "bfloat16"}
OVER_128 = inv(RopeSetting.of(128))
FIFTH_OFF = np.where(np.arange(64) == 5, 1.01, 1) * inv(PLAIN)
LISTS = {"short": [1.0] * 32, "long": list(range(1, 33)), "original": 4096, "factor": 8.0}
LONG = RopeSetting.of(64, scaling=scaling.from_mapping("longrope", LISTS), length=8192)
SHORT_FOR_LONG = {"seen_divisors": "short", "asked_divisors": "long"}  # the short ones are all 1
FIFTH = {"count": 1, "total": 64, "things": "frequencies", "entries": (5,)}


@pytest.mark.parametrize(
    ("setting", "values", "code", "named"),
    [
        (PLAIN, cast(inv(PLAIN), "tf32"), "narrow-frequencies", {"frequency": "tf32"}),
        (llama3(), cast(inv(llama3()), "bf16"), "narrow-frequencies", {"frequency": "bfloat16"}),
        (PLAIN, cast(BASE, "bf16"), "wrong-base+narrow-frequencies", BASE_AND_CAST),
        (llama3(), inv(llama3(1e4)), "wrong-base", {"base": 1e4, "asked": 5e5}),
        (yarn(), inverted(yarn()), "other-scaling", {"seen": YARN40, "seen_ramp": "inverted"}),
        (yarn("false"), inverted(yarn("false")), "other-scaling", {}),
        (yarn(), cast(inverted(yarn()), "bf16"), "other-scaling+narrow-frequencies", {"asked": YARN40}),
        (yarn("false"), inv(yarn("true")), "other-scaling", {"seen": YARN40}),
        (yarn("true"), inv(yarn("false")), "other-scaling", {"seen": FALSE}),
        (yarn(), inv(RopeSetting.of(64)), "missing-scaling", {"asked": YARN40}),
        (yarn(), inv(yarn(factor=20)), "other-scaling", {"seen": YARN20, "asked": YARN40}),
        (RopeSetting.of(64), inv(yarn()), "other-scaling", {"seen": "yarn(factor=40 original=4096)"}),
        (llama3(), inv(replace(llama3(), scaling=scaling.DEFAULT)), "missing-scaling", {"asked": LLAMA3}),
        (PLAIN, inv(PLAIN) / 4, "other-scaling", {"seen": "linear(factor=4)", "asked": "default"}),
        (yarn(), inv(replace(yarn(), base=123456.0)), "wrong-base", {"base": 123456.0}),
        (PLAIN, 3 * inv(PLAIN), "positions-scaled", {"factor": 3.0}),
        (DYNAMIC, inv(RopeSetting.of(64)), "missing-scaling", {"asked": "dynamic(factor=4 maximum=64)"}),
        (PLAIN, inv(PLAIN, BF16), "narrow-frequencies", {"computed": "bfloat16", "form": "inverse_power"}),
        (PLAIN, 1 / inv(PLAIN), "inverse-frequencies", {}),
        (RopeSetting.of(80), OVER_128[:40], "exponent-denominator", {"dims": 128, "asked": 80}),
        (RopeSetting.of(64), OVER_128[:32], "exponent-denominator|wrong-base", {"dims": 128, "asked": 64}),
        (PLAIN, FIFTH_OFF, "entries-off", FIFTH),
        (PLAIN, np.full(64, np.nan), "nonfinite", {}),
        (RopeSetting.of(2), np.array([0.5]), "other-scaling", {"seen": "linear(factor=2)"}),
        (LONG, inv(replace(LONG, length=0)), "other-scaling|missing-scaling", SHORT_FOR_LONG),
        (PLAIN, table(RIGHT, 2), "", {}),
        (PLAIN, table(RIGHT, 20000), "", {}),
        (yarn(), table(inv(yarn()), factor=YARN_FACTOR), "", {}),
        (PLAIN, table(RIGHT, 9000, stored="fp16"), "narrow-table", {"table": "float16"}),
        (PLAIN, HALVES_CAST[0], "narrow-frequencies", HALVES_CAST[1]),
        (PLAIN, ALL_CAST, "narrow-positions", ALL_BFLOAT16),
        (PLAIN, table(BASE), "wrong-base", {"base": 5e5, "asked": 1e6}),
        (PLAIN, table(BASE, 2), "wrong-base", {"base": 5e5, "asked": 1e6}),
        (PLAIN, BASE_AND_TABLE[0], "wrong-base+narrow-table", BASE_AND_TABLE[1]),
        (PLAIN, table(cast(BASE, "bf16")), "wrong-base+narrow-frequencies", BASE_AND_CAST),
        (yarn(), table(inv(yarn())), "attention-factor", {"seen": 1.0, "asked": pytest.approx(YARN_FACTOR)}),
        (yarn(), table(inv(yarn("false")), factor=YARN_FACTOR), "other-scaling", {"seen": FALSE}),
        (yarn(), table(inverted(yarn()), factor=YARN_FACTOR), "other-scaling", {"asked": YARN40}),
        (PLAIN, table(3 * RIGHT), "positions-scaled", {"factor": 3.0}),
        (PLAIN, tuple(np.nan * part for part in table(RIGHT)), "nonfinite", {}),
    ],
)
def test_wrong_values_are_explained(
    setting: RopeSetting,
    values: np.ndarray | tuple[np.ndarray, np.ndarray],
    code: str,
    named: dict[str, float | str],
) -> None:
    result = against(values, setting)
    assert codes(result.diagnosis) == code, words(result)
    assert all(values_of(result.diagnosis)[name] == value for name, value in named.items())
    assert result.agrees is (not code)


def test_hypotheses_are_ranked_and_rows_say_which_pairs() -> None:
    result = check(Dump("x", "inv_freq", frequencies=inv(RopeSetting.of(64))), yarn())
    assert [one.explains for one in result.hypotheses] == [True, False, False, False]
    assert [one.rank for one in result.hypotheses] == sorted(one.rank for one in result.hypotheses)
    near = [one for one in result.hypotheses if not one.explains and not one.few]
    assert [one.residual for one in near] == sorted(one.residual for one in near)
    assert all(one.diagnosis is not None for one in result.hypotheses)
    expected = np.array([float(theta) for theta in exact_frequencies.frequencies(yarn())])
    off = np.abs(inv(RopeSetting.of(64)) / expected - 1) > 1e-4
    assert [row["off"] for row in result.rows] == ["yes" if one else "no" for one in off]
    assert result.rows[31]["relative_error"] == pytest.approx(39, rel=1e-5)


# --- a dumped table of cos and sin


OFF_BY_ONE = tuple(part[1:] for part in table(RIGHT, 513))
ROLLED, BACK = (tuple(np.roll(part, -by, axis=0) for part in table(RIGHT, 512)) for by in (1, -1))
HALVES = tuple(0.5 + part / 4 for part in table(RIGHT, 512))  # of no angles


ONE_WRONG = {  # what of cos or sin is wrong -> both parts so, the code, what it names
    "positions": (OFF_BY_ONE, "positions-off", {"by": 1}),
    "rolled": (ROLLED, "positions-off+wrap", {"by": 1, "size": 512}),
    "rolled back": (BACK, "positions-off+wrap", {"by": -1, "size": 512}),
    "base": (table(BASE, 512), "wrong-base", {"base": 5e5}),
    "a rare base": (table(inv(RopeSetting.of(128, base=23450.0)), 512), "wrong-base", {"base": 23450.0}),
    "base and cast": (
        table(BASE, 512, stored="bf16"),
        *("wrong-base+narrow-table", {"base": 5e5, "table": "bfloat16"}),
    ),
    "cast": (table(RIGHT, 512, stored="fp16"), "narrow-table", {"table": "float16"}),
    "frequencies": (table(cast(RIGHT, "bf16"), 512), "narrow-frequencies", {"frequency": "bfloat16"}),
    "reversed": (tuple(part[::-1] for part in table(RIGHT, 512)), "positions-reversed", {}),
    "the other one": (table(RIGHT, 512)[::-1], "", {}),  # both cos, or both sin: they are not swapped
    "of no angles": (HALVES, "", {}),
    "nan": (tuple(np.nan * part for part in HALVES), "nonfinite", {}),
}


@pytest.mark.parametrize("side", ["cos", "sin"])
@pytest.mark.parametrize("wrong", ONE_WRONG)
def test_of_cos_and_sin_the_one_that_is_right_is_not_blamed_for_the_other(
    tmp_path: object, side: str, wrong: str
) -> None:
    parts, code, named = ONE_WRONG[wrong]
    arrays = dict(zip(("cos", "sin"), table(RIGHT, 512), strict=True))
    arrays[side] = parts[side == "sin"]
    buffers = {one.what: one for one in module(npz(f"{tmp_path}/x.npz", **arrays), base=1e6).buffers}
    one = buffers.pop(side)
    (right,) = buffers.values()
    assert (right.agrees, right.wrong, right.error, right.drift_near) == (True, False, None, None)
    assert one.agrees is False
    assert codes(one.diagnosis) == code, one.finding
    assert values_of(one.diagnosis).items() >= named.items()
    assert one.diagnosis is None or code == "nonfinite" or one.diagnosis.where.sides == (side,)
    if one.diagnosis is not None and code not in ("nonfinite", "narrow-table"):
        assert one.finding.startswith(f"{side} alone: "), one.finding


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({(100, 7): -1.0}, Where(sides=("sin",), position=100)),
        ({(100, 7): -1.0, (300, 7): -1.0}, Where(sides=("sin",))),
        ({(12345, 3): 1.05}, Where(sides=("sin",), position=12345)),  # a single value of a long table
    ],
)
def test_entries_that_are_off_are_told_by_where_they_are(wrong, where) -> None:
    """Nothing explains them away, and each is told from its first position on."""
    cos, sin = table(RIGHT, 20000)
    for place, times in wrong.items():
        sin[place] *= times
    found = check(stored((cos, sin)), PLAIN)
    (first, pair), *_ = wrong
    values = {"count": 1, "total": 64, "things": "pairs", "entries": (pair,)}
    assert found.diagnosis == Diagnosis("entries-off", values, where)
    assert {row["pair"]: row["first_position_off"] for row in found.off} == {pair: first}
    assert "nothing that was tried explains" in words(found)
    assert found.rows[pair]["found"] == pytest.approx(found.rows[pair]["theta"], rel=1e-6)


def test_nothing_is_said_of_cos_and_sin_where_angles_are_stored(tmp_path: object) -> None:
    angles = np.arange(512)[:, None] * RIGHT
    angles[100, 7] *= -1
    (one,) = module(npz(f"{tmp_path}/x.npz", angles=angles), base=1e6).buffers
    assert one.diagnosis is not None
    assert one.diagnosis.where == Where(position=100)


STAGES = ("position", "frequency", "angle")


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("stages", [c for n in (1, 2, 3) for c in itertools.combinations(STAGES, n)])
def test_every_set_of_rounded_stages_is_known(stages: tuple[str, ...], fmt: Format) -> None:
    """5000 positions are more than either format holds. The words name the stages that were rounded."""
    at, theta = np.arange(5000.0)[:, None], 1e6 ** (-np.arange(64) / 64)
    at = cast(at, fmt.short) if "position" in stages else at
    theta = cast(theta, fmt.short) if "frequency" in stages else theta
    angles = cast(at * theta, fmt.short) if "angle" in stages else at * theta
    points = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    best = check(stored(tuple(part.astype(np.float64) for part in points)), PLAIN).best
    assert best is not None
    assert best.explains
    assert not best.another_setting
    seen = values_of(best.diagnosis)
    assert [stage for stage in STAGES if stage in seen] == list(stages)
    assert {seen[stage] for stage in stages} == {fmt.name}
    assert best.residual < 1e-6  # radians


@given(
    pair=st.integers(1, 63),
    error=st.floats(-3, -0.5).map(lambda exponent: 10**exponent),
    fmt=st.sampled_from([None, "bf16", "fp16"]),
    base=st.sampled_from([1e4, 5e5, 1e6]),
)
@settings(max_examples=25, deadline=None)
def test_a_lone_wrong_frequency_is_named(pair: int, error: float, fmt: str | None, base: float) -> None:
    """The rest is what it is: right, or a cast; nothing that explains no pair is named for it."""
    setting = RopeSetting.of(128, base=base)
    values = inv(setting)
    values = cast(values, fmt) if fmt else values
    values[pair] *= 1 + (error if fmt is None else max(error, 0.03))  # above a cast's own error
    result = check(Dump("x", "inv_freq", frequencies=values), setting)
    expected = {"count": 1, "total": 64, "things": "frequencies", "entries": (pair,)}
    assert values_of(result.diagnosis).items() >= expected.items()
    assert codes(result.diagnosis) == ("entries-off+narrow-frequencies" if fmt else "entries-off")
    rest = f"of the rest: {parse(fmt).name} frequencies" if fmt else "the rest agrees within float32 rounding"
    assert rest in words(result)
    assert result.best is not None
    assert result.best.strays == (pair,)
    assert not result.agrees


def test_what_comes_near_is_named_with_what_it_leaves_and_what_does_not_is_not() -> None:
    """Of noise alone nothing comes near; another base does with noise of a ten-thousandth on it."""
    noise = np.random.default_rng(0).uniform(0.5, 1.5, 64)
    found = against(inv(PLAIN) * noise, PLAIN)
    assert (found.diagnosis, len(found.off)) == (None, 64)
    told = f"(pair {found.worst['pair']}); nothing that was tried explains it, nor comes near."
    assert told in words(found)
    found = against(BASE * (1 + 2e-4 * (noise - 1)), PLAIN)
    assert found.diagnosis is not None
    assert (codes(found.diagnosis), found.diagnosis.certainty) == ("wrong-base", "resembles")
    assert found.left == pytest.approx(1.1e-4, rel=0.05)


def test_a_frequency_of_zero_is_judged_too() -> None:
    """Where the expected frequency is 0, nothing else agrees; 0 itself does."""
    setting = RopeSetting.of(64, scaling=scaling.parse("proportional:fraction=0.5"))
    values = inv(setting)
    assert against(values, setting).agrees
    values[20] = 1e-9
    text = words(against(values, setting))
    assert text.startswith("1 of 32 frequencies off: 20; by up to 1e-09 relative,"), text


def test_casts_that_change_nothing_are_no_hypotheses() -> None:
    result = check(stored(table(RIGHT, stored="bf16")), PLAIN)
    assert [sentence(one.diagnosis) for one in result.hypotheses if one.explains] == ["bfloat16 table"]
