"""Audits of grids: what rows hold, what is refused, and that each axis is what a sequence alone would be."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import ropeaudit
from ropeaudit import recipes
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits import records
from ropeaudit.audits.cases import Case
from ropeaudit.bounds import terms
from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.main import main
from ropeaudit.reports import reading
from ropeaudit.rope import axial, grids
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

PRESETS = [rope.name for rope in axial.all_presets()]


@pytest.mark.parametrize(
    ("dtype", "offset"), [("float64", 3000), ("float32", 0), ("bfloat16", 3000), ("float8_e4m3", 0)]
)
@pytest.mark.parametrize("name", ["hf", "uniform", "meta", "diffusers-flux"])
def test_each_axis_is_rotated_as_a_sequence_alone(name: str, dtype: str, offset: int) -> None:
    recipe = recipes.named(name).resolve(parse(dtype))
    setting = Case(axes="flux", grid="3x4x5").setting(0)
    grid = setting.grid
    assert grid is not None
    steps = np.arange(grid.count)
    whole = Emulated(recipe, setting).table(steps, offset)
    for axis, dims in enumerate((16, 56, 56)):
        alone = Emulated(recipe, RopeSetting.of(dims, layout="interleaved"))
        places = grid.positions(np.arange(grid.count))[:, axis].astype(np.int64)
        for part, own in zip(whole, alone.table(places, offset), strict=True):
            np.testing.assert_array_equal(part[:, grid.of_pairs() == axis], own)


@pytest.mark.parametrize("name", PRESETS)
def test_no_score_of_a_grid_exceeds_its_bound(name: str) -> None:
    recipe = axial.named(name).recipe
    rows = list(
        ropeaudit.shift(
            [0, 1, 1000], ["fp64", "fp32", "bf16"], [recipe, "uniform"], axes=name, grid="6x7", heads=1
        )
    )
    assert all(row.drift_max <= row.bound_max for row in rows)
    assert all(row.reference_error < 1e-11 for row in rows)
    close = [row for row in rows if row.dtype == "float32" and row.offset == 1000]
    assert all(0.5 < row.predicted_rms / row.drift_rms < 2 for row in close if row.predicted_rms)


def test_a_row_says_its_grid_and_by_how_much_each_axis_moved() -> None:
    still, moved = ropeaudit.shift(
        [0, 3], "fp32", "hf", axes="dinov3", grid="4x6", axis="w", step=0.125, heads=2
    )
    assert (moved.model, moved.axes, moved.grid) == ("dinov3", "16/16 shifted w", "4x6")
    assert (moved.offset, moved.offset_t, moved.offset_h, moved.offset_w) == (3, None, 0.0, 0.375)
    assert (still.offset_h, still.offset_w, still.change_rms) == (0.0, 0.0, 0.0)
    assert (moved.seq_len, moved.head_dim, moved.mask, moved.heads) == (24, 64, "full", 2)
    assert moved.change_rms > 0
    [plain] = ropeaudit.shift(3, "fp32", "hf", heads=1, seq_len=4)
    assert not records.axes_moved_apart(plain)
    assert records.axes_moved_apart(moved)
    [row] = ropeaudit.shift(0, "fp32", "hf", axes="qwen2-vl", grid="2x2")
    assert (row.heads, row.kv_heads, row.grid) == (64, 8, "1x2x2")


def test_a_shift_along_an_axis_of_one_token_changes_no_score() -> None:
    [row] = ropeaudit.shift(1000, "bf16", "uniform", axes="wan", grid="1x4x4", axis="t", heads=1)
    assert row.change_rms < 0.1  # the table's rounding at another angle, the same for all tokens
    [both] = ropeaudit.shift(1000, "bf16", "uniform", axes="wan", grid="1x4x4", axis="w", heads=1)
    assert both.change_rms > row.change_rms


@pytest.mark.parametrize(
    ("dtype", "offset", "step", "axis"),
    [("bf16", 1000, 1.0, "all"), ("bf16", 3000, 1.0, "h"), ("fp16", 7, 0.3, "w"), ("fp32", 5, 1e7, "all")],
)
def test_distinct_tokens_are_counted_one_by_one(
    dtype: str,
    offset: int,
    step: float,
    axis: str,
) -> None:
    case = Case(axes="cogvideox", grid="5x7", step=step, axis=axis, heads=1)
    [row] = ropeaudit.shift(offset, dtype, "uniform", cases=case)
    subject = Emulated(recipes.named("uniform").resolve(parse(dtype)), case.setting(0))
    held = subject.on_grid(np.arange(35), offset).tolist()
    assert row.distinct_positions == len({tuple(token) for token in held if all(map(math.isfinite, token))})


def test_a_shifted_position_is_rounded_once() -> None:
    """257 + 2^-60 is above the tie of 256 and 258, and float64 does not hold it."""
    rope = replace(axial.named("flux"), start=(Fraction(0), Fraction(1, 2**60), Fraction(0)))
    grid = grids.parse(rope, "1x1")
    setting = replace(RopeSetting.of(128, layout="interleaved"), grid=grid)
    subject = Emulated(recipes.named("uniform").resolve(parse("bf16")), setting)
    assert subject.on_grid(np.arange(1), 257).tolist() == [[256.0, 258.0, 256.0]]


def test_rounded_frequencies_are_predicted_by_the_distances_on_each_axis() -> None:
    setting = Case(axes="flux", grid="8x12").setting(0)
    subject = Emulated(recipes.named("hf-model-cast").resolve(parse("bf16")), setting)
    assert not terms.rate(subject).any()
    cast = {"frequency": "bf16"}
    [row] = ropeaudit.shift(0, "fp32", "meta", changes=cast, axes="flux", grid="16x24", heads=1)
    assert row.drift_rms > 100 * row.attainable_rms
    assert row.predicted_rms == pytest.approx(row.drift_rms, rel=0.2)


@pytest.mark.parametrize(
    ("name", "form"), [("flux", "power"), ("dinov3", "divide"), ("ltx-video", "exp"), ("flux", "exp2")]
)
def test_every_form_of_the_frequencies_is_that_of_the_preset(name: str, form: str) -> None:
    changes = {"frequency_form": form}
    [row] = ropeaudit.shift(0, "fp64", "uniform", changes=changes, axes=name, grid="4x4", heads=1)
    assert row.drift_relative < 1e-11


def test_ideogram_loses_its_image_where_positions_have_16_bits() -> None:
    half, brain = ropeaudit.shift(0, ["fp16", "bf16"], "uniform", axes="ideogram-4", grid="8x8", heads=1)
    assert (brain.distinct_positions, brain.within_tolerance) == (1, False)
    assert (half.distinct_positions, half.verdict) == (0, "overflow")  # 65536 is past the largest float16


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    case = ["--axes", "flux,dinov3", "--grid", "3x4", "--axis", "w", "--step", "0.5", "--heads", "1"]
    command = ["shift", *case, "--dtype", "bf16", "--recipe", "hf", "-q"]
    for name in ("a.csv", "a.json"):
        assert main([*command, "-o", str(tmp_path / name)]) == 0
    first, second = (reading.read(str(tmp_path / name)) for name in ("a.csv", "a.json"))
    assert list(first) == [{name: row[name] for name in first[0]} for row in second]
    assert set(second[0]) - set(first[0]) == {"reason"}  # a sentence
    assert [row["offset_w"] for row in first] == [0.0, 500.0, 0.0, 500.0]
    assert {row["offset_h"] for row in first} == {0.0}
    before = (tmp_path / "a.csv").read_bytes()
    assert main([*command, "--resume", "--jobs", "2", "-o", str(tmp_path / "a.csv")]) == 0
    assert (tmp_path / "a.csv").read_bytes() == before


def test_axes_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[mine]\naxes = ["h", "w"]\ndims = [8, 4]\nbase = [100, 50.5]\nhead_dim = 16\n')
    rope = axial.named(str(path))
    assert [tuple(pair) for pair in rope.pairs()][3:] == [(0, 6, 8), (1, 0, 4), (1, 2, 4)]
    [row] = ropeaudit.shift(0, "fp64", "uniform", axes=str(path), grid="2x3", heads=1)
    assert (row.model, row.rotary_dim, row.head_dim, row.seq_len) == ("mine", 12, 16, 6)
    table = '[mine]\naxes = ["h", "w"]\ndims = [16, 16]\nbase = 100\nhead_dim = 32\n'
    path.write_text(table.replace("[16, 16]", "[4, 4]") + 'arrangement = "linspace"\nheads = 1\n')
    [row] = ropeaudit.shift(5, "fp64", "fp64-angles", axes=str(path), grid="2x3", heads=1)
    assert row.rotary_dim == 32
    assert row.drift_rms < 1e-9
    for text, message in {
        "[mine]\naxes = 3": "mine.toml",
        "axes": "mine.toml",
        '[a]\naxes=["h"]\ndims=[3]\nhead_dim=4': "mine.toml",
        table.replace("32", "16"): "32 rotated dims do not fit a head_dim of 16",
        table.replace("head_dim = 32", "head_dim = 33"): "head_dim 33 is not even; pairs rotate",
        f"{table}factor = -2.0": "unknown factor of axes '-2.0'",
        f"{table}[two]\naxes = []": "it has 2 tables and is to have one",
    }.items():
        path.write_text(text)
        with pytest.raises(RopeAuditError, match=re.escape(message)):
            axial.named(str(path))


GRID = {"axes": "flux", "grid": "4x4"}


def test_other_commands_refuse_a_grid() -> None:
    for call in (ropeaudit.explain, ropeaudit.limit):
        with pytest.raises(UsageError, match="shift` alone"):
            call(cases=Case(**GRID))
        with pytest.raises(UsageError, match="unknown argument of"):
            call(**GRID)


def test_sampled_scores_and_attention_go_with_a_grid() -> None:
    [row] = ropeaudit.shift(0, "bf16", "hf", **GRID, heads=1, sample=200)
    assert row.sample == 200
    assert row.predicted_rms == pytest.approx(row.drift_rms, rel=0.6)  # few tokens, many of them at 0
    [row] = ropeaudit.shift(0, "bf16", "hf", **GRID, heads=1, attention=True)
    assert row.attention_tv_max is not None
    assert row.attention_tv_max > 0


def test_captured_vectors_have_as_many_tokens_as_the_grid(tmp_path: Path) -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 1, 16, 128))
    np.savez(tmp_path / "qk.npz", q=q, k=k)
    [row] = ropeaudit.shift(0, "fp32", "hf", **GRID, qk=str(tmp_path / "qk.npz"))
    assert row.within_tolerance is True
    with pytest.raises(UsageError, match="has 16 tokens and the grid 12"):
        list(ropeaudit.shift(0, "fp32", "hf", axes="flux", grid="3x4", qk=str(tmp_path / "qk.npz")))


def test_axes_of_a_file_are_told_apart_by_its_content(tmp_path: Path) -> None:
    """A row of another file of the same name is no row of this one: --resume and diff go by its digest."""
    table = '[mine]\naxes = ["h", "w"]\ndims = [16, 16]\nbase = 100\nhead_dim = 32\n'
    texts = []
    for more in ("", "start = 1000\n"):
        (tmp_path / "mine.toml").write_text(table + more)
        [row] = ropeaudit.shift(0, "bf16", "uniform", axes=str(tmp_path / "mine.toml"), grid="3x3", heads=1)
        texts.append(row.axes)
    assert texts[0] != texts[1]
    assert all(" sha256:" in text for text in texts)
