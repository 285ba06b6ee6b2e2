"""`shift --rerotate`: the measured row of the literature, what grows, the norm."""

import math
import threading

import numpy as np
import pytest
from rerotated import measure

from ropeaudit import Case, limit, parse, shift
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import cases
from ropeaudit.audits.records import COLUMNS
from ropeaudit.engine import plan
from ropeaudit.errors import UsageError
from ropeaudit.inputs import qk
from ropeaudit.recipes import named
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import threads
from ropeaudit.subjects.emulated import Emulated

# Measured with an independent script: head_dim 128, base 1e4, bf16 tables and keys, float32 rotation and
# scores: the recipe vllm-cuda. Steps of -16 -> RMS drift; +13 % key norm after 256.
MEASURED = {1: 3.8e-3, 16: 2.2e-2, 64: 8.0e-2, 256: 0.33}


def test_the_measured_row() -> None:
    results = measure("vllm-cuda", list(MEASURED), heads=4, seq_len=192)
    assert [one["rerotated"] for one in results] == [f"{turns} x -16" for turns in MEASURED]
    for one, drift in zip(results, MEASURED.values(), strict=True):
        assert one["drift_rms"] == pytest.approx(drift, rel=0.15)
        assert one["reference_rms"] == pytest.approx(1, abs=0.05)
    assert results[-1]["key_norm_growth"] == pytest.approx(0.13, rel=0.15)


def test_a_float32_table_does_not_lengthen_keys() -> None:
    (wide,), (narrow,) = measure("meta", [128]), measure("vllm-cuda", [128])
    assert wide["drift_rms"] < 0.5 * narrow["drift_rms"]
    assert abs(wide["key_norm_growth"]) < 0.005 < 0.03 < narrow["key_norm_growth"]


def test_the_norm_grows_by_the_table_of_the_step() -> None:
    """Every step multiplies pair i by sqrt(cos² + sin²) of the stored cos and sin."""
    subject = Emulated(named("vllm-cuda").resolve(parse("bf16")), RopeSetting.of())
    cos, sin = (x.astype(np.float64) for x in subject.table(np.zeros(1, dtype=np.int64), -16))
    (result,) = measure("vllm-cuda", [64], changes={"output": "fp32"})
    k = qk.make("gaussian", 2, 2, 128, RopeSetting.of(128), 0).k
    length = np.hypot(cos, sin)[0] ** 64
    grown = np.linalg.norm(k * np.concatenate([length, length]), axis=2) / np.linalg.norm(k, axis=2)
    assert result["key_norm_growth"] == pytest.approx(grown.mean() - 1, rel=0.02)


def test_no_turn_is_the_fresh_rotation() -> None:
    (result,) = measure("hf", 0)
    (plain,) = shift(0, "bf16", "hf", heads=2, seq_len=128)
    assert plain.rerotated is plain.key_norm_growth is None
    measured = COLUMNS.having("drift")
    measured = [name for name in measured if name != "drift_rms_low" and name != "drift_rms_high"]
    assert {name: result[name] for name in measured} == {name: getattr(plain, name) for name in measured}
    assert result["drift_rms"] > 0
    assert abs(result["key_norm_growth"]) < 1e-3


@pytest.mark.parametrize(("by", "offset"), [(-16, 0), (16, 5000), (1000, 0)])
def test_float64_barely_drifts(by, offset) -> None:
    results = measure("fp64-angles", [1, 20], by, "fp64", offset)
    assert all(one["drift_max"] < 1e-9 for one in results)
    assert [one["offset"] for one in results] == [offset, offset]


def test_keys_are_turned_one_step_after_the_other_from_stored_values() -> None:
    """Written down anew: three steps of +5 with the recipe hf, one head, all scores at once."""
    some, setting = qk.make("gaussian", 1, 1, 40, RopeSetting.of(128), 0), RopeSetting.of()
    subject = Emulated(named("hf-sdpa").resolve(parse("bf16")), setting)
    positions = np.arange(40, dtype=np.int64)
    q = subject.rotate(round_to(some.q[0], subject.input), subject.table(positions, 15))
    k = subject.rotate(round_to(some.k[0], subject.input), subject.table(positions, 0))
    for _ in range(3):
        k = subject.rotate(k, subject.table(np.full(40, 5), 0))
    own = np.tril(q.astype(np.float64) @ k.astype(np.float64).T) / math.sqrt(128)
    exact = Emulated(named("fp64-angles").resolve(parse("fp64")), setting)
    x, y = (
        exact.rotate(round_to(side[0], subject.input).astype(np.float64), exact.table(positions, 15))
        for side in (some.q, some.k)
    )
    difference = own - np.tril(x @ y.T) / math.sqrt(128)
    (result,) = measure(
        "hf-sdpa", 3, 5, heads=1, seq_len=40, offset=15, changes={"accumulate": "fp64", "score": "fp64"}
    )
    assert result["drift_rms"] == pytest.approx(math.sqrt((difference**2).sum() / result["scores"]), rel=1e-4)
    assert result["drift_max"] == pytest.approx(np.abs(difference).max(), rel=1e-3)


def test_an_attention_factor_comes_in_once() -> None:
    result = measure("meta", [0, 50], dtype="fp32", scaling="yarn:factor=4,original=32768")
    assert abs(result[1]["key_norm_growth"]) < 1e-5
    assert result[1]["drift_relative"] < 1e-3
    assert result[1]["reference_rms"] > 1.2  # the factor is there: 1.1386²
    assert abs(result[0]["key_norm_growth"]) < 1e-5


def test_groups_layouts_and_axes() -> None:
    for case in (
        {"heads": 4, "kv_heads": 2, "layout": "interleaved", "rotary_dim": 64},
        {"mrope": "16,24,24", "axis": "t"},
    ):
        (result,) = measure("fp64-angles", [10], dtype="fp64", **case)
        assert result["drift_max"] < 1e-9


def test_panels_and_blocks_do_not_change_the_result(monkeypatch) -> None:
    (whole,) = measure("hf", [4])
    monkeypatch.setattr(plan, "PANEL", 48)
    monkeypatch.setattr("ropeaudit.subjects.emulated._BLOCK", 7)
    (cut,) = measure("hf", [4])
    assert cut["drift_rms"] == pytest.approx(whole["drift_rms"], rel=1e-2)
    assert cut["key_norm_growth"] == whole["key_norm_growth"]


def test_threads_and_a_pass_for_attention_change_nothing() -> None:
    case = {"heads": 2, "seq_len": 600, "dtypes": "bf16", "recipes": "vllm-cuda", "rerotate": 8}
    (alone,) = shift(100, threads=1, **case)
    (together,) = shift(100, threads=2, attention=True, **case)
    for name in ("drift_rms", "change_rms", "key_norm_growth"):
        assert getattr(alone, name) == getattr(together, name)
    assert together.attention_tv_mean > 0


def test_a_sample_measures_the_same_drift_without_norms() -> None:
    case = {"heads": 2, "seq_len": 256, "dtypes": "bf16", "recipes": "vllm-cuda", "rerotate": 64}
    (whole,) = shift(0, **case)
    (sampled,) = shift(0, sample=4000, **case)
    assert sampled.drift_rms_low < whole.drift_rms < sampled.drift_rms_high
    assert sampled.key_norm_growth is None


def test_nothing_is_predicted_of_turned_keys() -> None:
    (result,) = measure("hf", [1])
    assert result["bound_max"] is result["predicted_rms"] is None


def test_lists_of_turns_are_each_a_case() -> None:
    assert [one["rerotated"] for one in measure("hf", [3, 1, 3], seq_len=16)] == ["3 x -16", "1 x -16"]


def test_keys_are_stored_where_positions_are_exact() -> None:
    with pytest.raises(UsageError, match="goes with `ropeaudit shift` alone"):
        limit(cases=Case(rerotate=1))
    assert Case(rerotate=4, turn=-8).rotated_offsets([0, 100]) == [0, 100, 32, 132]
    assert cases.LIMIT == 2**53


def test_zero_keys_have_no_norm_to_grow(tmp_path) -> None:
    path = tmp_path / "qk.npz"
    np.savez(path, q=np.ones((1, 4, 8)), k=np.zeros((1, 4, 8)))
    (result,) = measure("hf", [2], qk=str(path), heads=None, seq_len=None)
    assert math.isnan(result["key_norm_growth"])
    assert result["drift_max"] == 0


def test_turns_end_with_the_work_that_they_are_of() -> None:
    """A Ctrl-C is not kept waiting by threads that take many turns."""
    begun, ended = threading.Event(), threading.Event()

    def until_dropped(_: int) -> None:
        begun.set()
        while not threads.dropped():
            ended.wait(0.001)
        ended.set()

    def interrupted() -> None:
        with threads.mapping(2) as mapped:
            assert next(mapped(lambda _: threads.dropped(), [0])) is False
            results = mapped(until_dropped, [0])
            begun.wait()
            assert not ended.is_set()
            raise KeyboardInterrupt(results)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended.is_set()
    assert not threads.dropped()
