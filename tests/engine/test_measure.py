"""Tiles, panels, threads and batches change nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit import Audit, Case, Record, RopeSetting, explain, parity, parse, recipes, shift
from ropeaudit.engine import measure, plan
from ropeaudit.engine.statistics import Block, Moments, Statistics
from ropeaudit.inputs import qk
from ropeaudit.reference import exact_scores
from ropeaudit.subjects.emulated import Emulated

SETTING = {"seq_len": 90, "heads": 4, "kv_heads": 2, "head_dim": 16, "recipes": ["hf", "uniform"]}
EXACT = ["implementation", "dtype", "offset", "scores", "nonfinite", "distinct_positions", "verdict"]
EXACT += ["drift_max", "change_max", "worst_head", "worst_query", "worst_key"]
SUMS = ["drift_rms", "drift_mean_abs", "change_rms", "reference_rms", "floor_rms"]


def run(**changes: object) -> list[Record]:
    return list(shift((0, 1000, -5), ("fp64", "fp32", "bf16", "fp16"), **(SETTING | changes)))


def same(left: list[Record], right: list[Record]) -> None:
    for a, b in zip(left, right, strict=True):
        for name in EXACT:
            assert getattr(a, name) == getattr(b, name), (name, a, b)
        for name in SUMS:
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(-120, 100),
    st.sampled_from(["noise", "outlier", "constant", "bias"]),
)
def test_sums_are_those_of_exact_arithmetic(seed, exponent, kind) -> None:
    """RMS to 1e-14, means to 1e-14 of the RMS, of float32 numbers whose squares float32 cannot hold, too."""
    x = np.random.default_rng(seed).standard_normal((30, 70))
    x += {"noise": 0.0, "outlier": 0.0, "constant": 1e4, "bias": 1.0}[kind]
    x[3, 4] *= 1e6 if kind == "outlier" else 1.0
    values = np.ldexp(x.astype(np.float32), exponent).astype(np.float32).astype(np.float64)
    size, spread, all_of_it = (Statistics(moments) for moments in Moments)
    block = Block(values.shape, values.size, (2, 10, 20))
    size.add(values, block)
    spread.add(values.astype(np.float32), block, np.empty_like(values))
    all_of_it.add(values, block, np.empty_like(values))
    exact = [Fraction(v) for v in values.reshape(-1).tolist()]
    shift_by = Fraction(2) ** (2 * exponent)
    rms = math.sqrt(sum(v * v for v in exact) / len(exact) / shift_by) * 2.0**exponent
    assert [one.rms for one in (size, spread, all_of_it)] == pytest.approx([rms] * 3, rel=1e-14, abs=0)
    assert all_of_it.mean == pytest.approx(float(sum(exact) / len(exact)), abs=1e-14 * rms)
    assert all_of_it.mean_abs == pytest.approx(float(sum(map(abs, exact)) / len(exact)), rel=1e-14, abs=0)
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    assert spread.place == all_of_it.place == (2, 10 + row, 20 + column)
    assert spread.max == all_of_it.max == np.abs(values).max()


def test_what_is_not_finite_is_counted_whatever_else_is_asked_for() -> None:
    values = np.array([[1.0, math.nan, -math.inf], [math.inf, 2.0, 0.0]])
    for result in map(Statistics, Moments):
        result.add(values, Block(values.shape, values.size))
        assert (result.count, result.nonfinite) == (6, 3)
        assert math.isnan(result.rms)


@pytest.mark.parametrize("sample", [None, 300])
@pytest.mark.parametrize("mask", ["causal", "window:7"])
def test_the_size_of_the_reference_has_all_digits(mask, sample, tmp_path) -> None:
    """Of float64 subjects the exact scores have a low word: without rotation they are known as fractions."""
    built, path = qk.make("gaussian", 2, 2, 20, RopeSetting.of(8), 3), tmp_path / "x.npz"
    q, k = built.q + 2.0**-30 * built.q**3, built.k / 3  # many bits
    np.savez(path, q=q, k=k)
    case = {"qk": str(path), "rotary_dim": 0, "mask": mask, "scale": 0.5}
    exact = [
        sum(Fraction(a) * Fraction(b) for a, b in zip(q[h, m].tolist(), k[h, n].tolist(), strict=True)) ** 2
        / 4
        for h in range(2)
        for m in range(20)
        for n in range(20)
        if n <= m and (mask == "causal" or m - n < 7)
    ]
    (result,) = shift(0, "fp64", "hf", **case)
    rms = math.sqrt(sum(exact) / len(exact))
    assert result.reference_rms == pytest.approx(rms, rel=1e-15, abs=0)
    assert result.reference_error < 1e-17
    if mask == "causal":
        (same,) = parity("hf", "hf", 0, "fp64", **case)
        assert [one.rms for one in same.statistics.references] == pytest.approx([rms] * 2, rel=1e-15, abs=0)
        (explained,) = explain(0, "fp64", "hf", **case)
        assert explained.reference.rms == pytest.approx(rms, rel=1e-15, abs=0)
    if sample:
        (result,) = shift(0, "fp64", "hf", **case, sample=200)
        assert result.reference_rms == pytest.approx(rms, rel=0.3)


@pytest.mark.parametrize("recipe", ["hf", "uniform", "meta"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_shift_parity_and_explain_agree(recipe, dtype) -> None:
    case = {"heads": 2, "kv_heads": 1, "seq_len": 48, "head_dim": 16}
    (row,) = shift(1000, dtype, recipe, **case)
    (pair,) = parity(recipe, recipe, 1000, dtype, **case)
    (why,) = explain(1000, dtype, recipe, **case)
    for drift in (*pair.statistics.drifts, why.drift):
        assert drift.rms == pytest.approx(row.drift_rms, rel=1e-12, abs=0)
        assert drift.max == row.drift_max
    for drift in pair.statistics.drifts:
        assert drift.mean == pytest.approx(row.drift_bias, abs=1e-12 * row.drift_rms)
        assert drift.mean_abs == pytest.approx(row.drift_mean_abs, rel=1e-12, abs=0)
    for reference in (*pair.statistics.references, why.reference):
        assert reference.rms == pytest.approx(row.reference_rms, rel=1e-15, abs=0)
    assert pair.statistics.error == why.error == row.reference_error


def test_the_published_error_is_the_certificate_of_the_reference() -> None:
    built, setting = qk.make("gaussian", 1, 1, 30, RopeSetting.of(16)), RopeSetting.of(16)
    table = exact_scores.distance_table(np.arange(30.0), setting)
    sides = []
    for dtype, precision in (("fp64", "extended"), ("fp32", "double"), ("bf16", "double")):
        q, k = (
            exact_scores.rotated(x[0], table, setting, precision, by)
            for x, by in ((built.q, setting.scale), (built.k, 1.0))
        )
        (result,) = shift(1000, dtype, "hf", heads=1, seq_len=30, head_dim=16)
        assert result.reference_error == exact_scores.certificate(q, k) > 0
        sides.append((q, k))
    (q, _), (_, k), _ = sides  # k in float64 alone
    assert exact_scores.certificate(q, k) > 1e-16


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_small_tiles_and_panels_give_what_one_tile_gives(mask, monkeypatch) -> None:
    changes = {"accumulate": "fp64"}  # a float32 BLAS product may depend on the shape of the tile
    whole = run(mask=mask, changes=changes)
    monkeypatch.setattr(plan, "PANEL", 32)
    monkeypatch.setattr(plan, "TILE_ROWS", 16)
    monkeypatch.setattr(plan, "TILE_COLUMNS", 8)
    tiled = run(mask=mask, changes=changes)
    for a, b in zip(whole, tiled, strict=True):
        if a.dtype == "float64" and a.implementation.startswith("uniform"):
            assert a.drift_rms == pytest.approx(b.drift_rms, rel=0.05)  # even float64 BLAS
        else:
            same([a], [b])


def test_threads_do_not_change_a_bit(pools) -> None:
    assert run(threads=1) == run(threads=2) == run(threads=5)
    assert {2, 5} <= set(pools)


def test_a_small_cache_does_not_change_a_bit(monkeypatch) -> None:
    whole = run()
    monkeypatch.setattr(plan, "CACHE_BYTES", 200_000)
    assert run() == whole


def test_progress_ends_at_one() -> None:
    some = [Case(heads=1, seq_len=600), Case(heads=2, seq_len=9), Case(heads=1, seq_len=600, sample=2500)]
    reported: list[list[float]] = [[], []]
    list(Audit(cases=some).run(progress=reported[0].append))
    some_more = [Case(heads=1, seq_len=9, head_dim=8)] * 2
    list(explain([0, 7], "fp32", "hf", cases=some_more, on_progress=reported[1].append))
    for shares in reported:
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_rows_at_other_positions_are_those_of_the_whole() -> None:
    """Drift of some rows of a sequence, each with each, as the whole has it at their places."""
    setting, at = RopeSetting.of(32), np.array([0, 3, 17, 60])
    every = qk.make("gaussian", 2, 1, 64, setting, 1)
    some = qk.Inputs(every.q[:, at], every.k[:, at], "gaussian", 1)
    exact_sums = recipes.named("uniform").changed({"accumulate": "fp64", "score": "fp64"})
    subject = Emulated(exact_sums.resolve(parse("bf16")), setting)

    def measured(inputs: qk.Inputs, positions: np.ndarray | None = None) -> plan.CellStatistics:
        cells = plan.Plan([subject], [[0, 1000]], inputs, setting, "full", positions=positions)
        return measure.measure(cells, 1)[0, 1000]

    rows, exactly = measured(some, at), list(measure.exact(every, setting, parse("bf16")))
    scores = np.stack([exact_scores.joined(*pair)[np.ix_(at, at)] for pair, _ in exactly])
    assert rows.reference.rms == pytest.approx(float(np.sqrt(np.mean(scores**2))), rel=1e-14)
    assert rows.drift.rms != measured(some).drift.rms
    table = subject.table(at, 1000)
    q, k = (np.stack([subject.rotate(x, table) for x in side]) for side in (some.q, some.k))
    formed = np.einsum("hsd,td->hst", q.astype(np.float64), k[0].astype(np.float64)) * setting.scale
    size = float(np.sqrt(np.mean((formed - scores) ** 2)))
    assert rows.drift.rms == pytest.approx(size, rel=1e-9)  # of sums that float64 forms
    assert rows.drift.place is not None
    assert max(rows.drift.place[1:]) < len(at)
