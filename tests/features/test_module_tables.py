"""Dumped tables of frequencies, or of cos and sin: what is wrong with them, and what explains it."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from command_line import ran
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ropeaudit import RopeSetting, module, parse
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput
from ropeaudit.features.module.buffers import sentence as words
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.recognition.wording import sentence
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import scaling
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.tensor_files.rope_values import Dump

FP32, BF16, FP16 = parse("fp32"), parse("bf16"), parse("fp16")
PLAIN = RopeSetting.of(128, base=1e6)


def yarn(truncate: str = "true", factor: int = 40) -> RopeSetting:
    text = f"yarn:factor={factor},original=4096,truncate={truncate}"
    return RopeSetting.of(64, base=1e4, scaling=scaling.parse(text))


def llama3(base: float = 5e5) -> RopeSetting:
    return RopeSetting.of(128, base=base, scaling=scaling.parse("llama3:factor=8,low=1,high=4,original=8192"))


def inv(setting: RopeSetting, fmt: Format = FP32, form: str = "inverse_power") -> np.ndarray:
    return frequencies(setting, form, fmt).astype(np.float64)


def cast(values: np.ndarray, name: str) -> np.ndarray:
    return round_to(values, parse(name)).astype(np.float64)


def inverted(setting: RopeSetting) -> np.ndarray:
    """litgpt 0.5.13: the ramp keeps what it should interpolate."""
    plain = inv(replace(setting, scaling=scaling.DEFAULT))
    return cast(plain + plain / setting.scaling.factor - inv(setting), "fp32")


# --- a dumped inv_freq


def against(values: np.ndarray, setting: RopeSetting) -> TableFinding:
    result = check(Dump("x", "inv_freq", frequencies=values), setting)
    assert result.agrees is (not result.hypotheses and not result.nonfinite)
    return result


def values_of(found: Diagnosis | None) -> Mapping[str, float | str]:
    """Return the values of all parts of a diagnosis."""
    return {name: value for part in found.parts() for name, value in part.values.items()} if found else {}


@pytest.mark.parametrize("form", ["inverse_power", "power", "step_power", "exp", "exp2"])
def test_every_way_to_compute_in_float32_agrees(form: str) -> None:
    for setting in (PLAIN, RopeSetting.of(64), yarn(), yarn("false"), llama3()):
        found = against(inv(setting, form=form), setting)
        assert found.agrees
        assert found.diagnosis is None


YARN40 = "yarn(factor=40 original=4096 truncate=true)"
LLAMA3 = "llama3(factor=8 original=8192 low=1 high=4)"


@pytest.mark.parametrize(
    ("setting", "values", "code", "named"),
    [
        (PLAIN, cast(inv(PLAIN), "bf16"), "narrow-frequencies", {"frequency": "bfloat16"}),
        (PLAIN, cast(inv(PLAIN), "fp16"), "narrow-frequencies", {"frequency": "float16"}),
        (PLAIN, cast(inv(PLAIN), "tf32"), "narrow-frequencies", {"frequency": "tf32"}),
        (llama3(), cast(inv(llama3()), "bf16"), "narrow-frequencies", {"frequency": "bfloat16"}),
        (PLAIN, inv(RopeSetting.of(128, base=5e5)), "wrong-base", {"base": 5e5, "asked": 1e6}),
        (PLAIN, inv(RopeSetting.of(128, base=123456.0)), "wrong-base", {"base": 123456.0, "asked": 1e6}),
        (
            PLAIN,
            cast(inv(RopeSetting.of(128, base=5e5)), "bf16"),
            "wrong-base+narrow-frequencies",
            {"base": 5e5, "asked": 1e6, "frequency": "bfloat16"},
        ),
        (llama3(), inv(llama3(1e4)), "wrong-base", {"base": 1e4, "asked": 5e5}),
        (yarn(), inverted(yarn()), "other-scaling", {"seen": YARN40, "seen_ramp": "inverted"}),
        (yarn("false"), inverted(yarn("false")), "other-scaling", {}),
        (yarn(), cast(inverted(yarn()), "bf16"), "other-scaling+narrow-frequencies", {"asked": YARN40}),
        (yarn("false"), inv(yarn("true")), "other-scaling", {"seen": YARN40}),
        (yarn("true"), inv(yarn("false")), "other-scaling", {"seen": YARN40.replace("true", "false")}),
        (yarn(), inv(RopeSetting.of(64)), "missing-scaling", {"asked": YARN40}),
        (
            yarn(),
            inv(yarn(factor=20)),
            "other-scaling",
            {"seen": YARN40.replace("40 ", "20 "), "asked": YARN40},
        ),
        (
            RopeSetting.of(64),
            inv(yarn()),
            "other-scaling",
            {"seen": "yarn(factor=40 original=4096)", "asked": "default"},
        ),
        (llama3(), inv(replace(llama3(), scaling=scaling.DEFAULT)), "missing-scaling", {"asked": LLAMA3}),
        (PLAIN, inv(PLAIN) / 4, "other-scaling", {"seen": "linear(factor=4)", "asked": "default"}),
        (yarn(), inv(replace(yarn(), base=123456.0)), "wrong-base", {"base": 123456.0}),
        (
            RopeSetting.of(64, scaling=scaling.parse("dynamic:factor=4,maximum=64"), length=256),
            inv(RopeSetting.of(64)),
            "missing-scaling",
            {"asked": "dynamic(factor=4 maximum=64)"},
        ),
        (PLAIN, inv(PLAIN, BF16), "narrow-frequencies", {"computed": "bfloat16", "form": "inverse_power"}),
        (PLAIN, 1 / inv(PLAIN), "inverse-frequencies", {}),
        (
            RopeSetting.of(80),
            inv(RopeSetting.of(128))[:40],
            "exponent-denominator",
            {"dims": 128, "asked": 80},
        ),
        (
            RopeSetting.of(64),
            inv(RopeSetting.of(128))[:32],
            "exponent-denominator|wrong-base",
            {"dims": 128, "asked": 64},
        ),
        (
            PLAIN,
            np.where(np.arange(64) == 5, 1.01, 1) * inv(PLAIN),
            "entries-off",
            {"count": 1, "total": 64, "things": "frequencies", "entries": (5,)},
        ),
        (PLAIN, np.full(64, np.nan), "nonfinite", {}),
        (RopeSetting.of(2), np.array([0.5]), "other-scaling", {"seen": "linear(factor=2)"}),
    ],
)
def test_a_wrong_inv_freq_is_explained(
    setting: RopeSetting, values: np.ndarray, code: str, named: dict[str, float | str]
) -> None:
    found = against(values, setting).diagnosis
    assert codes(found) == code, sentence(found)
    assert values_of(found).items() >= named.items(), found


def test_longrope_short_for_long() -> None:
    lists = scaling.from_mapping(
        "longrope", {"short": [1.0] * 32, "long": list(range(1, 33)), "original": 4096, "factor": 8.0}
    )
    setting = RopeSetting.of(64, scaling=lists, length=8192)
    result = against(inv(replace(setting, length=0)), setting)
    found = result.diagnosis
    assert codes(found) == "other-scaling|missing-scaling"  # the short divisors are all 1
    assert values_of(found).items() >= {"seen_divisors": "short", "asked_divisors": "long"}.items()


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


def table(
    theta: np.ndarray,
    n: int = 2000,
    factor: float = 1.0,
    angle: Format = FP32,
    stored: str = "fp32",
    position: Format = FP32,
) -> tuple[np.ndarray, np.ndarray]:
    positions = round_to(np.arange(n, dtype=np.float64)[:, None], position).astype(np.float64)
    angles = round_to(positions * theta, angle).astype(np.float64)
    return cast(factor * np.cos(angles), stored), cast(factor * np.sin(angles), stored)


YARN_FACTOR = 0.1 * np.log(40) + 1
RIGHT = inv(PLAIN)
BASE = inv(RopeSetting.of(128, base=5e5))


@pytest.mark.parametrize(
    ("setting", "points", "code", "named"),
    [
        (PLAIN, table(RIGHT), "", {}),
        (PLAIN, table(RIGHT, 2), "", {}),
        (PLAIN, table(RIGHT, 20000), "", {}),
        (yarn(), table(inv(yarn()), factor=YARN_FACTOR), "", {}),
        (PLAIN, table(RIGHT, stored="bf16"), "narrow-table", {"table": "bfloat16"}),
        (PLAIN, table(RIGHT, 9000, stored="fp16"), "narrow-table", {"table": "float16"}),
        (PLAIN, table(cast(RIGHT, "bf16")), "narrow-frequencies", {"frequency": "bfloat16"}),
        (
            PLAIN,
            table(cast(RIGHT, "fp16"), stored="fp16"),
            "narrow-frequencies",
            {"frequency": "float16", "table": "float16"},
        ),
        (PLAIN, table(RIGHT, angle=BF16), "narrow-angles", {"angle": "bfloat16"}),
        (PLAIN, table(RIGHT, position=BF16), "narrow-positions", {"position": "bfloat16"}),
        (
            PLAIN,
            table(cast(RIGHT, "bf16"), position=BF16, angle=BF16, stored="bf16"),
            "narrow-positions",
            dict.fromkeys(("position", "frequency", "angle", "table"), "bfloat16"),
        ),
        (PLAIN, table(BASE), "wrong-base", {"base": 5e5, "asked": 1e6}),
        (PLAIN, table(BASE, 2), "wrong-base", {"base": 5e5, "asked": 1e6}),
        (
            PLAIN,
            table(BASE, 9000, stored="bf16"),
            "wrong-base+narrow-table",
            {"base": 5e5, "asked": 1e6, "table": "bfloat16"},
        ),
        (
            PLAIN,
            table(cast(BASE, "bf16")),
            "wrong-base+narrow-frequencies",
            {"base": 5e5, "asked": 1e6, "frequency": "bfloat16"},
        ),
        (yarn(), table(inv(yarn())), "attention-factor", {"seen": 1.0, "asked": pytest.approx(YARN_FACTOR)}),
        (
            yarn(),
            table(inv(yarn("false")), factor=YARN_FACTOR),
            "other-scaling",
            {"seen": YARN40.replace("true", "false")},
        ),
        (yarn(), table(inverted(yarn()), factor=YARN_FACTOR), "other-scaling", {"asked": YARN40}),
        (PLAIN, table(-RIGHT), "wrong-direction", {}),
        (PLAIN, table(RIGHT)[::-1], "cos-sin-swapped", {}),
        (PLAIN, tuple(part[1:] for part in table(RIGHT)), "positions-off", {"by": 1}),
        (PLAIN, tuple(np.nan * part for part in table(RIGHT)), "nonfinite", {}),
    ],
)
def test_a_wrong_table_is_explained(
    setting: RopeSetting,
    points: tuple[np.ndarray, np.ndarray],
    code: str,
    named: dict[str, float | str],
) -> None:
    result = check(Dump("x", "the cos/sin table", cos=points[0], sin=points[1]), setting)
    assert codes(result.diagnosis) == code, words(result)
    assert all(values_of(result.diagnosis)[name] == value for name, value in named.items())
    assert result.agrees is (not code)


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


@pytest.mark.parametrize("sides", [("cos", "sin"), ("cos",), ("sin",)])
@pytest.mark.parametrize(("rows", "held"), [((10, 11), (11, 10)), ((10, 11, 12), (12, 10, 11))])
def test_rows_that_are_exchanged_say_which_they_hold(
    sides: tuple[str, ...], rows: tuple[int, ...], held: tuple[int, ...]
) -> None:
    parts = dict(zip(("cos", "sin"), (part.copy() for part in table(RIGHT, 512)), strict=True))
    for side in sides:
        parts[side][list(rows)] = parts[side][list(held)]
    found = check(Dump("x", "the cos/sin table", cos=parts["cos"], sin=parts["sin"]), PLAIN)
    assert values_of(found.diagnosis).items() >= {"entries": rows, "holds": held}.items()
    text = words(found)
    assert f"which hold the values of rows {', '.join(map(str, held))}; by up to" in text, text
    assert "nothing that was tried" not in text


def test_a_row_that_another_overwrote_is_not_called_exchanged() -> None:
    cos, sin = (part.copy() for part in table(RIGHT, 512))
    cos[10], sin[10] = cos[11], sin[11]
    found = check(Dump("x", "the cos/sin table", cos=cos, sin=sin), PLAIN)
    assert "holds" not in values_of(found.diagnosis)
    assert "nothing that was tried explains" in words(found)


def test_where_one_position_alone_is_off_it_is_said() -> None:
    cos, sin = table(RIGHT, 512)
    sin[100, 7] *= -1
    found = check(Dump("x", "the cos/sin table", cos=cos, sin=sin), PLAIN)
    assert words(found).startswith("sin alone, position 100 alone: 1 of 64 pairs off: 7; by up to")
    assert "first at" not in words(found)
    sin[300, 7] *= -1
    found = check(Dump("x", "the cos/sin table", cos=cos, sin=sin), PLAIN)
    assert words(found).startswith("sin alone: 1 of 64 pairs off: 7; by up to")
    assert ", first at position 100," in words(found)


def test_nothing_is_said_of_cos_and_sin_where_angles_are_stored(tmp_path: object) -> None:
    angles = np.arange(512)[:, None] * RIGHT
    angles[100, 7] *= -1
    (one,) = module(npz(f"{tmp_path}/x.npz", angles=angles), base=1e6).buffers
    assert one.finding.startswith("position 100 alone: 1 of 64 pairs off: 7; by up to"), one.finding


def test_a_single_wrong_value_is_found_and_not_explained_away() -> None:
    cos, sin = table(RIGHT, 20000)
    cos[12345, 3] += 0.05
    result = check(Dump("x", "the cos/sin table", cos=cos, sin=sin), PLAIN)
    assert codes(result.diagnosis) == "entries-off"
    assert values_of(result.diagnosis).items() >= {"things": "pairs", "entries": (3,)}.items()
    assert "nothing that was tried explains" in words(result)
    assert [(row["pair"], row["first_position_off"]) for row in result.rows if row["off"] == "yes"] == [
        (3, 12345)
    ]
    assert [row["first_position_off"] for row in result.rows[:3]] == [None] * 3
    assert result.rows[3]["found"] == pytest.approx(result.rows[3]["theta"], rel=1e-6)


def stored(points: tuple[np.ndarray, np.ndarray]) -> Dump:
    return Dump("x", "the cos/sin table", cos=points[0], sin=points[1])


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


def test_no_hypothesis_is_named_that_explains_nothing() -> None:
    """Frequencies out of order, noise: nothing comes near, and the sentence says so and where it is worst."""
    values = inv(PLAIN) * np.random.default_rng(0).uniform(0.5, 1.5, 64)
    result = check(Dump("x", "inv_freq", frequencies=values), PLAIN)
    worst = max(result.rows, key=lambda row: abs(row["relative_error"]))
    assert f"(pair {worst['pair']}); nothing that was tried explains it, nor comes near." in words(result)
    assert result.diagnosis is None
    assert words(result).startswith("64 of 64 pairs are off, by up to 0.")


def test_what_comes_near_and_explains_nothing_is_named_with_what_it_leaves() -> None:
    """Another base, and noise of a ten-thousandth on it."""
    values = inv(RopeSetting.of(128, base=5e5)) * np.random.default_rng(0).uniform(0.9999, 1.0001, 64)
    found = check(Dump("x", "inv_freq", frequencies=values), PLAIN)
    assert found.diagnosis is not None
    assert (codes(found.diagnosis), found.diagnosis.certainty) == ("wrong-base", "resembles")
    nearest = "the nearest, which leaves 0.011 % of the error: base 500000 instead of 1000000."
    assert words(found).endswith(f"; nothing that was tried explains it; {nearest}")


def test_a_frequency_of_zero_is_judged_too() -> None:
    """Where the expected frequency is 0, nothing else agrees; 0 itself does."""
    setting = RopeSetting.of(64, scaling=scaling.parse("proportional:fraction=0.5"))
    values = inv(setting)
    assert against(values, setting).agrees
    values[20] = 1e-9
    text = words(against(values, setting))
    assert text.startswith("1 of 32 frequencies off: 20; by up to 1e-09 relative,"), text


# --- files


COS, SIN = (part.astype(np.float32) for part in table(RIGHT, 50))


def doubled(part: np.ndarray) -> np.ndarray:
    return np.concatenate([part, part], axis=1)


def npz(path: str, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return path


def saved(tmp: str, kind: str) -> str:
    """Write the right table in one of the forms that code dumps it in."""
    inv32, cis = RIGHT.astype(np.float32), COS + 1j * SIN
    layers = {f"model.layers.{i}.rotary_emb.inv_freq": torch.tensor(inv32) for i in range(3)}
    if kind.startswith("pt"):
        torch.save(
            {
                "pt-layers": layers,
                "pt-tensor": torch.tensor(inv32),
                "pt-cis": torch.tensor(cis),
                "pt-pair": (torch.tensor(COS), torch.tensor(SIN)),
            }[kind],
            f"{tmp}/x.pt",
        )
        return f"{tmp}/x.pt"
    if kind == "safetensors":
        save_file({"rotary.inv_freq": inv32, "weight": np.zeros(3, np.float32)}, f"{tmp}/x.safetensors")
        return f"{tmp}/x.safetensors"
    if kind.startswith("npy"):
        values = {"npy": inv32, "npy-cis": cis, "npy-side": np.concatenate([COS, SIN], axis=1)}[kind]
        np.save(f"{tmp}/x.npy", values)
        return f"{tmp}/x.npy"
    if kind == "two":
        np.save(f"{tmp}/c.npy", COS)
        np.save(f"{tmp}/s.npy", SIN)
        return f"{tmp}/c.npy,{tmp}/s.npy"
    return npz(
        f"{tmp}/x.npz",
        **{
            "npz": {"inv_freq": inv32, "other": np.zeros(2)},
            "npz-any": {"anything": inv32},
            "npz-halves": {"cos_cached": doubled(COS)[None, None], "sin_cached": doubled(SIN)[None, None]},
            "npz-side": {"cos": np.repeat(COS, 2, axis=1), "sin": np.repeat(SIN, 2, axis=1)},
            "npz-real": {"cache": np.stack([COS, SIN], axis=-1)},
        }[kind],
    )


KINDS = "npz npz-any npz-halves npz-side npz-real npy npy-cis npy-side two safetensors"
KINDS += " pt-layers pt-tensor pt-cis pt-pair"


@pytest.mark.parametrize("kind", KINDS.split())
def test_every_kind_of_file(tmp_path: object, kind: str) -> None:
    audit = module(saved(str(tmp_path), kind), base=1e6)
    assert len(audit.buffers) == {"npz-halves": 2, "npz-side": 2, "two": 2, "pt-layers": 3, "pt-pair": 2}.get(
        kind, 1
    )
    for one in audit.buffers:
        assert one.agrees, one.finding
        assert one.diagnosis is None
        assert one.table is not None
        assert len(one.table.rows) == 64


def test_a_dump_of_angles_and_one_of_sin_and_cos(tmp_path: object) -> None:
    """Kandinsky's angle tables, and GPT-J's embed_positions, whose sin stands first."""
    angles = np.arange(300)[:, None] * inv(PLAIN)
    for name, values, message in (
        ("args", angles, "the angle table agrees within float32 rounding"),
        ("args", cast(angles, "bf16"), "bfloat16 angles ("),
        ("embed_positions", np.hstack([np.sin(angles), np.cos(angles)]), "the cos/sin table agrees within"),
        ("anything", np.hstack([np.cos(angles), np.sin(angles)]), "the cos/sin table agrees within"),
    ):
        np.savez(f"{tmp_path}/x.npz", **{name: values.astype(np.float32)})
        (one,) = module(f"{tmp_path}/x.npz", base=1e6).buffers
        assert one.finding.startswith(message), one.finding


def test_bfloat16_files(tmp_path: object) -> None:
    values = RIGHT.astype(np.float32).astype(ml_dtypes.bfloat16)
    save_file({"inv_freq": values}, f"{tmp_path}/x.safetensors")
    torch.save({"inv_freq": torch.tensor(RIGHT).bfloat16()}, f"{tmp_path}/x.pt")
    np.savez(f"{tmp_path}/x.npz", inv_freq=values)
    for name in ("x.safetensors", "x.pt", "x.npz"):
        (one,) = module(f"{tmp_path}/{name}", base=1e6).buffers
        assert one.stored.values.tolist() == values.astype(np.float64).tolist()
        assert (one.cast, one.how) == ("bfloat16", "stored")
        assert codes(one.diagnosis) == "narrow-frequencies"


class Mine:
    """An object whose unpickling would write a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.zeros(3), "b": np.zeros(3)},
            r"no inv_freq, cos and sin, or freqs_cis; it holds a of shape \(3,\), b of shape \(3,\); give",
        ),
        ({"cos": COS}, r"cos of shape \(50, 64\) has no partner of that shape; give cos and sin"),
        (
            {"cos": COS, "sin": SIN[1:]},
            r"cos of shape \(50, 64\) has no partner of that shape; give cos and sin",
        ),
        ({"cos": COS[:1], "sin": SIN[:1]}, "for 2 positions at least"),
        ({"cos": COS[0], "sin": SIN[0]}, "for 2 positions at least"),
        ({"inv_freq": np.array(["a"])}, "holds <U1; give real numbers"),
        ({"inv_freq": np.zeros((2, 0))}, r"it holds inv_freq of shape \(2, 0\); give"),
        ({"inv_freq": np.ones(32)}, "inv_freq has shape 32 and head_dim 128 has 64 pairs; give what"),
        ({"inv_freq": np.arange(128.0)}, "inv_freq has shape 128 and head_dim 128 has 64 pairs; give what"),
        ({"freqs_cis": np.ones((4, 3))}, r"it holds freqs_cis of shape \(4, 3\); give .* side by side"),
        ({"inv_freq": RIGHT * 1j}, "for 2 positions at least"),
    ],
)
def test_files_that_hold_no_table(tmp_path: object, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        module(npz(f"{tmp_path}/x.npz", **arrays), base=1e6, head_dim=128)


@pytest.mark.parametrize(
    ("base", "dims", "fmt", "code"),
    [
        (1e4, 64, "fp32", "partial-rotation"),
        (1e4, 8, "fp32", "partial-rotation"),
        (1e4, 64, "bf16", "partial-rotation+narrow-frequencies"),
        (5e5, 64, "fp32", "partial-rotation+wrong-base"),
        (1e4, 128, "fp32", None),  # more than the head has
    ],
)
def test_a_table_of_other_dims_of_the_head_is_named(
    tmp_path: object, base: float, dims: int, fmt: str, code: str | None
) -> None:
    path = npz(f"{tmp_path}/x.npz", inv_freq=cast(inv(RopeSetting.of(dims, base=base)), fmt))
    given: dict[str, Any] = {"base": 1e4, "head_dim": 64, "rotary_dim": 16}
    if code is None:
        with pytest.raises(BadInput, match=r"rotary_dim 16 has 8 pairs; give"):
            module(path, **given)
        return
    (one,) = module(path, **given).buffers
    assert one.wrong
    assert codes(one.diagnosis) == code
    assert one.diagnosis is not None
    assert one.diagnosis.values == {"seen": dims, "asked": 16, "head_dim": 64}
    assert (one.error, one.drift_near) == (None, None)  # of no pair that is asked for
    assert one.finding.endswith(f"(inv_freq has {dims // 2} pairs).")


def test_a_table_of_other_dims_is_named_only_where_its_values_show_them(tmp_path: object) -> None:
    noise = npz(f"{tmp_path}/noise.npz", inv_freq=np.random.default_rng(0).uniform(0.1, 1, 32))
    part = npz(f"{tmp_path}/part.npz", inv_freq=inv(RopeSetting.of(32, base=1e4)))
    with pytest.raises(BadInput, match="has 8 pairs; give what belongs"):
        module(noise, base=1e4, head_dim=64, rotary_dim=16)
    with pytest.raises(BadInput, match="has 32 pairs; give what belongs"):  # nothing asks for a part of them
        module(part, base=1e4, head_dim=64)


def test_layers_that_differ_are_judged_one_by_one(tmp_path: object) -> None:
    path = npz(f"{tmp_path}/x.npz", **{"a.inv_freq": RIGHT, "b.inv_freq": BASE})
    right, wrong = module(path, base=1e6).buffers
    assert (right.agrees, wrong.agrees) == (True, False)
    assert codes(wrong.diagnosis) == "wrong-base"


def test_a_tensor_that_is_alone_needs_no_name(tmp_path: object) -> None:
    """Neither its name nor its values tell what it is."""
    values = RIGHT * np.random.default_rng(0).uniform(0.5, 1.5, 64)
    np.save(f"{tmp_path}/x.npy", values)
    save_file({"x": values}, f"{tmp_path}/x.safetensors")
    for name in ("x.npy", "x.safetensors"):
        (one,) = module(f"{tmp_path}/{name}", base=1e6).buffers
        assert "nothing that was tried explains it, nor comes near." in one.finding


def test_files_that_cannot_be_read(tmp_path: object) -> None:
    for name, content in (
        ("e.npz", b""),
        ("d.npz", b"PK\x03\x04garbage"),
        ("d.pt", b"\x80\x04junk."),
        ("d.safetensors", b"\xff" * 30),
        ("d.npy", b"\x93NUMPY"),
        ("d.xyz", b"1"),
    ):
        with open(f"{tmp_path}/{name}", "wb") as file:
            file.write(content)
        with pytest.raises(BadInput, match=rf"^'{tmp_path}/{name}': "):
            module(f"{tmp_path}/{name}")
    torch.save({"inv_freq": Mine(f"{tmp_path}/made")}, f"{tmp_path}/m.pt")
    np.save(f"{tmp_path}/o.npy", np.array([Mine(f"{tmp_path}/made")], dtype=object), allow_pickle=True)
    for name in ("m.pt", "o.npy", "missing.npz", "a\0b.npz", ""):
        with pytest.raises(BadInput, match=rf"^'{tmp_path}/[^']*': "):
            module(f"{tmp_path}/{name}")
    three = ",".join(f"{tmp_path}/{name}.npy" for name in "abc")
    with pytest.raises(BadInput, match=r"names 3 files; give one, or cos\.npy,sin\.npy"):
        module(three)
    assert not Path(f"{tmp_path}/made").exists()


def test_casts_that_change_nothing_are_no_hypotheses() -> None:
    cos, sin = table(RIGHT, stored="bf16")
    result = check(Dump("x", "the cos/sin table", cos=cos, sin=sin), PLAIN)
    assert [sentence(one.diagnosis) for one in result.hypotheses if one.explains] == ["bfloat16 table"]


def test_the_command_checks_a_dump(tmp_path: object, capsys) -> None:
    path = f"{tmp_path}/x.npz"
    np.savez(path, inv_freq=RIGHT)
    line = ["module", path, "--base", "1e6"]
    assert "1 of 1 RoPE table within float32 rounding" in ran(capsys, line).out
    shown = ran(capsys, [*line, "-v"]).out
    assert len([row for row in shown.splitlines() if row.startswith(("   0 ", "  63 "))]) == 2
    np.savez(path, inv_freq=BASE)
    shown = ran(capsys, [*line, "-f", "json", "-o", f"{tmp_path}/x.csv"], 1)
    result = json.loads(shown.out)
    assert result["headline"].endswith("1 of 1 RoPE table off (wrong-base)")
    assert result["records"][0]["agrees"] == "no"
    assert result["records"][0]["diagnosis"] == "wrong-base"
    assert result["hypotheses"][0]["explains"] is True
    assert result["hypotheses"][0]["diagnosis"] == "wrong-base"
    assert [row["pair"] for row in result["pairs"]] == list(range(64))
    with open(f"{tmp_path}/x.csv") as file:
        assert len(file.readlines()) == 2
    assert "assumed         base 500000, from the values" in ran(capsys, line[:2]).out
