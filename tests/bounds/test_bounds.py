"""Measured drift never exceeds the bound, and its RMS is about what is predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import recipes, shift
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.bounds import Bound, bound, bounds, terms
from ropeaudit.bounds.terms import Endings
from ropeaudit.engine import kernel
from ropeaudit.engine.measure import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs, make
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import rotations_per_token
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

DTYPES = ("fp64", "fp32", "fp16", "bf16")
MORE = (*DTYPES, "tf32", "fp8_e4m3", "fp8_e5m2")
OFFSETS = (0, 7, 1000, -5000, 131072)
FEW = ("uniform", "hf", "meta", "llamacpp-cpu", "fp64-angles")
ALL = tuple(recipe.name for recipe in recipes.all_recipes() if not recipe.refused)
SMALL: dict[str, Any] = {"head_dim": 8, "seq_len": 24, "heads": 2}
YARN = "yarn:factor=4,original=64"

CASES: list[dict[str, Any]] = [
    {},
    {"qk": "ones"},
    {"qk": "arange"},
    {"rotary_dim": 4},
    {"rotary_dim": 0},
    {"heads": 4, "kv_heads": 2, "mask": "full"},
    {"layout": "interleaved", "base": 5e5, "head_dim": 64},
    {"qk": "ones", "scale": 1.0, "head_dim": 2},
    {"scaling": "linear:factor=4"},
    {"scaling": YARN},
    {"scale": 1e6},
    {"scale": 1 / 3},
    {"clip": 5000.0},
    {"clip": 50.0, "rotary_dim": 6},
    {"mrope": "1,2,1", "axis": "h"},
    {"model": "llama-3.1-8b", "heads": 1, "kv_heads": 1},
    {"seq_len": 1},
    {"mask": "window:3"},
]
CHANGES: list[dict[str, str]] = [
    {"accumulate": "fp16"},
    {"accumulate": "fp8_e4m3"},
    {"rotation_rounding": "once"},
    {"frequency_form": "divide"},
    {"frequency_form": "recurrence", "angle": "fp64/bf16"},
    {"frequency_form": "exp2"},
    {"position": "fp8_e4m3"},
    {"angle": "fp16/fp8_e5m2"},
    {"trig": "fp8_e4m3"},
    {"output": "fp8_e4m3"},
    {"rotation": "fp64"},
    {"score": "fp8_e4m3"},
]


def cells(
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
    offsets: tuple[int, ...],
    changes: dict[str, str] | None = None,
    **case: Any,
) -> Iterator[tuple[Record, Bound]]:
    chosen = Case(**case)
    inputs, setting = chosen.load()
    axes, seq_len = chosen.position_axes(setting), inputs.q.shape[1]
    loaded = [recipes.named(name).changed(changes or {}) for name in names]
    known = {recipe.name: recipe for recipe in loaded}
    for record in shift(offsets, dtypes, names, changes=changes, threads=1, **case):
        at = chosen.setting_at(setting, seq_len, record.offset)
        subject = Emulated(known[record.implementation].resolve(parse(record.dtype)), at, axes)
        yield record, bound(subject, inputs, chosen.mask, record.offset)


def holds(record: Record, results: Bound) -> bool:
    """No nan; inf where anything overflowed; else not below what was measured, less its own error.

    The row predicts nothing where numbers may overflow: a prediction is that of a run without it.
    """
    if math.isinf(results.maximum) != math.isnan(record.predicted_rms):
        return False
    if record.nonfinite:
        return results.maximum == math.inf and not math.isnan(results.rms)
    if math.isnan(results.rms) or not math.isfinite(record.drift_max):
        return False
    if math.isfinite(results.maximum) and record.predicted_rms != results.rms:
        return False
    return record.drift_max <= record.bound_max == results.maximum + record.reference_error


def check(*arguments: Any, **case: Any) -> int:
    count = 0
    for record, result in cells(*arguments, **case):
        assert holds(record, result), (record, result)
        count += 1
    return count


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_score_exceeds_the_bound(case: dict[str, Any]) -> None:
    assert check(("uniform", "hf", "llamacpp-cpu"), MORE, (0, -5000, 131072), **{**SMALL, **case}) == 63


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_no_score_exceeds_the_bound_of_a_changed_recipe(changes: dict[str, str]) -> None:
    assert check(("uniform", "hf"), DTYPES, (0, -5000, 131072), changes, **SMALL) == 24


@pytest.mark.parametrize("accumulate", ["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [32, 128])
def test_the_prediction_of_a_narrow_accumulator_is_within_a_tenth(accumulate: str, head_dim: int) -> None:
    case = {"heads": 1, "seq_len": 64, "head_dim": head_dim}
    (row,) = shift(0, "fp64", "uniform", changes={"accumulate": accumulate}, threads=1, **case)
    assert 0.9 < row.predicted_rms / row.drift_rms < 1.1


def test_a_recurrence_in_float64_is_bounded_like_float64() -> None:
    ((record, result),) = cells(("uniform",), ("fp64",), (1000,), {"frequency_form": "recurrence"}, **SMALL)
    assert 0 < record.drift_max < result.maximum < 1e-10


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 0.125, 0.3])
@pytest.mark.parametrize("early", [False, True])
def test_what_storing_adds_to_an_error_is_within_its_bound(fmt: str, scale: float, early: bool) -> None:
    """Also where the error is as large as the score: then it grows by a rounding of its own."""
    rng = np.random.default_rng(0)
    recipe = replace(recipes.named("hf").changed({"score": fmt}), scale_after_store=early)
    subject = Emulated(recipe.resolve(parse("fp32")), RopeSetting.of(8, scale=scale))
    result, sums = terms.score(subject), rng.uniform(-4, 4, (2, 2000)).astype(np.float32)
    exact = sums.astype(np.float64) * np.array([[0.0], [0.7]])
    kernel.store(out := sums.copy(), subject, scale)
    error = np.abs(out.astype(np.float64) - exact * scale)
    most = result.grows * np.abs(sums - exact) + result.adds * np.abs(exact) + result.small
    assert (error <= most * (1 + 1e-12)).all()
    assert (error / most).max() > 0.9


@pytest.mark.slow
def test_no_score_exceeds_the_bound_in_the_whole_grid() -> None:
    count = check(ALL, DTYPES, OFFSETS, head_dim=64, seq_len=64, heads=2)  # of 4,160 pairs each
    count += check(FEW, DTYPES, OFFSETS, head_dim=128, seq_len=64, heads=2, base=5e5)
    count += check(ALL, DTYPES, OFFSETS, **SMALL)
    count += sum(check(FEW, MORE, OFFSETS, **{**SMALL, **case}) for case in CASES)
    for changes in CHANGES:
        for case in ({}, {"qk": "ones"}, {"clip": 100.0}):
            count += check(FEW, DTYPES, OFFSETS, changes, **{**SMALL, **case})
    count += check(FEW, DTYPES, OFFSETS, seq_len=1100, heads=1, head_dim=16, mask="full")
    assert count > 5000


def aligned(subject: Emulated, seq_len: int, offset: int) -> Inputs:
    """q and k in which the phase errors of every pair of the last query and the first key add up."""
    angles = subject.angles(np.array([seq_len - 1, 0]) + offset).astype(np.float64)
    rotate = 2 * math.pi * (seq_len - 1) * rotations_per_token(subject.setting)[0]
    error = (angles[0] - angles[1]) - rotate
    q, k = np.zeros((2, 1, seq_len, subject.setting.head_dim))
    for x, phase in ((q, -np.sign(error) * math.pi / 2 - rotate), (k, np.zeros_like(rotate))):
        first, second = split_pairs(x, subject.setting)
        first[...], second[...] = np.cos(phase), np.sin(phase)
    return Inputs(q, k, "aligned", None)


@pytest.mark.parametrize("name", ["uniform", "hf", "hf-model-cast", "llamacpp-cpu", "hf-tf32-matmul"])
@pytest.mark.parametrize("dtype", MORE)
def test_aligned_phase_errors_stay_below_the_bound(name: str, dtype: str) -> None:
    for offset in (1000, -32768, 131072):
        setting = RopeSetting.of(64)
        subject = Emulated(recipes.named(name).resolve(parse(dtype)), setting)
        if not np.isfinite(subject.angles(np.array([47, 0]) + offset)).all():
            continue
        inputs = aligned(subject, 48, offset)
        drift = measure(Plan([subject], [[0, offset]], inputs, setting, "full"), 1)
        result = bound(subject, inputs, "full", offset)
        assert drift[0, offset].drift.nonfinite == 0
        assert drift[0, offset].drift.max <= result.maximum
        if dtype == "fp32" and name == "uniform":
            assert drift[0, offset].drift.max >= 0.2 * result.maximum  # nearly half of it is roundings


def test_what_overflows_has_no_bound() -> None:
    subject = Emulated(recipes.named("uniform").resolve(parse("fp16")), RopeSetting.of(64))
    inputs = make("gaussian", 1, 1, 16, RopeSetting.of(64))
    assert bound(subject, inputs, "causal", 65536) == Bound(math.inf, math.inf)
    assert bound(subject, make("arange", 1, 1, 16, RopeSetting.of(64)), "causal", 0).maximum == math.inf
    assert math.isfinite(bound(subject, inputs, "causal", 1000).maximum)


@pytest.mark.parametrize("mask", ["causal", "full", "window:1", "window:3", "window:20"])
@pytest.mark.parametrize("edges", [[0, 1], [0, 3, 6, 7], [0, 1, 2, 3, 4, 5], [0, 16, 32, 40]])
def test_blocks_see_as_many_scores_as_the_mask_shows(mask: Mask, edges: list[int]) -> None:
    size = edges[-1]
    hidden = masks.hidden(mask, slice(0, size), slice(0, size))
    seen = np.ones((size, size), int) if hidden is None else (~hidden).astype(int)
    sums = np.add.reduceat(np.add.reduceat(seen, edges[:-1], axis=0), edges[:-1], axis=1)
    first, last = np.array(edges[:-1]), np.array(edges[1:])
    counted = masks.counts(mask, (first[:, None], last[:, None]), (first[None], last[None]))
    assert (counted == sums).all()
    assert sums.sum() == masks.count(mask, size)


def test_the_bounds_of_many_cells_are_those_of_each_alone() -> None:
    setting, inputs = RopeSetting.of(16, rotary_dim=8), make("gaussian", 4, 2, 700, RopeSetting.of(16))
    subjects = [Emulated(recipes.named("hf").resolve(parse(dtype)), setting) for dtype in MORE]
    cells = [(subject, offset) for subject in subjects for offset in (0, 5000)]
    alone = [bound(subject, inputs, "causal", offset) for subject, offset in cells]
    assert bounds(cells, inputs, "causal", 3) == alone
    assert bounds([], inputs, "causal") == []


@pytest.mark.parametrize("clip", [math.inf, 50.0, 1.1])
@pytest.mark.parametrize(("dtype", "frequency"), [("fp32", "fp32"), ("fp32", "bf16"), ("fp64", "bf16")])
def test_angles_are_off_by_what_is_known_and_at_most_the_worst_more(clip, dtype, frequency) -> None:
    """In fractions: of products that are exact only the float64 of what is known is left."""
    setting, steps = RopeSetting.of(16, clip=clip), np.arange(1, 60)
    recipe = recipes.named("uniform").changed({"frequency": frequency}).resolve(parse(dtype))
    subject = Emulated(recipe, setting)
    stored, seen = subject.angles(steps).astype(np.float64), terms.phase(subject, steps, 0)
    for pair, theta in enumerate(exact_frequencies.frequencies(setting)):
        for row, step in enumerate(steps.tolist()):
            exact = step * Fraction(theta)
            exact = exact if clip == math.inf else min(exact, Fraction(clip))
            off = Fraction(stored[row, pair]) - exact - Fraction(seen.known[row, pair])
            assert abs(off) <= seen.worst[row, pair], (step, pair)


NUMBERS = st.lists(st.floats(-(2.0**40), 2.0**40, allow_subnormal=False), min_size=1, max_size=6)


@given(NUMBERS, NUMBERS, st.integers(-200, 60))
def test_the_share_is_that_of_all_products(q, k, exponent) -> None:
    endings = Endings()
    for side, x in enumerate((q, k)):
        endings.add(side, np.array(x))
    scaled = [Fraction(a) * Fraction(b) / Fraction(2) ** exponent for a in q for b in k]
    want = sum(x.denominator > 1 for x in scaled) / len(scaled)
    assert endings.share_below(exponent) == pytest.approx(want, abs=1e-12)


def test_the_worst_pair_has_all_of_its_roundings() -> None:
    fp32 = parse("fp32")
    hf = Emulated(recipes.named("hf").resolve(fp32), RopeSetting.of(8))
    least = (3 + math.sqrt(2)) * fp32.unit_roundoff
    assert terms.rotated_pair(hf).worst > least
