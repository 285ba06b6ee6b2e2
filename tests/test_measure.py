"""Tiles, panels, threads and batches change nothing."""

import numpy as np
import pytest

from ropeaudit import Record, RopeSetting, case_run, inputs, shift
from ropeaudit.measuring import plan, tile

SETTING = {"seq_len": 90, "heads": 4, "kv_heads": 2, "head_dim": 16, "recipe": ["hf", "uniform"]}
EXACT = [
    "subject",
    "dtype",
    "offset",
    "scores",
    "nonfinite",
    "distinct_positions",
    "drift_max",
    "self_drift_max",
    "worst_head",
    "worst_query",
    "worst_key",
    "verdict",
]
SUMS = ["drift_rms", "drift_mean_abs", "self_drift_rms", "reference_rms", "floor_rms"]


def run(**changes: object) -> list[Record]:
    return list(shift((0, 1000, -5), ("fp64", "fp32", "bf16", "fp16"), **(SETTING | changes)))


def same(left: list[Record], right: list[Record]) -> None:
    for a, b in zip(left, right, strict=True):
        for name in EXACT:
            assert getattr(a, name) == getattr(b, name), (name, a, b)
        for name in SUMS:
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-5)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_small_tiles_and_panels_give_what_one_tile_gives(mask, monkeypatch) -> None:
    changes = {"accumulate": "fp64"}  # a float32 BLAS product may depend on the shape of the tile
    whole = run(mask=mask, changes=changes)
    monkeypatch.setattr(plan, "PANEL", 32)
    monkeypatch.setattr(tile, "TILE_ROWS", 16)
    monkeypatch.setattr(tile, "TILE_COLUMNS", 8)
    tiled = run(mask=mask, changes=changes)
    for a, b in zip(whole, tiled, strict=True):
        if a.dtype == "float64" and a.subject.startswith("uniform"):
            assert a.drift_rms == pytest.approx(b.drift_rms, rel=0.05)  # even float64 BLAS
        else:
            same([a], [b])


def test_threads_do_not_change_a_bit(pools) -> None:
    assert run(threads=1) == run(threads=2) == run(threads=5)
    assert {2, 5} <= set(pools)


@pytest.mark.parametrize(
    ("heads", "seq_len", "sample", "threads"),
    [(8, 128, None, 1), (1, 129, None, 1), (2, 129, None, 2), (1, 513, None, 2), (1, 2000, 50, 3)],
)
def test_a_case_has_threads_where_they_have_something_to_share(
    heads, seq_len, sample, threads, monkeypatch
) -> None:
    seen = []
    real = case_run.CaseRun.records

    def spying(self, offsets):
        seen.append(self.threads)
        return real(self, offsets)

    monkeypatch.setattr(case_run.CaseRun, "records", spying)
    list(shift(0, "fp32", heads=heads, seq_len=seq_len, head_dim=4, sample=sample, threads=3))
    assert seen == [threads]


def test_a_small_cache_does_not_change_a_bit(monkeypatch) -> None:
    whole = run()
    monkeypatch.setattr(plan, "CACHE_BYTES", 200_000)
    assert run() == whole


def test_causal_counts_the_lower_triangle() -> None:
    (causal,), (full,) = (
        list(shift(0, "fp32", "hf", seq_len=7, heads=3, mask=m)) for m in ("causal", "full")
    )
    assert (causal.scores, full.scores) == (3 * 28, 3 * 49)


def test_key_value_heads_are_shared_as_in_attention(tmp_path) -> None:
    made = inputs.make("gaussian", 4, 2, 20, RopeSetting.of(16), seed=3)
    grouped = tmp_path / "grouped.npz"
    repeated = tmp_path / "repeated.npz"
    np.savez(grouped, q=made.q, k=made.k)
    np.savez(repeated, q=made.q, k=made.k.repeat(2, axis=0))
    (a,), (b,) = (list(shift(1000, "bf16", "hf", qk=str(path))) for path in (grouped, repeated))
    assert (a.drift_rms, a.worst_head, a.worst_query) == (b.drift_rms, b.worst_head, b.worst_query)


def test_worst_place_is_where_the_largest_drift_is() -> None:
    from ropeaudit import parse, recipes
    from ropeaudit.subjects.emulated import Emulated

    (record,) = shift(
        1000, "bf16", "hf", changes={"accumulate": "fp64", "score": "fp64"}, heads=2, seq_len=30
    )
    made, setting = inputs.make("gaussian", 2, 2, 30, RopeSetting.of(128)), RopeSetting.of()
    subject = Emulated(recipes.named("hf").resolve(parse("bf16")), setting)
    exact = Emulated(recipes.named("xformers-f64").resolve(parse("fp64")), setting)
    drift = []
    for head in range(2):
        pair = []
        for who, offset in ((subject, 1000), (exact, 0)):
            table = who.table(np.arange(30), offset)
            q, k = (
                who.rotate(x[head].astype(np.float32 if who is subject else float), table)
                for x in (made.q, made.k)
            )
            pair.append(q.astype(float) @ k.astype(float).T * setting.scale)
        drift.append(np.tril(np.abs(pair[0] - pair[1])))
    place = np.unravel_index(np.argmax(drift), (2, 30, 30))
    assert place == (record.worst_head, record.worst_query, record.worst_key)
    assert np.max(drift) == pytest.approx(record.drift_max, rel=1e-9)


def test_progress_ends_at_one() -> None:
    from ropeaudit import Audit, Case

    heard: list[float] = []
    list(Audit(cases=[Case(heads=1, seq_len=600), Case(heads=2, seq_len=9)]).run(progress=heard.append))
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
