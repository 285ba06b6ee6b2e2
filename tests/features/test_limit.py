"""Limits: against a scan of every offset, the search on its own, the bound over a range, the command."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import first_fast, table
from command_line import Printed, ran
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropeaudit import limit, parse, recipes, shift
from ropeaudit.bounds import bound, bound_up_to
from ropeaudit.bounds.terms import last_exact_offset
from ropeaudit.errors import UsageError
from ropeaudit.features.limit.analysis import tolerance
from ropeaudit.features.limit.report import row
from ropeaudit.features.limit.search import WITHIN, Search, boundary
from ropeaudit.inputs import qk
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

SMALL = ["--heads", "1", "--seq-len", "16", "--head-dim", "32"]


# The first integer that a format does not hold: 2^11 + 1 and 2^8 + 1.
@pytest.mark.parametrize(("fmt", "first"), [("fp16", 2049), ("bf16", 257)])
@pytest.mark.parametrize("seq_len", [16, 64])
def test_rounded_positions_fail_at_the_first_integer_that_is_not_held(fmt, first, seq_len) -> None:
    changes, case = {"position": fmt}, {"heads": 1, "seq_len": seq_len}
    for requested in ("drift_max=1e-9", f"distinct_positions={seq_len}"):
        (result,) = limit(requested, "float64", "uniform", changes=changes, **case)
        assert result.last_position(result.first_failure) == first
        assert result.first_failure == result.first_failure_seen == first - seq_len + 1
        assert result.proved_up_to == result.bound_up_to == result.measured_up_to == first - seq_len
        assert result.proof == "bound"


# recipe, dtype, changes, case
SETTINGS = table(__file__, "limits.toml")["settings"]


def scan(records, requested, up_to):
    """The first offset that fails, by looking at each of them: column, number, direction read anew."""
    column, number = requested.split("=")
    for record in records[: up_to + 1]:
        value = getattr(record, column)
        good = value >= float(number) if column == "distinct_positions" else abs(value) <= float(number)
        if not good:
            return record.offset
    return None


def tried(records):
    """Tolerances that fail at 0, early, late and never, and on which values come and go."""
    results = []
    for column in ("drift_max", "drift_relative", "change_rms", "drift_bias"):
        values = np.abs([getattr(record, column) for record in records])
        finite = values[np.isfinite(values)]
        results += [f"{column}={float(np.quantile(finite, 0.6))!r}"]
        results.append(f"{column}={float(np.max(finite[: max(2, finite.size // 2)]))!r}")
        results.append(f"{column}={float(2 * finite.max() + 1e-6)!r}")
    return [*results, f"distinct_positions={records[0].seq_len}", "nonfinite=0", "drift_mean_abs=1e-30"]


def check_setting(which, up_to, budget=None):
    name, dtype, changes, case = SETTINGS[which]
    case = {"heads": 1, "seed": which} | case
    records = list(shift(range(up_to + 1), dtype, name, changes=changes, **case))
    requested = tried(records)
    outcomes = set()
    # two that are one number, on one machine or another, are one tolerance
    requested = list({tolerance(text): text for text in requested}.values())
    for text, result in zip(
        requested,
        limit(requested, dtype, name, changes=changes, up_to=up_to, budget=budget, **case),
        strict=True,
    ):
        first = scan(records, text, up_to)
        assert result.tolerance == tolerance(text)
        if result.boundary.exhaustive:
            assert result.first_failure == result.first_failure_seen == first, text
            safe = up_to if first is None else first - 1
            assert result.proved_up_to == result.measured_up_to == (safe if safe >= 0 else None), text
        claims_hold(result, records, first)
        outcomes |= {"at 0" if first == 0 else "never" if first is None else "between"}
        if first is not None and any(result.tolerance.holds(record) for record in records[first:]):
            outcomes |= {"recovers"}
    return outcomes


def columns(record) -> str:
    """All of a record but the a-priori bound, which `limit` does not compute offset by offset."""
    return repr(replace(record, bound_max=None, predicted_rms=None))


def claims_hold(results, records, first):
    if results.bound_up_to is not None:
        assert first is None or first > results.bound_up_to, results.tolerance
        assert results.proved_up_to >= results.bound_up_to
    if results.proved_up_to is None:
        assert first == 0
        assert (results.proof, results.measured_up_to, results.boundary.held) == ("none", None, 0)
    else:
        assert first is None or first > results.proved_up_to, results.tolerance
    if results.first_failure is not None:
        assert results.first_failure == first
    if results.first_failure_seen is None:
        assert results.measured_up_to == results.up_to
    else:
        assert first is not None
        assert results.first_failure_seen >= first
        assert columns(results.at_failure) == columns(records[results.first_failure_seen])
        assert not results.tolerance.holds(results.at_failure)
    if results.measured_up_to is not None:
        at = records[results.measured_up_to]
        assert columns(results.at_measured) == columns(at)  # bit for bit what `shift` reports
        assert results.tolerance.holds(results.at_measured)
        assert results.boundary.held <= min(results.measured_up_to + 1, results.boundary.tested)
    assert columns(results.at_zero) == columns(records[0])


@pytest.mark.processor
@pytest.mark.parametrize("some", first_fast([range(0, 20, 4), {*range(20)} - {*range(0, 20, 4)}]))
def test_limits_are_those_of_a_scan_of_every_offset(some) -> None:
    outcomes = set()
    for which in some:
        outcomes |= check_setting(which, 40 if "clip" in SETTINGS[which][3] else 100)
    assert outcomes == {"at 0", "never", "between", "recovers"}


@pytest.mark.processor
@pytest.mark.parametrize("which", [0, 7])
def test_a_search_with_few_measurements_claims_nothing_that_is_wrong(which) -> None:
    check_setting(which, 600, 64)


def searched(holds, seq_len, up_to, proved, most, **told):
    """Return the boundary that a search finds, and what it tested, in order."""
    search, requested = Search(seq_len, up_to, proved, most, **told), []
    for offsets in search:
        requested += offsets
        search.take({offset: holds(offset) for offset in offsets})
    assert len(requested) == len(set(requested)) == len(search.tested)
    return boundary(search.tested, proved, up_to), requested


@given(st.integers(0, 10**6), st.integers(1, 600), st.integers(64, 500), st.data())
def test_a_boundary_is_found_exactly_where_all_beyond_it_fails(up_to, seq_len, most, data) -> None:
    first = data.draw(st.integers(0, up_to + 1))
    proved = data.draw(st.integers(-1, first - 1)) if first else -1
    result, requested = searched(lambda offset: offset < first, seq_len, up_to, proved, most)
    assert len(requested) == result.tested <= most + 1
    assert result.failing == (first if first <= up_to else None)
    assert result.held_up_to == (first - 1 if first <= up_to else up_to)
    assert result.held_up_to in requested or result.held_up_to < 0
    assert proved <= result.proved <= result.held_up_to
    assert result.held == sum(offset < first for offset in requested)


@settings(max_examples=60)
@example(100, set(), 101)
@given(st.integers(0, 400), st.sets(st.integers(0, 400)), st.integers(64, 500))
def test_any_failures_are_found_where_all_can_be_tested(up_to, failures, most) -> None:
    result, _ = searched(lambda x: x not in failures, 16, up_to, -1, most)
    first = min((x for x in failures if x <= up_to), default=None)
    assert result.exhaustive or up_to + 1 > most
    assert result.failing == first if result.exhaustive else result.failing in {None, *failures}


# what a search is told, the one offset that fails, the offsets that are tested whatever fails
TOLD = [
    ({"landmarks": [54_321]}, 54_306, set()),
    ({"required": (0, 77, 12_345, 65_000, 2 * 10**6)}, 12_345, {0, 77, 65_000}),
    ({"within": 131_056}, None, {131_056}),
    ({"proved": 400}, None, {0}),
]


@pytest.mark.parametrize(("told", "failing", "tested"), TOLD)
def test_what_a_search_is_told_decides_what_is_tested(told, failing, tested) -> None:
    question = {"seq_len": 16, "up_to": 10**6, "proved": -1, "most": 300}
    result, requested = searched(lambda x: x != failing, **question | told)
    assert result.failing == failing
    seen = set(requested)
    assert {one for one in tested if failing is None or one <= failing} <= seen
    assert len(seen) <= 300
    assert min(seen - {0}) > told.get("proved", -1)
    assert failing is None or searched(lambda x: x != failing, **question)[0].failing is None
    assert sum(x < 131_056 for x in seen) > WITHIN


# of all offsets up to 19,999 the largest drift_rms is 0.66409, at 19,260; 16,380 is the first above 0.6546
def test_a_failure_at_a_plateau_is_found_beside_its_binade() -> None:
    case = {"heads": 1, "seq_len": 64, "head_dim": 64, "up_to": 19_999, "budget": 208}
    (result,) = limit("drift_rms=0.6574", "bf16", "hf-tf32-matmul", **case)
    assert result.first_failure_seen == 16_380
    assert result.first_failure is None  # not every offset below was measured
    assert result.boundary.tested <= 208


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize("name", ["uniform", "hf", "maxtext", "gpt-neox-te", "hf-model-cast", "llamacpp-cpu"])
def test_the_bound_of_a_range_covers_and_grows(name, dtype) -> None:
    subject = Emulated(recipes.named(name).resolve(parse(dtype)), RopeSetting.of(16))
    some = qk.make("gaussian", 1, 1, 12, RopeSetting.of(16))
    exact = last_exact_offset(subject.recipe.position, 12)
    tops = sorted({0, 1, 52, 53, 243, 244, 245, 2037, 30_000, 70_000, exact, exact + 1})
    results = [bound_up_to(subject, some, "causal", top) for top in tops]
    for low, high in itertools.pairwise(results):
        assert low <= high * (1 + 1e-6)  # a product in float32 is within that of what it bounds
    if name == "llamacpp-cpu":
        assert set(results) == {math.inf}
        return
    assert results[-1] == math.inf or exact > 70_000
    for top, whole in zip(tops, results, strict=True):
        for offset in {max(0, top - 3), top // 2, top}:
            assert bound(subject, some, "causal", offset).maximum <= whole * (1 + 1e-6)
    assert results[2] <= 1.6 * bound(subject, some, "causal", tops[2]).maximum


def test_what_is_guaranteed_was_worth_proving() -> None:
    (result,) = limit("drift_max=0.01", "fp32", "hf", heads=1, seq_len=32, head_dim=64, budget=64)
    assert 20_000 < result.bound_up_to <= result.proved_up_to < result.first_failure_seen
    records = shift(range(result.bound_up_to - 40, result.bound_up_to + 1), "fp32", "hf", heads=1, seq_len=32)
    assert max(record.drift_max for record in records) <= 0.01
    (none,) = limit("drift_max=0.01", "fp32", "llamacpp-cpu", heads=1, seq_len=8, head_dim=8, up_to=50)
    assert none.bound_up_to is None
    (clipped,) = limit("drift_max=9", "fp32", "hf", heads=1, seq_len=8, head_dim=8, up_to=20, clip=50.0)
    assert (clipped.bound_up_to, clipped.first_failure_seen) == (None, None)


@pytest.mark.parametrize(("failure", "proved"), [(None, 90_001), (77_777, 77_776)])
def test_a_large_budget_goes_to_the_lowest_offsets(failure, proved) -> None:
    """One failure that no other choice of offsets would meet is met."""
    result, _ = searched(lambda x: x != failure, 16, 2**24, -1, 100_000)
    assert proved <= result.proved < result.tested <= 100_000
    assert (result.failing, result.exhaustive) == (failure, failure is not None)


def test_nothing_turns_or_nothing_is_there() -> None:
    (result,) = limit("drift_max=1e-2", "bf16", "hf", heads=1, seq_len=4, head_dim=8, rotary_dim=0, budget=64)
    assert result.first_failure_seen is None
    (single,) = limit("drift_max=1", "bf16", "hf", heads=1, seq_len=1, head_dim=2, up_to=0)
    assert (single.proved_up_to, single.proof, single.boundary.exhaustive) == (0, "bound", True)
    (axes,) = limit(
        "drift_max=1e-9", "fp64", "uniform", heads=1, seq_len=4, head_dim=8, mrope="1,2,1", axis="h", up_to=99
    )
    assert (axes.bound_up_to, axes.first_failure_seen) == (99, None)
    assert row(axes)["axes"].startswith("split 1/2/1")


def test_positions_of_captured_vectors_that_floats_do_not_hold_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "qk.npz", q=np.ones((1, 16, 8)), k=np.ones((1, 16, 8)))
    with pytest.raises(UsageError, match="takes some of 16 positions past"):
        list(limit("drift_max=1", "fp32", "hf", qk=str(tmp_path / "qk.npz"), up_to=2**53 - 8))


LONGROPE = "longrope:short=1;1;1;1,long=2;4;8;16,original=64,factor=4"


@pytest.mark.parametrize(("spec", "dtype"), [(LONGROPE, "fp32"), ("dynamic:factor=2,maximum=64", "fp16")])
def test_frequencies_that_the_offset_changes_are_those_of_a_scan(spec, dtype) -> None:
    case = {"heads": 1, "seq_len": 8, "head_dim": 8, "scaling": spec, "length": "shifted"}
    records = list(shift(range(101), dtype, "uniform", **case))
    assert len({record.length for record in records}) > 1
    requested = tried(records)
    for text, result in zip(requested, limit(requested, dtype, "uniform", up_to=100, **case), strict=True):
        assert (result.frozen, result.changing) == (False, True)
        first = scan(records, text, 100)
        claims_hold(result, records, first)
        assert result.first_failure == first, text
        assert row(result)["frequencies"] == "shifted"


def test_a_proof_goes_through_a_switch_of_frequencies() -> None:
    case = {"heads": 1, "seq_len": 8, "head_dim": 8, "budget": 64}
    longrope = {"scaling": LONGROPE, "length": "shifted"}
    (result,) = limit("drift_rms=0.01", "fp32", "hf", up_to=20_000, **case, **longrope)
    assert result.bound_up_to > 56  # the last offset with the short frequencies
    dynamic = {"scaling": "dynamic:factor=2,maximum=64", "length": "shifted"}
    (result,) = limit("drift_rms=0.01", "fp32", "hf", up_to=20_000, **case, **dynamic)
    assert result.bound_up_to == 57  # of those past it each has a setting of its own, and one is looked at


def test_a_model_that_switches_is_not_judged_with_frozen_frequencies(capsys) -> None:
    command = ["limit", "--recipe", "hf", "--model", "phi-3.5-mini", "--heads", "1", "--seq-len", "16"]
    command += ["--budget", "64"]
    frozen = ran(capsys, command).out
    assert frozen.startswith("WARN  phi-3.5-mini, hf, bf16")
    assert "other frequencies than those of 4,096 positions (--length shifted)" in frozen
    shown = ran(capsys, [*command, "--length", "shifted", "-v"]).out
    assert "times its 131,072 positions" in shown.splitlines()[0]
    assert "the shift itself changes exact scores" in shown


def test_models_are_judged_by_their_own_maximum(capsys) -> None:
    def run(*options: str) -> Printed:
        return ran(capsys, [*command, *options])

    command = ["limit", "--model", "llama-3.1-8b,qwen3-8b", *SMALL[:4], "--budget", "90"]
    shown = run("--recipe", "hf", "-f", "csv").rows
    assert [one["maximum"] for one in shown] == ["131072", "40960"]
    for one in shown:
        seen = int(one["measured_up_to"]) + 16
        assert float(one["margin"]) == seen / int(one["maximum"]) > 1
        assert float(one["proved_margin"]) == (int(one["proved_up_to"]) + 16) / int(one["maximum"]) < 1
    proved = run("--recipe", "uniform", "--dtype", "fp64", "--tolerance", "drift_max=1e-3").out
    assert proved.startswith("OK ")
    assert run("--recipe", "uniform,hf").out.startswith("FAIL ")
    assert run("--recipe", "hf", "--up-to", "1000").out.startswith("WARN ")


def test_the_end_of_a_models_positions_is_measured() -> None:
    (result,) = limit("drift_rms=0.01", recipes="hf", heads=1, seq_len=16, model="llama-3.1-8b", budget=64)
    assert result.within == 131_072 - 16
    assert result.measured_up_to >= result.within


def test_the_bound_proves_that_scores_are_finite() -> None:
    [one] = limit("nonfinite=0", recipes="hf", dtypes="fp32", up_to=2**20, heads=1, seq_len=8, budget=64)
    assert (one.proof, one.proved_up_to) == ("bound", 2**20)
