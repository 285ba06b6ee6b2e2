"""Explain: shares against brute force, planted faults, remedies, where the drift sits, the command."""

import itertools
import math
import random
import re

import numpy as np
import pytest
from command_line import ran

import ropeaudit
from ropeaudit import parse, report, shift
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs import qk
from ropeaudit.recipes import all_recipes, named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

TINY = {"heads": 1, "seq_len": 20, "head_dim": 64}
SMALL = ["--heads", "2", "--seq-len", "40"]
FAULTS = {"position": "bf16", "frequency": "fp32/bf16", "table": "fp16", "score": "bf16"}


def explain(*arguments, **more):
    """The only explanation that a call yields."""
    (result,) = ropeaudit.explain(*arguments, **more)
    return result


def tenth(offset, dtype, recipe, **more):
    """A recipe explained down to a tenth of its drift."""
    (record,) = shift(offset, dtype, recipe, **more)
    return explain(offset, dtype, recipe, tolerance=("drift_rms", 0.1 * record.drift_rms), **more)


def told(results):
    """The answers on some explanations."""
    return report(list(results), metadata={}).answers


def rows(one, kind: str) -> list[dict]:
    return report([one], metadata={}, by=kind).rows


def total(results, kind: str) -> float:
    return sum(row["share"] for row in rows(results, kind))


def drift_of(some) -> float:
    """Mean square drift of a float64 recipe with some of FAULTS, from the public audit."""
    changes = {stage: FAULTS[stage] for stage in sorted(some)}
    (record,) = shift(1000, "fp64", "uniform", changes=changes, **TINY)
    return record.drift_rms**2


def test_shares_are_those_of_all_orders_by_brute_force() -> None:
    values = {
        frozenset(some): drift_of(some) for size in range(5) for some in itertools.combinations(FAULTS, size)
    }
    gained = dict.fromkeys(FAULTS, 0.0)
    for order in itertools.permutations(FAULTS):
        for count, stage in enumerate(order):
            gained[stage] += values[frozenset(order[: count + 1])] - values[frozenset(order[:count])]
    result = explain(1000, "fp64", "uniform", changes=FAULTS, **TINY)
    whole = values[frozenset(FAULTS)]
    assert result.drift.rms**2 == pytest.approx(whole, rel=1e-9)
    by_stage = {one.stage: one for one in result.blames}
    for stage in FAULTS:
        one = by_stage[stage]
        assert one.share == pytest.approx(gained[stage] / 24 / whole, rel=1e-3, abs=1e-6)
        assert one.alone**2 == pytest.approx(values[frozenset([stage])], rel=1e-6)
        assert one.without**2 == pytest.approx(values[frozenset(FAULTS) - {stage}], rel=1e-6)
        assert one.removed == pytest.approx(1 - one.without / result.drift.rms)
    assert {s for s, one in by_stage.items() if one.share == 0} == set(by_stage) - set(FAULTS)


def test_drifts_are_those_of_shift_and_shares_sum_to_the_whole() -> None:
    places = ("bf16", 0), ("fp32", 32768), ("fp16", 1000)
    every = [(recipe, *at, TINY) for recipe in ("hf", "llamacpp-cpu", "te-fused") for at in places]
    settings = (
        {"clip": 100.0},
        {"scaling": "yarn:factor=4,original=4096"},
        {"scaling": "dynamic:factor=2,maximum=1024", "length": "shifted"},
        {"mrope": "8,12,12", "axis": "h"},
        {"rotary_dim": 0},
        {"kv_heads": 1, "mask": "full"},
        {"qk": "ones"},
        *({"heads": 12, "kv_heads": 3, "seq_len": 500, "mask": mask} for mask in ("window:8", "full")),
    )
    small = {"heads": 2, "seq_len": 10, "head_dim": 64}
    every += [("hf", "bf16", 2000, small | case) for case in settings]
    wrong = []
    for recipe, dtype, offset, case in every:
        result = explain(offset, dtype, recipe, **case)
        (record,) = shift(offset, dtype, recipe, **case)
        shares = total(result, "stage"), total(result, "pair")
        own = result.drift.rms, result.reference.rms
        same = own == (record.drift_rms, record.reference_rms)
        if not same or shares != pytest.approx((1.0, 1.0), abs=0.01):
            wrong.append((recipe, dtype, offset, case, shares, result, record))
    assert not wrong


def test_a_planted_fault_is_found_and_is_the_remedy() -> None:
    """Far out float32 angles drift as much as some faults, which there stand beside float64 angles."""
    wide = {"frequency": "fp64", "angle": "fp64"}
    planted = (
        ("position", "bf16", "aliasing", {32768: {}}),
        ("angle", "bf16", "sensitivity", {0: {}, 32768: {}}),
        ("angle", "tf32/fp32", "sensitivity", {0: {}, 32768: {}}),
        ("frequency", "fp32/bf16", "sensitivity", {1000: {}, 32768: {"angle": "fp64"}}),
        ("table", "fp16", "quantisation", {0: {}, 1000: {}, 32768: wide}),
        ("accumulate", "fp16", "quantisation", {0: {}, 1000: {}, 32768: wide}),
    )
    wrong = []
    for (stage, fmt, cause, others), recipe in itertools.product(planted, ("uniform", "hf")):
        for offset, beside in others.items():
            result = tenth(offset, "fp32", recipe, changes=beside | {stage: fmt}, **TINY)
            worst = result.blames[0]
            right = (worst.stage, worst.cause, result.remedy.widths) == (stage, cause, {stage: FP32})
            if not (right and worst.share > 0.95 and len(result.remedies) == 1):
                wrong.append((stage, fmt, offset, recipe, result))
    assert not wrong
    for changes, bits in ({"table": "fp16"}, 0), ({"angle": "tf32/fp32"}, 32):
        remedy = tenth(1000, "fp32", "hf", changes=changes, **TINY).remedy
        assert (remedy.table_bytes, remedy.multiply_bits) == (1020 * 32 * 2 * 4, bits)
    mixed = tenth(32768, "fp32", "uniform", changes={"table": "fp16"}, heads=1, seq_len=32)
    assert set(mixed.remedy.widths) == {"angle", "table"}


def test_terms_that_cancel_are_told_from_terms_that_do_not(tmp_path) -> None:
    q, k = np.random.default_rng(2).standard_normal((2, 1, 12, 64)).astype(np.float16)
    results = []
    for size in (0, 1):  # of a bias that is not rotated
        q[..., 48:] += np.float16(8 * size)
        k[..., 48:] += size * np.repeat([8.0, -8.0], 8).astype(np.float16)
        path = str(tmp_path / f"{size}.npz")
        np.savez(path, q=q, k=k)
        results.append(explain(0, "fp16", "hf", changes={"accumulate": "fp16"}, qk=path, rotary_dim=32))
    causes = [{one.stage: one.cause for one in result.blames}["accumulate"] for result in results]
    assert causes == ["quantisation", "cancellation"]
    terms = np.abs(q[0].astype(float)) @ np.abs(k[0].astype(float).T) / 8  # most are of the bias
    seen = np.sqrt((terms[np.tril_indices(12)] ** 2).mean()) / results[1].reference.rms
    assert results[1].cancelling == pytest.approx(seen, rel=0.05)


def test_overflow_names_the_first_stage_and_what_repairs_it(capsys) -> None:
    result = explain(131072, "fp16", "uniform", **TINY)
    assert (result.nonfinite.first, result.nonfinite.repaired_by) == ("position", ())
    assert (result.blames[0].stage, result.blames[0].cause) == ("position", "overflow")
    assert all(math.isnan(one.share) for one in result.blames)
    assert set(result.remedy.widths) == {"position", "angle"}
    result = explain(131072, "fp32", "hf", changes={"position": "fp16"}, **TINY)
    assert (result.nonfinite.first, result.nonfinite.repaired_by) == ("position", ("position",))
    result = explain(131072, "fp32", "hf", changes={"angle": "fp16"}, **TINY)
    assert (result.nonfinite.first, set(result.remedy.widths)) == ("angle", {"angle"})
    said = ran(capsys, ["explain", "--recipe", "uniform", "--dtype", "fp16", "--offset", "128k", *SMALL]).out
    assert "error[nonfinite]: overflow, first where the stage position is in float16" in said
    assert "fix: --set position=fp32,angle=fp32 " in said


def test_inputs_that_overflow_are_named(tmp_path, capsys) -> None:
    x = 1e5 * np.ones((1, 40, 64))
    np.savez(tmp_path / "big.npz", q=x, k=x / 1e5)
    options = ["--qk", tmp_path / "big.npz", "--dtype", "fp16", "--recipe", "hf", "--offset", "1000"]
    seen = ran(capsys, ["explain", *options])
    assert "error[nonfinite]: overflow, first where q and k are stored in float16" in seen.out
    assert within(capsys, options, seen.out)


def fixes(text: str) -> list[str]:
    """What an answer says to give to --set."""
    return re.findall(r"fix: --set (\S+) ", text)


def within(capsys, options, text: str) -> bool:
    """Whether the fix of an answer, or the recipe as it is where it has none, passes `shift`."""
    changes = [word for fix in fixes(text) for word in ("--set", fix)]
    (row,) = ran(capsys, ["shift", *options, *changes, "-f", "json"]).json["records"]
    return row["within_tolerance"]


def random_options(seed: int) -> list[str]:
    """A random recipe, dtype, offset and setting."""
    drawn = random.Random(seed)
    recipes = [one.name for one in all_recipes() if not one.refused]
    settings = [
        *("--model llama-3.1-8b", "--model qwen2.5-7b"),
        *("--model gemma-2-9b", "--model phi-3-vision-128k"),
        "--head-dim 64 --scaling linear:factor=4",
        "--head-dim 64 --scaling yarn:factor=4,original=4096",
        "--head-dim 64 --scaling dynamic:factor=2,maximum=4096",
        "--head-dim 64 --scaling llama3:factor=8,low=1,high=4,original=8192",
        *("--rotary-dim 32", "--layout interleaved", "--clip 100", "--base 5e5"),
    ]
    options = {
        "--recipe": [*recipes, *["uniform"] * 10],
        "--dtype": ["bf16", "fp16", "bf16", "fp16", "fp32", "fp8_e4m3"],
        "--offset": ["0", "1000", "32768", "131072", "1000003", "2^24"],
        "--heads": ["2", "4"],
        "--seq-len": ["32", "200", "300"],
        "--mask": ["causal", "full", "window:16"],
        "--seed": [str(seed)],
    }
    words = [word for name, values in options.items() for word in (name, drawn.choice(values))]
    return [*words, *drawn.choice(settings).split()]


@pytest.mark.parametrize(
    "seeds", [range(6, 12), pytest.param(range(60), marks=pytest.mark.slow)], ids=["few", "60"]
)
def test_a_remedy_passes_shift_and_none_is_named_where_none_is_needed(seeds, capsys) -> None:
    wrong, remedies = [], 0
    for options in map(random_options, seeds):
        said = ran(capsys, ["explain", *options]).out
        good, passes = said.startswith("OK "), within(capsys, options, said)
        as_it_is = within(capsys, options, "")
        remedies += len(fixes(said))
        none = "fix: none: no set of stages is within" in said
        if good != as_it_is or bool(fixes(said)) == (good or none) or passes == none:
            wrong.append((options, said))
    assert not wrong
    assert remedies >= len(seeds) // 4 - 1


def test_no_smaller_set_meets_the_tolerance() -> None:
    bound = 0.0025
    result = explain(1000, "bf16", "hf", tolerance=("drift_rms", bound), **TINY)
    assert result.remedy.drift.rms <= bound
    assert [one.meets for one in result.remedies] == [False] * (len(result.remedies) - 1) + [True]
    stages = [one.stage for one in result.blames]
    for some in itertools.combinations(stages, len(result.remedy.widths) - 1):
        (record,) = shift(1000, "bf16", "hf", changes=dict.fromkeys(some, "fp64"), **TINY)
        assert record.drift_rms > bound


def test_tolerances_of_every_kind(capsys) -> None:
    loose = explain(1000, "bf16", "hf", tolerance=("drift_max", 1.0), **TINY)
    assert [dict(one.widths) for one in loose.remedies] == [{}]
    assert loose.good
    relative = explain(1000, "bf16", "uniform", tolerance=("drift_relative", 0.2), **TINY)
    assert relative.remedy.drift.rms <= 0.2 * relative.reference.rms
    never = explain(1000, "bf16", "hf", tolerance=("drift_rms", 1e-30), **TINY)
    assert never.remedy is None
    assert {fmt.name for fmt in never.remedies[-1].widths.values()} == {"float64"}
    wide = explain(0, "bf16", "hf", tolerance=("drift_rms", 1e-9), **TINY)
    assert "float64" in {fmt.name for fmt in wide.remedy.widths.values()}
    said = ran(capsys, ["explain", "--tolerance", "drift_rms=1e-30", "--offset", "1000", *SMALL]).out
    assert "error[narrow-rotation]: no stages in wider formats are enough" in said
    assert "fix: none: no set of stages is within drift_rms <= 1e-30; " in said


def test_rounded_vectors_are_not_blamed_on_a_float32_accumulator() -> None:
    """The accumulator alone drifts as float32 sums do, of which another order gives another error."""
    by_stage = {one.stage: one for one in explain(0, "fp32", "hf", **TINY).blames}
    changes = {"accumulate": "fp32", "score": "fp64"}
    (sums,) = shift(0, "fp64", "uniform", changes=changes, **TINY)
    assert 0.3 < by_stage["accumulate"].alone / sums.drift_rms < 2


def test_float64_has_no_wider_remedy() -> None:
    result = explain(1000, "fp64", "uniform", **TINY)
    assert {one.share for one in result.blames[:-1]} == {0.0}
    assert (result.blames[-1].stage, result.blames[-1].share) == ("float64", pytest.approx(1.0))
    assert result.drift.rms > result.error  # the extended reference sees it
    (answer,) = told([result])
    assert answer.status == "OK"
    assert dict(answer.facts)["100 %"] == "left with every stage in float64: no wider format here"


@pytest.mark.parametrize(
    ("layout", "rotary_dim", "mask"), [("half", 64, "causal"), ("interleaved", 32, "full")]
)
def test_pairs_are_those_of_complex_arithmetic(layout, rotary_dim, mask) -> None:
    """Each pair's part: subject's turned pair against scale·Re(q conj(k) e^{j(m-n)θ}), in complex float64."""
    setting = RopeSetting.of(64, rotary_dim, layout=layout)
    some = qk.make("gaussian", 1, 1, 24, RopeSetting.of(64), 0)
    subject = Emulated(named("hf").resolve(parse("bf16")), setting)
    rotated = [
        subject.rotate(round_to(x[0], subject.input), subject.table(np.arange(24), 77)).astype(float)
        for x in (some.q, some.k)
    ]
    seen = np.tril(np.ones((24, 24))) if mask == "causal" else np.ones((24, 24))
    distance = np.arange(24)[:, None] - np.arange(24)[None, :]
    pairs = setting.pairs
    result = explain(
        77, "bf16", "hf", heads=1, seq_len=24, head_dim=64, rotary_dim=rotary_dim, layout=layout, mask=mask
    )
    listed = rows(result, "pair")
    assert len(listed) == pairs + 1
    for i in (0, 3, pairs - 1):
        a, b = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        own = [x[:, a] + 1j * x[:, b] for x in rotated]
        q, k = (x[0][:, a] + 1j * x[0][:, b] for x in (some.q, some.k))
        theta = 10000.0 ** (-2 * i / rotary_dim)
        exact = (q[:, None] * k.conj()[None, :] * np.exp(1j * distance * theta)).real
        part = ((own[0][:, None] * own[1].conj()[None, :]).real - exact) * setting.scale * seen
        assert listed[i]["part_rms"] == pytest.approx(np.sqrt((part**2).sum() / seen.sum()), rel=1e-6)
        assert listed[i]["wavelength"] == pytest.approx(2 * np.pi / theta, rel=1e-12)
        assert listed[i]["q_norm"] == pytest.approx(np.abs(q).mean())
        assert listed[i]["k_norm"] == pytest.approx(np.abs(k).mean())


def test_shares_of_a_long_sequence_are_those_of_a_sample_and_said_so() -> None:
    result = explain(1000, "bf16", "hf", heads=12, kv_heads=3, seq_len=500, head_dim=64)
    assert (len(result.sample.heads), result.sample.positions.size) == (8, 128)
    (answer,) = told([result])
    assert dict(answer.facts)["measured with"].endswith("; shares of 128 tokens, 8 heads")


def test_there_is_an_answer_for_each_recipe_and_dtype_at_its_worst_offset(capsys) -> None:
    command = ["explain", "--recipe", "hf,uniform", "--dtype", "fp16,bf16", "--head-dim", "32", *SMALL]
    lines = ran(capsys, [*command, "-q"]).out.splitlines()
    begun = [" ".join(line.split()[:6]) for line in lines]
    assert begun == [
        "OK hf fp16, offset 131,072: scores",
        "OK hf bf16, offset 131,072: scores",
        "FAIL uniform fp16, offset 131,072: scores",
        "FAIL uniform bf16, offset 131,072: scores",
    ]
    whole = ran(capsys, [*command, "-f", "json"]).json
    assert {row["offset"] for row in whole["records"]} == {0, 131072}
    of_model = ["explain", "--model", "llama-2-7b", "--recipe", "hf", *SMALL]
    assert {row["offset"] for row in ran(capsys, [*of_model, "-f", "json"]).json["records"]} == {0, 4096}
    said = ran(capsys, of_model).out
    assert "offset 0        scores 0." in said
    assert "is past" not in said
