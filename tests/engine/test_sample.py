"""Samples: what is drawn, that a drawn score is that of the whole audit, and what the interval promises."""

import coverage_of_sample
import numpy as np
import pytest
from cases import thinned
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit import Case, bounds, parse, recipes, shift
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import case_run
from ropeaudit.bounds.attainable import predicted_rms
from ropeaudit.engine import kernel, measure
from ropeaudit.engine.plan import Plan
from ropeaudit.engine.statistics import Block, Statistics
from ropeaudit.errors import UsageError
from ropeaudit.inputs import masks, qk, sampled_rows
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

SMALL = {"heads": 4, "kv_heads": 2, "seq_len": 90, "head_dim": 16}
WHOLE = {"accumulate": "fp64", "score": "fp64"}
MASKS = ["causal", "full", "window:1", "window:20"]


def every_pair(mask: str, heads: int, size: int) -> sampled_rows.Pairs:
    each = masks.count(mask, size)
    head, number = np.divmod(np.arange(heads * each), each)
    return sampled_rows.Pairs(head, *masks.score_indices(mask, size, number), np.ones(head.size))


def times_sampled(some: sampled_rows.Pairs, want: sampled_rows.Pairs, size: int) -> np.ndarray:
    """How often each of the wanted pairs was sampled; there must be no others."""
    own, others = ((x.head * size + x.query) * size + x.key for x in (some, want))
    assert np.isin(own, others).all()
    return np.bincount(np.searchsorted(others, own), minlength=others.size)


def subject(name: str, dtype: str, setting: RopeSetting, **changes: str) -> Emulated:
    return Emulated(recipes.named(name).changed(changes).resolve(parse(dtype)), setting)


# ---------------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("mask", MASKS)
def test_every_visible_score_is_equally_likely(mask) -> None:
    want = every_pair(mask, 3, 5)
    got = sum(times_sampled(sampled_rows.draw_evenly(mask, 3, 5, 10, seed), want, 5) for seed in range(400))
    mean, total = 4000 / want.head.size, want.head.size
    assert ((got - mean) ** 2 / mean).sum() < total + 4 * np.sqrt(2 * total)  # chi squared


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MASKS),
    st.integers(0, 10**6),
    st.lists(st.integers(-200, 150), min_size=6, max_size=6),
)
def test_weights_are_right_whatever_the_norms_are(mask, seed, exponents) -> None:
    """Where one key is 1e300 times another, and running sums lose it, too."""
    generator = np.random.default_rng(seed)
    q, k = (
        generator.exponential(size=(2, 6)),
        generator.exponential(size=(1, 6)) * 10.0 ** np.array(exponents),
    )
    want = every_pair(mask, 2, 6)
    some = sampled_rows.draw_by_size(mask, q, k, want.head.size // 2, seed)
    each = q[want.head, want.query] * k[0, want.key] / k.max()
    share = each / each.sum() if each.sum() else np.full(each.size, 1 / each.size)
    chance = share * (1 - sampled_rows.EVEN) + sampled_rows.EVEN / each.size
    place = {key: n for n, key in enumerate(zip(want.head, want.query, want.key, strict=True))}
    drawn = [place[key] for key in zip(some.head, some.query, some.key, strict=True)]
    assert drawn == sorted(drawn)
    assert some.weight == pytest.approx(1 / (each.size * chance[drawn]), rel=1e-9)


@pytest.mark.parametrize("sizes", [np.zeros((2, 30)), np.full((2, 30), np.inf)])
def test_without_norms_the_choice_is_even(sizes) -> None:
    with np.errstate(all="raise"):
        some = sampled_rows.draw_by_size("causal", np.ones((4, 30)), sizes, 100, 5)
    assert np.array_equal(some.key, sampled_rows.draw_evenly("causal", 4, 30, 100, 5).key)
    assert (some.weight == 1).all()


@pytest.mark.parametrize("chunk", [16, 100, 2**18])
@pytest.mark.parametrize("kind", ["gaussian", "ones", "arange", "diagonal", "previous"])
def test_synthetic_rows_are_those_of_the_whole(kind, chunk, monkeypatch) -> None:
    monkeypatch.setattr(sampled_rows, "_CHUNK", chunk)
    some = sampled_rows.draw_evenly("full", 4, 37, 300, 5)
    whole = qk.make(kind, 4, 2, 37, RopeSetting.of(16), 5)
    result = sampled_rows.synthetic(kind, (4, 2, 37), RopeSetting.of(16), some, 5)
    for rows in (result, sampled_rows.take_rows(whole, some, 5)):
        assert np.array_equal(rows.q[0:300], whole.q[some.head, some.query])
        assert np.array_equal(rows.k[0:300], whole.k[some.head // 2, some.key])
    assert (result.heads, result.kv_heads, result.seq_len, result.source) == (4, 2, 37, kind)


@pytest.mark.parametrize("rounded", ["", "q", "k", "qk"])
def test_a_format_leaves_a_sample_alone_only_if_it_leaves_both_sides_alone(rounded) -> None:
    built, fmt = qk.make("gaussian", 2, 2, 40, RopeSetting.of(16)), parse("bf16")
    q, k = (x if name in rounded else x + 2.0**-30 for name, x in (("q", built.q), ("k", built.k)))
    some = sampled_rows.take_rows(qk.Inputs(q, k, "own", None), every_pair("causal", 2, 40), 0)
    assert some.distinct([fmt]) == {fmt: parse("fp64") if rounded == "qk" else fmt}


# ---------------------------------------------------------------------------- the scores


@pytest.mark.parametrize(
    ("dtype", "changes", "bits"),
    [
        ("bf16", WHOLE, True),
        ("fp16", WHOLE | {"score": "fp16"}, True),
        ("bf16", {"accumulate": "fp16"}, True),
        ("fp32", {"accumulate": "bf16", "scale_after_store": "true"}, True),
        ("fp32", {}, False),
        ("fp64", {}, False),
        ("bf16", {"rotation": "fp64", "output": "fp64", "accumulate": "fp32"}, True),
    ],
)
def test_a_score_of_a_pair_is_that_of_a_tile(dtype, changes, bits) -> None:
    built, setting = qk.make("gaussian", 1, 1, 40, RopeSetting.of(128)), RopeSetting.of()
    who = subject("hf", dtype, setting, **changes)
    q, k = (
        kernel.operand(who.rotate(round_to(x[0], who.input), who.table(np.arange(40), 1000)), who)
        for x in (built.q, built.k)
    )
    tile = np.empty((40, 40), kernel.tile_format(who).carrier)
    kernel.accumulate(q, np.ascontiguousarray(k.T), who, tile)
    kernel.store(tile, who, setting.scale)
    m, n = np.divmod(np.arange(1600), 40)
    kernel.form_pairs(q[m], k[n], who, setting.scale, result := np.empty(len(m)))
    if bits:
        assert np.array_equal(result, tile.reshape(-1))
    else:
        sizes = (np.abs(q).astype(float)[m] * np.abs(k).astype(float)[n]).sum(axis=1) * setting.scale
        assert (np.abs(result - tile.reshape(-1)) <= 130 * who.accumulate.unit_roundoff * sizes).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("origin", [0, 500])
def test_all_pairs_once_give_the_whole_audit(mask, origin) -> None:
    built = qk.make("gaussian", 4, 2, 90, RopeSetting.of(16))
    setting = RopeSetting.of(16) if not origin else RopeSetting.of(16, clip=300.0)
    who = [subject("hf", d, setting, **WHOLE) for d in ("bf16", "fp32", "fp64")]
    offsets = [[0, origin or 1000]] * 3
    whole = measure.measure(Plan(who, offsets, built, setting, mask, origin), 2)
    some = sampled_rows.take_rows(built, every_pair(mask, 4, 90), 0)
    result = measure.measure_sampled(Plan(who, offsets, some, setting, mask, origin), 2)
    for cell, want in whole.items():
        rel = 1e-9 if cell[0] == 0 else 0.05  # rounded rotations do not hang on the order of sums
        for name in ("drift", "self_drift", "reference"):
            mine, others = getattr(result[cell], name), getattr(want, name)
            assert (mine.count, mine.nonfinite) == (others.count, others.nonfinite)
            assert mine.rms == pytest.approx(others.rms, rel=rel)
            if name != "reference":
                assert mine.max == pytest.approx(others.max, rel=rel if cell[0] == 0 else 0.5)
        if cell[0] == 0:
            assert result[cell].drift.place == want.drift.place
            assert result[cell].drift.mean == pytest.approx(want.drift.mean, rel=1e-6, abs=1e-14)
        assert result[cell].error <= 1.5 * want.error  # norms of a block of pairs


@pytest.mark.parametrize("name", ["hf", "fp64-angles"])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_sums_are_as_inexact_as_in_tiles(name, dtype) -> None:
    """Sums in a better order than that of BLAS made float32 look 1.6 times as exact as it is."""
    built, setting = qk.make("gaussian", 1, 1, 60, RopeSetting.of(128)), RopeSetting.of()
    who = [subject(name, dtype, setting)]
    whole = measure.measure(Plan(who, [[0]], built, setting, "full"), 1)[0, 0].drift
    some = sampled_rows.take_rows(built, every_pair("full", 1, 60), 0)
    result = measure.measure_sampled(Plan(who, [[0]], some, setting, "full"), 1)[0, 0].drift
    assert result.rms == pytest.approx(whole.rms, rel=0.05)
    assert result.max == pytest.approx(whole.max, rel=0.3)


@pytest.mark.parametrize("name", coverage_of_sample.DISTRIBUTIONS)
def test_the_interval_holds_the_truth_as_often_as_it_says(name) -> None:
    """If 92 % of all intervals held it, 65 or fewer of 80 would come once in 600 tests (binomial)."""
    given = coverage_of_sample.built(name)
    drifts = coverage_of_sample.all_drifts(coverage_of_sample.subject(), given)
    result = coverage_of_sample.cell(given, drifts, "causal", 500, range(80))
    assert result.coverage > 65 / 80
    assert result.factor <= 1.15


@pytest.mark.parametrize("name", thinned(coverage_of_sample.DISTRIBUTIONS, 2))
@pytest.mark.parametrize("mask", ["causal", "full", "window:40"])
def test_the_interval_holds_at_every_size_of_sample(name, mask) -> None:
    """If 92 % of all intervals held it, 350 or fewer of 400 would come once in 800 tests (binomial)."""
    given = coverage_of_sample.built(name)
    drifts = coverage_of_sample.all_drifts(coverage_of_sample.subject(), given)
    for count in coverage_of_sample.COUNTS:
        result = coverage_of_sample.cell(given, drifts, mask, count, range(400))
        assert result.coverage > 350 / 400, (count, result)


@pytest.mark.parametrize("mask", MASKS)
def test_every_column_is_estimated_without_bias(mask) -> None:
    """One key is 32 times as large: the mean over 60 samples is that of all scores, to 4 standard errors."""
    setting, built = RopeSetting.of(16), qk.make("gaussian", 4, 2, 90, RopeSetting.of(16))
    built = qk.Inputs(built.q, built.k * np.where(np.arange(90) == 7, 32, 1)[:, None], "sink", None)
    who = [subject("hf", "bf16", setting, **WHOLE), subject("hf", "fp16", setting, **WHOLE)]
    offsets = [[0, 1000]] * 2
    whole = measure.measure(Plan(who, offsets, built, setting, mask), 1)
    samples = []
    for seed in range(60):
        some = sampled_rows.take_rows(built, sampled_rows.draw_by_norms(built, mask, 90, seed), seed)
        samples.append(measure.measure_sampled(Plan(who, offsets, some, setting, mask), 1))
    columns = [("drift", n) for n in ("squares", "total", "absolute")] + [
        ("self_drift", "squares"),
        ("reference", "squares"),
    ]
    for cell, want in whole.items():
        for part, name in columns:
            each = [getattr(getattr(one[cell], part), name) / 90 for one in samples]
            mean = getattr(getattr(want, part), name) / getattr(want, part).count
            assert abs(np.mean(each) - mean) <= 4 * np.std(each) / np.sqrt(59) + 1e-30, (cell, part, name)


def test_an_interval_where_powers_leave_float64() -> None:
    for size in (1e-37, 1e60):
        result = Statistics(weighted=True)
        result.add(size * np.array([1.0, -2.0, 1.5]), Block.pairs(0, np.array([0.5, 1.5, 1.0])))
        low, high = result.interval()
        assert 0.3 * size < low < result.rms < high < 8 * size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "dtype", "offset", "mask"),
    [("hf", "bf16", 0, "causal"), ("hf", "bf16", 100_000, "full"), ("uniform", "fp32", 5000, "window:40"),
     ("uniform", "bf16", 1000, "causal"), ("hf", "fp64", 1000, "full"),
     ("hf-model-cast", "bf16", 0, "window:40")],
)  # fmt: skip
def test_the_prediction_of_many_scores_is_that_of_all(mask, recipe, dtype, offset) -> None:
    setting = RopeSetting.of(64, rotary_dim=48)
    built, who = qk.make("gaussian", 4, 2, 200, setting), subject(recipe, dtype, setting)
    want = bounds.bound(who, built, mask, offset).rms
    some = sampled_rows.take_rows(built, every_pair(mask, 4, 200), 0)
    assert predicted_rms(who, some, offset) == pytest.approx(
        want, rel=0.02
    )  # blocks of positions count alike
    built.k[:, 7] *= 30
    want = predicted_rms(who, sampled_rows.take_rows(built, every_pair(mask, 4, 200), 0), offset)
    some = sampled_rows.take_rows(built, sampled_rows.draw_by_norms(built, mask, 4000, 1), 1)
    assert predicted_rms(who, some, offset) == pytest.approx(want, rel=0.06)


def test_a_prediction_without_a_number_is_inf() -> None:
    setting = RopeSetting.of(16)
    built = qk.make("gaussian", 1, 1, 20, setting)
    some = sampled_rows.take_rows(built, every_pair("causal", 1, 20), 0)
    assert predicted_rms(subject("uniform", "fp16", setting), some, 10**6) == np.inf


# ---------------------------------------------------------------------------- the audit


def test_neither_threads_nor_blocks_change_the_result(monkeypatch, pools) -> None:
    one, two = (list(shift(1000, sample=700, threads=threads, **SMALL)) for threads in (1, 3))
    assert one == two
    monkeypatch.setattr(measure, "BLOCK", 64)
    for mine, other in zip(shift(1000, sample=700, **SMALL), one, strict=True):
        assert (mine.drift_max, mine.worst_key, mine.scores) == (
            other.drift_max,
            other.worst_key,
            other.scores,
        )
        assert mine.drift_rms_high == pytest.approx(other.drift_rms_high, rel=1e-9)


def test_a_row_does_not_depend_on_what_is_measured_with_it() -> None:
    alone = list(shift(1000, "bf16", "hf", sample=700, **SMALL))
    assert alone == [r for r in shift((7, 1000), sample=700, recipes=["uniform", "hf"], **SMALL)
                     if (r.implementation, r.dtype, r.offset) == ("hf", "bfloat16", 1000)]  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        {"clip": 500.0},
        {"mrope": "4,2,2", "axis": "h"},
        {"scaling": "dynamic:factor=2,maximum=512", "length": "shifted"},
        {"qk": "ones"},
        {"layout": "interleaved", "rotary_dim": 8},
    ],
    ids=str,
)
def test_other_settings_are_sampled_too(case) -> None:
    (whole,), (some,) = (
        list(shift(1000, "bf16", "hf", **SMALL, **case, **n)) for n in ({}, {"sample": 9000})
    )
    assert some.drift_rms == pytest.approx(whole.drift_rms, rel=0.06)
    assert some.change_rms == pytest.approx(whole.change_rms, rel=0.06)
    assert some.structural_rms == pytest.approx(whole.structural_rms, rel=0.06)


def test_captured_vectors_are_sampled_by_the_seed(tmp_path) -> None:
    built, path = qk.make("gaussian", 4, 2, 90, RopeSetting.of(16), seed=9), tmp_path / "x.npz"
    np.savez(path, q=built.q, k=built.k)
    one, again, other = (next(shift(1000, "bf16", "hf", qk=str(path), sample=900, seed=s)) for s in (1, 1, 2))
    assert one == again
    assert one.drift_rms != other.drift_rms
    (whole,) = shift(1000, "bf16", "hf", qk=str(path))
    assert one.drift_rms == pytest.approx(whole.drift_rms, rel=0.1)
    same = next(shift(1000, "bf16", "hf", sample=900, seed=9, **SMALL))
    (file,) = shift(1000, "bf16", "hf", qk=str(path), sample=900, seed=9)
    assert same.as_dict() | {"source": "", "case": ""} == file.as_dict() | {"source": "", "case": ""}


def test_sixteen_million_tokens_need_no_room() -> None:
    (result,) = shift(0, "bf16", "hf", sample=60, seq_len=2**24, heads=64)
    assert (result.source, result.scores, result.seq_len) == ("gaussian-by-row", 60, 2**24)
    assert 0.3 < result.reference_rms < 3
    assert result.verdict == "sound"


@pytest.mark.parametrize("offset", [0, 1000, -40, 65500])
def test_positions_are_counted_in_parts(offset, monkeypatch) -> None:
    monkeypatch.setattr(case_run, "_MOST_POSITIONS", 16)
    for dtype in ("bf16", "fp16", "fp32"):
        numbers = (np.arange(90) + offset).astype(float)
        rounded = round_to(numbers, parse(dtype))
        want = len(set(rounded[np.isfinite(rounded)].tolist()))
        (result,) = shift(offset, dtype, "uniform", seq_len=90, heads=1, head_dim=4)
        assert result.distinct_positions == want


def test_a_sample_says_how_sure_its_reference_is() -> None:
    (some,), (every,) = (shift(7, "bf16", "hf", sample=one, **SMALL) for one in (50, None))
    assert 0 < some.reference_error <= 2 * every.reference_error < 1e-9


def test_one_score_has_no_interval_and_none_that_is_exact_is_wide() -> None:
    (one,) = shift(0, "bf16", "hf", sample=1, **SMALL)
    assert np.isnan(one.drift_rms_low)
    (none,) = shift(0, "fp64", "hf", qk="ones", rotary_dim=0, heads=1, head_dim=16, seq_len=20, sample=50)
    assert (none.drift_rms, none.drift_rms_low, none.drift_rms_high) == (0, 0, 0)


# ---------------------------------------------------------------------------- the command


def test_a_sample_is_of_shift_alone() -> None:
    with pytest.raises(UsageError, match="goes with shift alone"):
        Case(sample=10).load()


def test_a_token_and_itself_are_turned_alike_in_a_sample_too() -> None:
    """Their angles cancel: what is predicted of a sample is as small as what is predicted of all."""
    case = {"seq_len": 1600, "heads": 1, "head_dim": 64, "mask": "window:1"}
    every, some = (next(iter(shift(100_000, "fp32", ["hf"], sample=n, **case))) for n in (None, 1500))
    assert some.predicted_rms == pytest.approx(every.predicted_rms, rel=0.05)
