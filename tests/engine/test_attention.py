"""Attention after softmax: the statistics of rows, the pass over strips, the options and the words."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit import RopeSetting, parse, shift
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import records
from ropeaudit.engine import attention_pass, plan
from ropeaudit.engine.attention_pass import ReferenceRows, Rounding
from ropeaudit.inputs import qk
from ropeaudit.recipes import named
from ropeaudit.subjects.emulated import Emulated

SMALL = {"heads": 2, "seq_len": 48, "attention": True}
COLUMNS = list(records.COLUMNS.having("attention"))


def plain_softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def plain_entropy(p: np.ndarray, inside: float = 0.0) -> np.ndarray:
    return -sum(
        np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0) + inside), 0.0) for x in np.moveaxis(p, -1, 0)
    )


def plain_adapted(scores: np.ndarray) -> np.ndarray:
    h = plain_entropy(plain_softmax(scores), 1e-9)
    poly = -0.037 * h**4 + 0.481 * h**3 - 2.3 * h**2 + 4.917 * h - 1.791
    return plain_softmax(scores * np.where(h > 0.5, np.maximum(poly, 1.0), 1.0)[..., None])


def whole(recipe: str, dtype: str, offset: int, some: qk.Inputs, mask: str = "causal") -> np.ndarray:
    """All scores of a recipe whose accumulator and scores are float64, hidden ones -inf."""
    subject = Emulated(named(recipe).resolve(parse(dtype)), RopeSetting.of(some.q.shape[2]))
    table = subject.table(np.arange(some.q.shape[1]), offset)
    q, k = (
        np.stack([subject.rotate(round_to(head, subject.input), table) for head in x]).astype(np.float64)
        for x in (some.q, some.k)
    )
    result = np.einsum("hmd,hnd->hmn", q, k.repeat(some.group, 0)) * subject.setting.scale
    return np.where(np.tril(np.ones(result.shape[1:])), result, -np.inf) if mask == "causal" else result


@pytest.mark.parametrize(("mask", "kv_heads", "strip"), [("causal", 4, 2**17), ("full", 2, 300)])
def test_columns_are_those_of_whole_matrices(mask, kv_heads, strip, monkeypatch) -> None:
    monkeypatch.setattr(attention_pass, "STRIP", strip)
    monkeypatch.setattr(attention_pass, "FEW", 1)
    monkeypatch.setattr(plan, "PANEL", 20)
    some = qk.make("gaussian", 4, kv_heads, 60, RopeSetting.of(32), seed=1)
    changes = {"accumulate": "fp64", "score": "fp64"}
    given = {"heads": 4, "kv_heads": kv_heads, "seq_len": 60, "head_dim": 32, "seed": 1, "mask": mask}
    _, record = shift((16, 1000), "bf16", "uniform", changes=changes, attention=True, **given)
    exact = whole("xformers-f64", "fp64", 0, some, mask)
    own, anchor = (whole("uniform", "bf16", offset, some, mask) for offset in (1000, 16))
    p, exact_p, anchor_p = map(plain_softmax, (own, exact, anchor))
    moved = np.abs(p - exact_p).sum(-1) / 2
    tiny = 1e-300
    kl = (exact_p * np.log(np.maximum(exact_p, tiny) / np.maximum(p, tiny))).sum(-1)
    weight = 1 / (60.0 - np.arange(60)) if mask == "causal" else np.full(60, 1 / 60)
    expected = {
        "attention_tv_max": moved.max(),
        "attention_tv_mean": moved.mean(),
        "attention_kl_max": kl.max(),
        "top1_flips": (p.argmax(-1) != exact_p.argmax(-1)).sum(),
        "entropy_reference": plain_entropy(exact_p).mean(),
        "entropy": plain_entropy(p).mean(),
        "weight_reference": exact_p.max(-1).mean(),
        "weight": p.max(-1).mean(),
        "attention_adaptive_tv_mean": np.abs(plain_adapted(own) - plain_adapted(exact)).sum(-1).mean() / 2,
        "attention_d": (np.abs(p - anchor_p).sum((0, 1)) * weight).sum(),
        "attention_d_logit": np.abs(own[:, :, 0] - anchor[:, :, 0]).sum() / 60,
    }
    assert expected["top1_flips"] > 10
    assert record.right_token is None
    for name, value in expected.items():
        assert getattr(record, name) == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_a_rounded_softmax_rounds_every_step(fmt) -> None:
    how = Rounding(parse(fmt), parse(fmt))
    scores = np.array([[0.1, 1.3, -2.7, -np.inf]])
    weights, _ = attention_pass.softmax(scores, how)

    def once(x: float) -> float:
        return float(round_to(np.array([x]), how.computed)[0])

    stored = [once(x) for x in (0.1, 1.3, -2.7)]
    powers = [once(math.exp(once(x - stored[1]))) for x in stored]
    total = once(sum(powers))
    assert weights.tolist() == [[once(x / total) for x in powers] + [0.0]]


numbers = st.floats(-30, 30, allow_subnormal=False)


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.floats(1e-9, 40))
def test_what_holds_of_any_rows(data, rows, columns, size) -> None:
    shape = st.lists(numbers, min_size=rows * columns, max_size=rows * columns)
    exact = np.array(data.draw(shape)).reshape(rows, columns)
    drift = np.array(data.draw(shape)).reshape(rows, columns) / 30 * size
    reference = ReferenceRows(exact.copy())
    result, weights = reference.compare(exact + drift)
    largest = float(np.abs(exact + drift - exact).max())
    assert 0 <= result.tv_max <= 1 + 1e-12
    assert result.tv_max <= math.tanh(largest / 2) + 1e-12  # half of numerics.md's 1-norm
    assert -1e-12 <= result.kl_max <= largest**2 / 2 * (1 + 1e-9) + 1e-12
    assert result.tv_max <= math.sqrt(result.kl_max / 2) + 1e-7  # Pinsker
    assert 0 <= result.flips <= rows
    assert weights.sum(axis=1) == pytest.approx(np.ones(rows))
    assert reference.compare(exact.copy())[0].tv_max == reference.compare(exact.copy())[0].flips == 0


def test_the_bound_on_the_moved_weight_is_attained() -> None:
    e = 0.01
    result, _ = ReferenceRows(np.array([[-e / 2, e / 2]])).compare(np.array([[e / 2, -e / 2]]))
    assert result.tv_max == pytest.approx(math.tanh(e / 2), rel=1e-12)


def test_divergence_of_weights_far_apart_and_near() -> None:
    exact = ReferenceRows(np.array([[0.0, -800.0, 0.0]]))
    result, _ = exact.compare(np.array([[0.0, 0.0, 0.0]]))
    assert result.kl_max == pytest.approx(math.log(3) - math.log(2), rel=1e-12)
    near = 1e-7
    result, _ = ReferenceRows(np.zeros((1, 2))).compare(np.array([[near, -near]]))
    assert result.kl_max == pytest.approx(near**2 / 2, rel=1e-6)  # log cosh
    nonfinite, _ = ReferenceRows(np.array([[0.0, -12.0]])).compare(
        np.array([[0.0, -12.0]]), Rounding(parse("fp32"), parse("fp8_e4m3"))
    )
    assert nonfinite.kl_max == math.inf


def test_ties_are_not_flips() -> None:
    tied = np.array([[1.0, 1.0, 0.0]])
    assert ReferenceRows(tied.copy()).compare(np.array([[1.0, 1.1, 0.0]]))[0].flips == 0  # the exact ones tie
    assert ReferenceRows(np.array([[1.0, 0.9, 0.0]])).compare(tied.copy())[0].flips == 0  # its own do
    assert ReferenceRows(np.array([[1.0, 0.9, 0.0]])).compare(np.array([[1.0, 1.1, 0.0]]))[0].flips == 1
    near = np.array([[1.0, 1.0 - 1e-14, 0.0]])
    assert ReferenceRows(near.copy(), slack=1e-13).compare(np.array([[0.0, 1.0, 0.0]]))[0].flips == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_lost(bad) -> None:
    result, _ = ReferenceRows(np.array([[1.0, -np.inf], [1.0, 2.0]])).compare(
        np.array([[1.0, -np.inf], [1.0, bad]])
    )
    assert result.nonfinite == 1
    assert all(math.isnan(value) for value in result.columns().values())


def test_lost_scores_make_every_column_nan() -> None:
    results = list(shift((0, 128 * 1024), "fp16", "uniform", **SMALL))
    assert results[1].verdict == "overflow"
    assert all(math.isnan(getattr(results[1], name)) for name in COLUMNS)
    assert results[0].attention_tv_mean > 0
    later = next(iter(shift(0, "fp16", "uniform", anchor=128 * 1024, **SMALL)))
    assert math.isnan(later.attention_d)  # for its anchor is lost
    assert math.isnan(later.attention_d_logit)
    assert later.attention_tv_mean == results[0].attention_tv_mean


def test_drift_is_the_same_with_attention() -> None:
    given = ((0, 1000), ("fp32", "bf16"), "hf")
    for plain, both in zip(shift(*given, heads=2, seq_len=48), shift(*given, **SMALL), strict=True):
        same = [c for c in records.COLUMNS if c not in (*COLUMNS, "softmax", "anchor", "case")]
        assert [getattr(plain, c) for c in same] == [getattr(both, c) for c in same]


def values(**changes: object) -> list[list[float]]:
    given = {"heads": 4, "kv_heads": 2, "seq_len": 90, "head_dim": 16, "attention": True}
    results = shift((0, 1000, -5), ("fp64", "bf16"), ("hf", "uniform"), **(given | changes))
    return [[getattr(record, name) for name in COLUMNS if name != "right_token"] for record in results]


def test_neither_threads_nor_batches_change_a_bit(monkeypatch, pools) -> None:
    monkeypatch.setattr(attention_pass, "STRIP", 90 * 7)
    monkeypatch.setattr(attention_pass, "FEW", 1)
    once = values(threads=1)
    assert once == values(threads=2) == values(threads=5)
    chunks = []
    real = attention_pass._chunks
    monkeypatch.setattr(attention_pass, "_chunks", lambda *a: chunks.extend(real(*a)) or real(*a))
    monkeypatch.setattr(plan, "CACHE_BYTES", 200_000)
    assert values() == once
    assert len(chunks) > 2


def test_clipped_angles_have_their_own_reference() -> None:
    (record,) = shift(500, "fp64", "hf", clip=100.0, **SMALL)
    assert record.attention_tv_max < 1e-4
    assert record.attention_d > 1e-2  # the shift itself changes exact scores


def test_keys_that_tie_but_for_the_order_of_a_sum_are_no_flips(tmp_path) -> None:
    rng = np.random.default_rng(0)
    k = rng.permuted(np.repeat(rng.standard_normal((1, 32)), 40, axis=0), axis=1)
    np.savez(tmp_path / "qk.npz", q=np.ones((1, 40, 32)), k=k[None])
    case = {"qk": str(tmp_path / "qk.npz"), "mask": "full", "rotary_dim": 0}
    (record,) = shift(0, "fp32", "uniform", attention=True, **case)
    assert record.top1_flips == 0


def test_d_is_zero_at_its_anchor_flat_in_bfloat16_and_grows_in_float32() -> None:
    offsets = (0, 2, 16, 250, 500, 1000, 1500, 2000)
    given = {"heads": 4, "seq_len": 128, "attention": True}
    for anchor in (16, 250):
        results = {r.offset: r for r in shift(offsets, "bf16", "hf", anchor=anchor, **given)}
        assert results[anchor].attention_d == results[anchor].attention_d_logit == 0.0
        others = [r.attention_d for r in results.values() if r.offset != anchor]
        assert max(others) < 1.15 * min(others)
    single = [r.attention_d for r in shift(offsets, "fp32", "uniform", **given) if r.offset != 16]
    assert max(single) < 1e-2 * min(others)
    assert single[-1] > 6 * single[0]
    assert single[2:] == sorted(single[2:])
