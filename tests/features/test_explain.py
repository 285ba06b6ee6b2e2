"""Explain: shares against brute force, planted faults, remedies, where the drift sits, the command."""

import itertools
import math

import numpy as np
import pytest
from command_line import ran

import ropeaudit
from ropeaudit import parse, report, shift
from ropeaudit.arithmetic.formats import FP32, FP64
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import variants
from ropeaudit.features.explain import blames
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated


def explain(*arguments, **more):
    """The only explanation that a call yields."""
    (result,) = ropeaudit.explain(*arguments, **more)
    return result


TINY = {"heads": 1, "seq_len": 20, "head_dim": 64}
SMALL = ["--heads", "2", "--seq-len", "40"]
FAULTS = {"position": "bf16", "frequency": "fp32/bf16", "table": "fp16", "score": "bf16"}


def told(results):
    """The answer on some explanations."""
    (answer,) = report(list(results), metadata={}).answers
    return answer


def facts(answer) -> dict[str, str]:
    return dict(answer.facts)


def names(results) -> set[str]:
    return set(results.remedy.widths) if results.remedy else set()


def rows(one, kind: str) -> list[dict]:
    return report([one], metadata={}, by=kind).rows


def total(results, kind: str) -> float:
    return sum(row["share"] for row in rows(results, kind))


def drift_of(some, offset=1000, **case) -> float:
    """Mean square drift of a float64 recipe with some of FAULTS, from the public audit."""
    changes = {stage: FAULTS[stage] for stage in sorted(some)}
    (record,) = shift(offset, "fp64", "uniform", changes=changes, **(TINY | case))
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
        assert one.share == pytest.approx(gained[stage] / 24 / whole, rel=1e-6, abs=1e-12)
        assert one.alone**2 == pytest.approx(values[frozenset([stage])], rel=1e-6)
        assert one.without**2 == pytest.approx(values[frozenset(FAULTS) - {stage}], rel=1e-6)
        assert one.removed == pytest.approx(1 - one.without / result.drift.rms)
    assert {s for s, one in by_stage.items() if one.share == 0} == set(blames.SHARED) - set(FAULTS)


@pytest.mark.parametrize("recipe", ["hf", "llamacpp-cpu", "te-fused"])
@pytest.mark.parametrize(("dtype", "offset"), [("bf16", 0), ("fp32", 32768), ("fp16", 1000)])
def test_shares_sum_to_the_whole(recipe, dtype, offset) -> None:
    result = explain(offset, dtype, recipe, **TINY)
    for kind in ("stage", "pair"):
        assert total(result, kind) == pytest.approx(1.0, abs=0.01), kind
    (record,) = shift(offset, dtype, recipe, **TINY)
    assert result.drift.rms == pytest.approx(record.drift_rms, rel=1e-4)
    assert result.reference.rms == pytest.approx(record.reference_rms, rel=1e-12)


@pytest.mark.parametrize(("recipe", "head_dim"), [("uniform", 64), ("hf", 128)])
@pytest.mark.parametrize(
    ("stage", "fmt", "offset", "cause"),
    [
        ("position", "bf16", 32768, "aliasing"),
        ("angle", "bf16", 0, "sensitivity"),
        ("angle", "bf16", 32768, "sensitivity"),
        ("frequency", "fp32/bf16", 1000, "sensitivity"),
        ("table", "fp16", 0, "quantisation"),
        ("table", "fp16", 1000, "quantisation"),
        ("angle", "tf32/fp32", 0, "sensitivity"),
        ("angle", "tf32/fp32", 32768, "sensitivity"),
        ("accumulate", "fp16", 0, "quantisation"),
        ("accumulate", "fp16", 1000, "quantisation"),
    ],
)
def test_a_planted_fault_is_found_and_is_the_remedy(stage, fmt, offset, cause, head_dim, recipe) -> None:
    case = {"heads": 1, "seq_len": 32, "head_dim": head_dim}
    result = explain(offset, "fp32", recipe, changes={stage: fmt}, **case)
    assert (result.blames[0].stage, result.blames[0].cause) == (stage, cause)
    assert result.blames[0].share > 0.95
    assert result.remedy.widths == {stage: FP32}
    assert len(result.remedies) == 1
    assert total(result, "stage") == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("stage", "fmt"), [("table", "fp16"), ("accumulate", "fp16"), ("frequency", "fp32/bf16")]
)
def test_a_planted_fault_is_found_far_out_where_angles_are_float64(stage, fmt) -> None:
    """At 32768 angles in float32 drift as much as these faults, which are then no remedy alone."""
    changes = {"frequency": "fp64", "angle": "fp64", stage: fmt}
    case = {"heads": 1, "seq_len": 16, "head_dim": 64}
    result = explain(32768, "fp32", "uniform", changes=changes, **case)
    assert result.blames[0].stage == stage
    assert result.remedy.widths == {stage: FP32}
    mixed = explain(32768, "fp32", "uniform", changes={"table": "fp16"}, heads=1, seq_len=32)
    assert names(mixed) == {"angle", "table"}


def test_terms_that_cancel_are_told_from_terms_that_do_not(tmp_path) -> None:
    generator = np.random.default_rng(2)
    q, k = generator.standard_normal((2, 1, 12, 64)).astype(np.float16)
    bias = np.repeat([8.0, -8.0], 8).astype(np.float16)
    causes = {}
    for name, large in (("small", 0.0), ("large", 1.0)):
        k_one = k.copy()
        q_one = q.copy()
        q_one[..., 48:] += 8 * np.float16(large)
        k_one[..., 48:] += bias * np.float16(large)
        np.savez(tmp_path / f"{name}.npz", q=q_one, k=k_one)
        path = str(tmp_path / f"{name}.npz")
        result = explain(0, "fp16", "hf", changes={"accumulate": "fp16"}, qk=path, rotary_dim=32)
        causes[name] = {one.stage: one.cause for one in result.blames}["accumulate"]
        own = np.abs(q_one.astype(float)) @ np.abs(k_one[0].astype(float).T) / 8
        if (
            large
        ):  # the bias is not rotated and dominates: the sums of |terms| are nearly those of plain q and k
            seen = np.sqrt((own[0][np.tril_indices(12)] ** 2).mean()) / result.reference.rms
            assert result.cancelling == pytest.approx(seen, rel=0.05)
    assert causes == {"small": "quantisation", "large": "cancellation"}


def test_overflow_names_the_first_stage_and_what_repairs_it(capsys) -> None:
    result = explain(131072, "fp16", "uniform", **TINY)
    assert (result.nonfinite.first, result.nonfinite.repaired_by) == ("position", ())
    assert (result.blames[0].stage, result.blames[0].cause) == ("position", "overflow")
    assert all(math.isnan(one.share) for one in result.blames)
    assert names(result) == {"position", "angle"}
    assert not result.remedy.drift.nonfinite
    assert result.remedies[0].drift.nonfinite
    result = explain(131072, "fp32", "hf", changes={"position": "fp16"}, **TINY)
    assert (result.nonfinite.first, result.nonfinite.repaired_by) == ("position", ("position",))
    result = explain(131072, "fp32", "hf", changes={"angle": "fp16"}, **TINY)
    assert (result.nonfinite.first, names(result)) == ("angle", {"angle"})
    assert main(["explain", "--recipe", "uniform", "--dtype", "fp16", "--offset", "128k", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "error[nonfinite]: overflow" in said
    assert "fix: --set position=fp32,angle=fp32 " in said


def test_inputs_that_overflow_are_named(tmp_path, capsys) -> None:
    x = 1e5 * np.ones((1, 4, 64))
    np.savez(tmp_path / "big.npz", q=x, k=x / 1e5)
    command = ["explain", "--qk", f"{tmp_path / 'big.npz'}", "--dtype", "fp16", "--recipe", "hf"]
    seen = ran(capsys, command)
    assert "error[nonfinite]: overflow, first where q and k are stored in float16" in seen.out
    assert "fix: --set input=fp32" in seen.out


def test_a_remedy_works_when_it_is_set() -> None:
    for dtype, recipe, offset in (
        ("bf16", "hf", 131072),
        ("bf16", "uniform", 1000),
        ("fp16", "uniform", 4096),
    ):
        result = explain(offset, dtype, recipe, **TINY)
        assert result.remedy.drift.rms <= 0.1 * result.drift.rms
        for row in rows(result, "remedy"):
            changes = dict(item.split("=") for item in row["set"].split(","))
            (record,) = shift(offset, dtype, recipe, changes=changes, **TINY)
            assert record.drift_rms == pytest.approx(row["left_rms"], rel=1e-3)
            assert record.drift_relative == pytest.approx(row["left_relative"], rel=1e-3)
            assert len(changes) == row["size"]


def test_no_smaller_set_meets_the_tolerance() -> None:
    bound = 0.0025
    result = explain(1000, "bf16", "hf", tolerance=("drift_rms", bound), **TINY)
    assert result.remedy.drift.rms <= bound
    assert [len(one.widths) for one in result.remedies] == list(range(1, len(result.remedies) + 1))
    assert [one.meets for one in result.remedies] == [False] * (len(result.remedies) - 1) + [True]
    stages = [one.stage for one in result.blames]
    for some in itertools.combinations(stages, len(result.remedy.widths) - 1):
        (record,) = shift(1000, "bf16", "hf", changes=dict.fromkeys(some, "fp64"), **TINY)
        assert record.drift_rms > bound


def test_tolerances_of_every_kind() -> None:
    loose = explain(1000, "bf16", "hf", tolerance=("drift_max", 1.0), **TINY)
    assert [dict(one.widths) for one in loose.remedies] == [{}]
    relative = explain(1000, "bf16", "uniform", tolerance=("drift_relative", 0.2), **TINY)
    assert relative.remedy.drift.rms <= 0.2 * relative.reference.rms
    never = explain(1000, "bf16", "hf", tolerance=("drift_rms", 1e-30), **TINY)
    assert never.remedy is None
    assert len(never.remedies) == 8  # positions are exact at 1000 in float32
    wide = explain(0, "bf16", "hf", tolerance=("drift_rms", 1e-9), **TINY)
    assert FP64 in wide.remedy.widths.values()


def summed(q, k, subject):
    return variants.summed(q, k, subject, lambda: q @ k.T)


def test_rounded_vectors_are_not_blamed_on_a_float32_accumulator() -> None:
    setting = RopeSetting.of(64)
    subject = Emulated(named("fp64-angles").changed({"accumulate": "fp32"}).resolve(FP64), setting)
    q, k = np.zeros((1, 64)), np.ones((1, 64))
    q[0, 0] = 1 + 2.0**-40  # float32 does not hold it, but there is nothing to add up
    assert summed(q, k, subject)[0, 0] == q[0, 0]
    q, k = np.random.default_rng(3).standard_normal((2, 50, 64))
    own = np.zeros((50, 50), np.float32)
    for a, b in zip(q.astype(np.float32).T, k.astype(np.float32).T, strict=True):
        own += np.outer(a, b)
    one_by_one = own - q.astype(np.float32).astype(float) @ k.astype(np.float32).astype(float).T
    error = summed(q, k, subject) - q @ k.T
    assert 0.1 < np.std(error) / np.std(one_by_one) < 2  # of the size of float32 sums, in another order
    single = q.astype(np.float32).astype(float), k.astype(np.float32).astype(float)
    assert np.array_equal(summed(*single, subject), q.astype(np.float32) @ k.astype(np.float32).T)


def test_costs() -> None:
    for changes, bits in ({"table": "fp16"}, 0), ({"angle": "tf32/fp32"}, 32):
        remedy = explain(1000, "fp32", "hf", changes=changes, **TINY).remedy
        assert (remedy.table_bytes, remedy.multiply_bits) == (1020 * 32 * 2 * 4, bits)


def test_float64_has_no_wider_remedy() -> None:
    result = explain(1000, "fp64", "uniform", **TINY)
    assert [one.share for one in result.blames[:-1]] == [0.0] * len(blames.SHARED)
    assert (result.blames[-1].stage, result.blames[-1].share) == ("float64", pytest.approx(1.0))
    assert result.drift.rms > result.error  # the extended reference sees it
    assert (result.remedies, result.remedy) == ((), None)
    answer = told([result])
    assert answer.status == "OK"
    assert facts(answer)["100 %"] == "left with every stage in float64: no wider format here"


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


def test_a_long_sequence_is_sampled_and_said_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(variants, "_BUDGET", 2e7)
    result = explain(1000, "bf16", "hf", heads=8, kv_heads=2, seq_len=1000, head_dim=64)
    assert result.sample.positions[0] == 0
    assert result.sample.positions[-1] == 999
    assert result.sample.positions.size < 256
    assert 1 <= len(result.sample.heads) < 8
    (record,) = shift(1000, "bf16", "hf", heads=8, kv_heads=2, seq_len=1000, head_dim=64)
    assert result.drift.rms == pytest.approx(record.drift_rms, rel=0.1)
    assert main(["explain", "--seq-len", "600", "--heads", "3", "--head-dim", "64", "--recipe", "hf"]) == 0
    assert "of 600 positions; other q and k" in capsys.readouterr().out


def test_other_settings_run() -> None:
    for case in (
        {"clip": 100.0},
        {"scaling": "yarn:factor=4,original=4096"},
        {"mrope": "8,12,12", "axis": "h"},
        {"rotary_dim": 0},
        {"kv_heads": 1, "mask": "full"},
        {"qk": "ones"},
    ):
        result = explain(2000, "bf16", "hf", **({"heads": 2, "seq_len": 10, "head_dim": 64} | case))
        (record,) = shift(2000, "bf16", "hf", **({"heads": 2, "seq_len": 10, "head_dim": 64} | case))
        assert result.drift.rms == pytest.approx(record.drift_rms, rel=1e-3), case
        assert total(result, "stage") == pytest.approx(1.0, abs=0.01)
        assert total(result, "pair") == pytest.approx(1.0, abs=0.01)


def test_the_worst_case_is_one_that_needs_a_change_where_there_is_one() -> None:
    """Both are within 1 %; of a bound between them one alone is."""
    sizes = {"heads": 2, "seq_len": 32}
    both = list(ropeaudit.explain(131072, ["fp16", "bf16"], "hf", **sizes))
    assert [one.recipe.dtype.short for one in both] == ["fp16", "bf16"]
    assert told(both).decides.startswith("bf16, offset 131,072: scores ")
    assert facts(told(both))["OK"].startswith("hf   fp16, offset 131,072: scores ")
    bound = f"drift_rms={(both[0].drift.rms + both[1].drift.rms) / 2!r}"
    answer = told(ropeaudit.explain(131072, ["fp16", "bf16"], "hf", tolerance=bound, **sizes))
    assert (answer.status, answer.decides[:4]) == ("FAIL", "bf16")
    assert "OK" in facts(answer)
