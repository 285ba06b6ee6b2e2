"""Masks: which scores count, and that a window changes nothing but that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ropeaudit import parse, recipes, shift
from ropeaudit.engine import plan
from ropeaudit.inputs import masks, qk
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

SIZES = some.integers(1, 60)
MASKS = some.one_of(some.sampled_from(["causal", "full"]), some.integers(1, 70).map("window:{}".format))
WHOLE = {"accumulate": "fp64", "score": "fp64"}  # a float32 BLAS product may depend on the shape of the tile


def dense(mask: str, size: int) -> np.ndarray:
    """Every query and key written out. Shapes: -> (queries, keys)."""
    m, n = np.arange(size)[:, None], np.arange(size)[None, :]
    if mask == "full":
        return np.ones((size, size), bool)
    width = int(mask.partition(":")[2] or size)
    return (m - width < n) & (n <= m)


@settings(deadline=None)
@given(MASKS, SIZES)
def test_count_and_hidden_are_the_definition(mask, size) -> None:
    seen = dense(mask, size)
    assert masks.count(mask, size) == seen.sum()
    hidden = masks.hidden(mask, slice(0, size), slice(0, size))
    assert np.array_equal(seen, np.ones_like(seen) if hidden is None else ~hidden)


@given(MASKS, SIZES)
def test_scores_are_numbered_row_by_row(mask, size) -> None:
    numbers = np.arange(masks.count(mask, size))
    assert np.array_equal(masks.score_indices(mask, size, numbers), np.nonzero(dense(mask, size)))


@pytest.mark.parametrize("mask", ["causal", "full", "window:70001", "window:1"])
def test_scores_of_long_sequences_are_numbered_exactly(mask) -> None:
    size, count = 2**30 + 7, masks.count(mask, 2**30 + 7)
    for number in (
        0,
        1,
        count // 3,
        count - 2,
        count - 1,
        *(masks.count(mask, n) for n in (70000, 70001, 2**29)),
    ):
        query, key = (int(part[0]) for part in masks.score_indices(mask, size, np.array([number])))
        before = query * size if mask == "full" else masks.count(mask, query)
        assert number == before + key - masks.columns(mask, slice(query, query + 1), size).start
        assert key < masks.columns(mask, slice(query, query + 1), size).stop


# ---------------------------------------------------------------------------- what is measured


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(plan, "PANEL", 32)
    monkeypatch.setattr(plan, "TILE_ROWS", 16)
    monkeypatch.setattr(plan, "TILE_COLUMNS", 8)


def scores(subject: Emulated, built: qk.Inputs, offset: int) -> np.ndarray:
    """All scores at once. Shapes: -> (h, s, s)."""
    table = subject.table(np.arange(built.q.shape[1]), offset)
    q, k = (
        [subject.rotate(head.astype(np.float32), table).astype(float) for head in x]
        for x in (built.q, built.k)
    )
    return np.stack([a @ b.T for a, b in zip(q, k, strict=True)]) * subject.setting.scale


def exact(built: qk.Inputs, setting: RopeSetting) -> np.ndarray:
    """The scores of textbook RoPE in float64, by distances. Shapes: -> (h, s, s)."""
    half = setting.head_dim // 2
    q, k = (x[..., :half] + 1j * x[..., half:] for x in (built.q, built.k))
    size = built.q.shape[1]
    theta = setting.base ** (-np.arange(half) / half)
    rotate = np.exp(1j * np.subtract.outer(np.arange(size), np.arange(size))[..., None] * theta)
    return np.einsum("hmp,hnp,mnp->hmn", q, k.conj(), rotate).real * setting.scale


@pytest.mark.parametrize("size", [1, 17, 90])
@pytest.mark.parametrize("width", [1, 2, 8, 16, 33, 89])
@pytest.mark.usefixtures("small")
def test_statistics_are_those_of_whole_matrices(size, width) -> None:
    built, setting = qk.make("gaussian", 2, 2, size, RopeSetting.of(16)), RopeSetting.of(16)
    subject = Emulated(recipes.named("hf").resolve(parse("bf16")), setting)
    seen = np.broadcast_to(dense(f"window:{width}", size), (2, size, size))
    at, base = scores(subject, built, 1000), scores(subject, built, 0)
    drift, own = (at - exact(built, setting))[seen], (at - base)[seen]
    (result,) = shift(
        1000, "bf16", "hf", heads=2, seq_len=size, head_dim=16, mask=f"window:{width}", changes=WHOLE
    )
    assert (result.mask, result.scores) == (f"window:{width}", drift.size)
    assert result.drift_rms == pytest.approx(np.sqrt((drift**2).mean()), rel=1e-9)
    assert result.drift_bias == pytest.approx(drift.mean(), rel=1e-7, abs=1e-12)
    assert result.drift_max == pytest.approx(np.abs(drift).max(), rel=1e-9)
    assert result.change_rms == pytest.approx(np.sqrt((own**2).mean()), rel=1e-9)
    assert result.reference_rms == pytest.approx(
        np.sqrt((exact(built, setting)[seen] ** 2).mean()), rel=1e-12
    )
    assert 0 <= result.worst_query - result.worst_key < width


@pytest.mark.parametrize("width", [90, 91, 10**9])
def test_a_window_as_wide_as_the_sequence_is_causal_bit_for_bit(width, small) -> None:
    setting = {"seq_len": 90, "heads": 4, "kv_heads": 2, "head_dim": 16, "recipes": ["hf", "uniform"]}
    wide, causal = (list(shift(1000, mask=mask, **setting)) for mask in (f"window:{width}", "causal"))
    same = {"mask": "", "case": ""}
    assert [r.as_dict() | same for r in wide] == [r.as_dict() | same for r in causal]
