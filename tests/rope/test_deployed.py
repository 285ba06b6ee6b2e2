"""RoPE as deployed: what a scaling, a clip or a position axis does to exact scores and to drift."""

import numpy as np
import pytest
from command_line import ran

from ropeaudit import Record, shift
from ropeaudit.errors import UsageError
from ropeaudit.rope import axes
from ropeaudit.rope.axes import LARGEST_DIM
from ropeaudit.rope.setting import RopeSetting

SMALL = {"heads": 2, "seq_len": 64, "head_dim": 32}
DYNAMIC = "dynamic:factor=4,maximum=2048"
LONG = "longrope:factor=4,original=1024,short={},long={}".format(
    ";".join("1" for _ in range(16)), ";".join(str(1 + 0.5 * i) for i in range(16))
)


def rows(*args: object, **kwargs: object) -> list[Record]:
    return list(shift(*args, **(SMALL | kwargs)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("spec", "edge"), [(DYNAMIC, 2048), (LONG, 1024)])
def test_structure_jumps_where_the_length_crosses_the_border(spec: str, edge: int) -> None:
    """transformers recomputes frequencies once the largest position + 1 exceeds the border."""
    last = edge - SMALL["seq_len"]
    results = rows((0, last, last + 1, 16384), ("fp64", "fp32", "bf16"), "hf", scaling=spec, length="shifted")
    for record in results:
        if record.offset <= last:
            assert record.structural_max == 0.0
        else:
            assert record.structural_rms > 1e-4
    per_dtype = [
        [r.structural_rms for r in results if r.dtype == name] for name in ("float64", "float32", "bfloat16")
    ]
    assert per_dtype[0] == per_dtype[1] == per_dtype[2]  # q and k are the same in every dtype
    drift = [r.drift_rms for r in results if r.dtype == "float64"]
    assert drift[2] < 3 * drift[1]  # what is left beside the structure does not jump


@pytest.mark.parametrize("spec", [DYNAMIC, LONG])
def test_frequencies_are_frozen_by_default(spec: str, capsys) -> None:
    assert {r.structural_max for r in rows((0, 2**20), "fp32", scaling=spec)} == {0.0}
    line = "shift --offset 0,1m --dtype fp32 --heads 1 --head-dim 32 --scaling"
    assert "--length shifted lets them change" in ran(capsys, [*line.split(), spec]).out


def test_whole_p_rope_is_rope_and_no_p_rope_is_no_position() -> None:
    plain = rows((0, 1000, 2**20), ("fp64", "fp32", "bf16"))
    whole = rows((0, 1000, 2**20), ("fp64", "fp32", "bf16"), scaling="proportional:fraction=1")
    for a, b in zip(plain, whole, strict=True):
        assert (a.drift_max, a.drift_rms, a.change_rms) == (b.drift_max, b.drift_rms, b.change_rms)
    changes = {"accumulate": "fp64"}  # without position all that is left is the sum of products
    none = rows(
        (0, 1000, 131071),
        ("fp32", "bf16"),
        scaling="proportional:fraction=0",
        scale=0.125,
        qk="ones",
        changes=changes,
    )
    for record in none:
        assert record.drift_max == record.change_max == 0.0
        assert record.verdict == "exact"
    gaussian = rows((0, 1000, 131071), ("fp64", "fp32", "bf16"), scaling="proportional:fraction=0")
    assert {record.change_max for record in gaussian} == {0.0}
    without = rows((0, 1000, 131071), ("fp64", "fp32", "bf16"), rotary_dim=0)
    for a, b in zip(gaussian, without, strict=True):
        assert (a.drift_max, a.drift_rms, a.drift_bias) == (b.drift_max, b.drift_rms, b.drift_bias)


def test_clipping_at_infinity_is_rope_and_a_clip_is_structure() -> None:
    plain, far = rows(1000, "fp32"), rows(1000, "fp32", clip=float("inf"))
    assert plain == far
    (near,) = rows(1000, "fp64", "uniform", clip=10.0)
    assert near.structural_rms > 0.1
    assert near.drift_rms < 1e-14


def test_all_axes_together_are_one_axis_and_one_axis_moves_its_pairs_alone() -> None:
    figures = ("drift_max", "drift_rms", "change_rms", "reference_rms")
    plain, together = (rows(1000, "bf16", "uniform", mrope=mrope) for mrope in (None, "4,6,6"))
    for name in figures:
        assert getattr(plain[0], name) == getattr(together[0], name)
    one = {axis: rows(1000, "bf16", "uniform", mrope="4,6,6", axis=axis)[0] for axis in "thw"}
    assert one["t"].change_rms > one["w"].change_rms > 0  # the first pairs are the fast ones
    assert one["h"].structural_max == 0.0
    assert one["t"].axes == "split 4/6/6 shifted t"


def test_sections_as_transformers_arranges_them() -> None:
    """Qwen2-VL takes contiguous sections; Qwen3-VL puts h and w at every third place."""
    assert axes.parse("2,1,1").of_pairs().tolist() == [0, 0, 1, 2]
    assert axes.parse("4,2,2:interleaved").of_pairs().tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


def test_the_float64_subject_agrees_with_the_reference_for_every_scaling() -> None:
    for spec in (DYNAMIC, LONG, "yarn:factor=4,original=64", "llama3:factor=8,low=1,high=4,original=64"):
        (record,) = rows(0, "fp64", "uniform", scaling=spec)
        assert record.drift_rms < 2e-15 * max(record.reference_rms, 1)


@pytest.mark.parametrize("clip", [1e-100, 1e15, float("inf")])
def test_the_ends_of_clips_give_no_warnings(clip: float) -> None:
    (record,) = rows(1000, "fp32", "hf", clip=clip)
    assert record.drift_max < 1


def test_a_negative_offset_shortens_the_length() -> None:
    """transformers takes max(position_ids) + 1, which is below the border again."""
    spec = LONG.replace("original=1024", "original=60")
    base, back = rows((0, -10), "fp32", "uniform", scaling=spec, length="shifted")
    assert (base.structural_max, base.length) == (0.0, 61)
    assert (back.length, back.structural_rms > 1e-3) == (60, True)


def test_a_clip_that_is_not_reached_changes_nothing_and_one_axis_is_refused() -> None:
    (record,) = rows(1000, "fp32", "uniform", clip=1e9)
    assert record.structural_max == 0.0
    with pytest.raises(UsageError, match="clip goes with axis all"):
        rows(1000, "fp32", clip=10.0, mrope="4,6,6", axis="h")


def test_a_narrow_position_does_not_make_float64_exact() -> None:
    """Positions below 2^24 are exact in float32: the verdict is that of float64 throughout."""
    plain = rows((0, 1000), "fp64", "uniform")
    narrow = rows((0, 1000), "fp64", "uniform", changes={"position": "fp32"})
    assert [r.verdict for r in narrow] == [r.verdict for r in plain] == ["sound", "growing"]
    assert [r.drift_rms for r in narrow] == [r.drift_rms for r in plain]


def test_a_scaling_by_hand_drops_the_scale_of_the_models_own() -> None:
    (own,) = shift(0, "fp32", "hf", model="deepseek-v3", heads=1, seq_len=4)
    (plain,) = shift(0, "fp32", "hf", model="deepseek-v3", scaling="default", heads=1, seq_len=4)
    assert plain.scale == pytest.approx(192**-0.5)
    assert own.scale / plain.scale == pytest.approx(1.8739, abs=5e-5)


def test_nonsense_is_refused() -> None:
    of_scalings = ("dynamic:factor=3,maximum=1e-300", "yarn:factor=4,original=4096,beta_slow=1e-320")
    others = [{"heads": 2.5}, {"seq_len": True}, {"base": "1e4"}, {"base": 1e300}, {"head_dim": 2**20}]
    for case in (*others, *({"scaling": one} for one in of_scalings)):
        with pytest.raises(UsageError):
            rows(0, "fp32", **case)


def test_the_largest_that_a_message_names_is_taken() -> None:
    assert RopeSetting.of(LARGEST_DIM, base=1e100).head_dim == LARGEST_DIM
    for sizes in ({"base": 1.0000001e100}, {"base": 1.0}, {"head_dim": LARGEST_DIM + 2}):
        said = f"above 1, up to 1e100|from 2 to {LARGEST_DIM}; try head_dim 128"
        with pytest.raises(UsageError, match=said):
            RopeSetting.of(**sizes)


def test_scores_as_small_as_float32_holds_are_taken(tmp_path) -> None:
    x = np.ones((1, 4, 2))
    np.savez(tmp_path / "small.npz", q=x * 1.5e-25 * 2**0.5, k=x)  # of a scale of 1 / sqrt(2)
    assert [one.offset for one in shift(0, "fp32", "hf", qk=str(tmp_path / "small.npz"))] == [0]


def test_numpy_integers_are_offsets() -> None:
    assert [record.offset for record in rows(np.int64(7), "fp32", "hf")] == [7]
