"""Decay: the golden values of the literature, the search, recipes beside the exact curves, the command."""

import csv
import io
import json
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from ropeaudit import parse, recipes
from ropeaudit.errors import BadShape, UsageError
from ropeaudit.features.decay import analysis, cosine_sum
from ropeaudit.features.decay import report as reports_decay
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.reports.charts import axes
from ropeaudit.rope import scaling
from ropeaudit.rope.setting import RopeSetting

# RoFormer, section 3.4.3, d = 128, base 1e4: distance -> (2/d) sum |S_j|
ROFORMER = {
    0: "32.5000",
    1: "31.5382",
    10: "17.9541",
    50: "12.6295",
    100: "10.2273",
    250: "6.5482",
    500: "6.1898",
    1000: "4.4708",
    10000: "3.8585",
}
MEN_FIRST = 1707  # Men et al., d = 128, base 1e4
PLAIN = RopeSetting.of()


def brute_first(setting: RopeSetting, last: int) -> int | None:
    """The first negative sum, written down anew with long doubles from 30-digit frequencies."""
    mpmath.mp.dps = 30
    stored = setting.pairs
    if setting.scaling.kind == "proportional":
        stored = int(setting.scaling.fraction * setting.pairs)
    base = mpmath.mpf(setting.base)
    thetas = [base ** (mpmath.mpf(-2 * i) / setting.rotary_dim) for i in range(stored)]
    thetas = np.array([str(t) for t in thetas]).astype(np.longdouble)
    grid = np.minimum(np.arange(last + 1)[:, None] * thetas, np.longdouble(setting.clip))
    failing = np.flatnonzero(np.cos(grid).sum(axis=1) + (setting.pairs - stored) < 0)
    return int(failing[0]) if failing.size else None


def test_roformer_golden_values() -> None:
    results = analysis.angles(list(ROFORMER), PLAIN).bound
    assert [f"{x:.4f}" for x in results] == list(ROFORMER.values())


def test_men_golden_value_in_any_search() -> None:
    assert cosine_sum.first_failing(PLAIN, 50000) == MEN_FIRST
    assert cosine_sum.first_failing(PLAIN, MEN_FIRST) == MEN_FIRST
    assert cosine_sum.first_failing(PLAIN, MEN_FIRST - 1) is None
    assert (analysis.angles([MEN_FIRST - 1, MEN_FIRST], PLAIN).men_sum < 0).tolist() == [False, True]


@pytest.mark.parametrize(
    "setting",
    [
        RopeSetting.of(),
        RopeSetting.of(base=500000.0),
        RopeSetting.of(64, base=1e6),
        RopeSetting.of(128, 32, base=10000.0),
        RopeSetting.of(2, base=10000.0),
        RopeSetting.of(2, clip=3.0),
        RopeSetting.of(clip=10.0),
        RopeSetting.of(clip=3.0),
        RopeSetting.of(clip=100.0),
        RopeSetting.of(scaling=scaling.parse("proportional:fraction=0.75")),
        RopeSetting.of(scaling=scaling.parse("proportional:fraction=0.5")),
        RopeSetting.of(16, scaling=scaling.parse("proportional:fraction=0.625")),
    ],
    ids=lambda s: f"{s.head_dim}-{s.rotary_dim}-{s.base:g}-{s.scaling}-{s.clip}",
)
def test_first_failing_is_that_of_a_brute_search(setting) -> None:
    assert cosine_sum.first_failing(setting, 20000) == brute_first(setting, 20000)


def test_what_float64_cannot_decide_is_decided_exactly(monkeypatch) -> None:
    """With a doubt of everything, every distance goes to double-double, and the answer is the same."""
    cosine_sum.first_failing.cache_clear()
    monkeypatch.setattr(cosine_sum, "_U", 1.0)
    assert cosine_sum.first_failing(PLAIN, 2000) == MEN_FIRST
    cosine_sum.first_failing.cache_clear()


def test_sums_past_many_blocks_agree_with_double_double() -> None:
    setting = RopeSetting.of(base=1e9)
    first = cosine_sum.first_failing(setting, 2**22)
    assert first is not None
    assert first > 10 * cosine_sum._COLUMNS * cosine_sum._ROWS
    near = analysis.angles(range(first - 2000, first + 1), setting).men_sum
    assert (near[:-1] >= 0).all()
    assert near[-1] < 0


def test_a_search_that_cannot_fail_is_short_and_conclusive() -> None:
    setting = RopeSetting.of(scaling=scaling.parse("proportional:fraction=0.5"))
    assert cosine_sum.first_failing(setting, cosine_sum.LARGEST) is None
    assert cosine_sum.searched(setting) == cosine_sum.LARGEST
    assert cosine_sum.searched(RopeSetting.of(clip=10.0)) == cosine_sum.LARGEST
    assert cosine_sum.searched(RopeSetting.of(clip=1e6)) == cosine_sum.SEARCHED_CLIPPED


def test_an_attention_factor_is_in_the_scores_alone() -> None:
    yarn = RopeSetting.of(scaling=scaling.parse("yarn:factor=4,original=32768"))
    ones = qk.make("ones", 1, 1, 1, RopeSetting.of(128))
    assert analysis.angles([0], yarn).bound[0] == 32.5
    score = analysis.score_curve([0], replace(yarn, scale=1.0), ones).mean[0]
    assert score == pytest.approx(128 * (0.1 * math.log(4) + 1) ** 2, rel=1e-14)


def test_ones_decay_and_gaussian_do_not() -> None:
    distances = list(range(0, 50001, 97))
    ones = analysis.decay(PLAIN, qk.make("ones", 1, 1, 1, RopeSetting.of(128)), distances)
    gauss = analysis.decay(PLAIN, qk.make("gaussian", 1, 1, 64, RopeSetting.of(128)), distances)
    relative = ones.scores.mean / ones.start
    np.testing.assert_allclose(relative, ones.exact.men_sum / 64, atol=1e-14)
    assert np.abs(relative[250:]).max() < 0.25
    assert np.abs(gauss.scores.rms / gauss.start - 1).max() < 0.08
    assert np.abs(gauss.scores.mean).max() < 0.06
    assert (np.diff(ones.exact.bound) > 0).any()  # not monotone


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_are_those_of_every_query_with_every_key_of_its_head(layout) -> None:
    setting = RopeSetting.of(8, 6, layout=layout, base=100.0)
    some = qk.make("gaussian", 4, 2, 3, RopeSetting.of(8), seed=5)
    theta = 100.0 ** (-np.arange(3) / 3)
    first, second = (slice(0, 6, 2), slice(1, 6, 2)) if layout == "interleaved" else (slice(3), slice(3, 6))
    rotated = [
        (some.q[h, i, first] + 1j * some.q[h, i, second])
        * np.exp(7j * theta)
        @ np.conj(some.k[h // 2, j, first] + 1j * some.k[h // 2, j, second])
        + some.q[h, i, 6:] @ some.k[h // 2, j, 6:]
        for h in range(4)
        for i in range(3)
        for j in range(3)
    ]
    exact = np.real(rotated) / math.sqrt(8)
    result = analysis.score_curve([7], setting, some)
    assert result.mean[0] == pytest.approx(exact.mean(), rel=1e-12)
    assert result.rms[0] == pytest.approx(math.sqrt((exact**2).mean()), rel=1e-12)
    assert np.isnan(result.own_mean[0])
    assert np.isnan(result.drift_rms[0])


def test_a_recipe_stands_beside_the_exact_curves() -> None:
    some, distances = qk.make("gaussian", 1, 1, 8, RopeSetting.of(128)), [0, 100, 10000]
    drift = {}
    for name in ("fp64", "fp32", "bf16"):
        recipe = recipes.named("uniform").resolve(parse(name))
        result = analysis.decay(PLAIN, some, distances, recipe)
        drift[name] = result.scores.drift_rms
        assert result.own is not None
        loose = 1.0 if name == "bf16" else 1e-3
        assert abs(result.own.bound[1] - result.exact.bound[1]) < loose
    assert (drift["fp64"] < 1e-11).all()
    assert (drift["fp64"] > 0).any()
    assert (drift["fp32"] < 1e-3).all()
    assert drift["bf16"][2] > 0.5  # angles in bfloat16 are unrelated to the truth


def test_first_failing_of_a_recipe_is_that_of_its_own_cosines() -> None:
    recipe = recipes.named("uniform").resolve(parse("bf16"))
    result = cosine_sum.first_failing(PLAIN, 5000, recipe)
    sums = analysis.angles(range(5001), PLAIN, recipe).men_sum
    assert result == int(np.flatnonzero(sums < 0)[0])
    assert type(result) is int  # which JSON holds
    assert result != MEN_FIRST
    double = recipes.named("uniform").resolve(parse("fp64"))
    assert cosine_sum.first_failing(PLAIN, 5000, double) == MEN_FIRST


def test_a_sum_that_is_nan_fails() -> None:
    setting = RopeSetting.of(base=1e12)
    recipe = recipes.named("uniform").resolve(parse("fp16"))
    result = analysis.decay(setting, qk.make("ones", 1, 1, 1, RopeSetting.of(128)), [65519, 65520], recipe)
    assert np.isnan(result.own.men_sum).tolist() == [False, True]
    assert np.isnan(result.scores.drift_rms).tolist() == [False, True]
    assert result.own_first is not None
    assert result.own_first <= 65520


def test_wrong_head_dim_and_distances_are_refused() -> None:
    with pytest.raises(BadShape, match="head_dim 64"):
        analysis.score_curve([0], PLAIN, qk.make("ones", 1, 1, 1, RopeSetting.of(64)))
    for bad in ([], [-1], [2**53]):
        with pytest.raises(UsageError, match="distance"):
            analysis.check(bad)


def test_sampled_vectors_are_evenly_spaced() -> None:
    some = qk.make("gaussian", 2, 1, 9, RopeSetting.of(4))
    few = analysis.sample(some, 3)
    assert np.array_equal(few.q, some.q[:, [0, 4, 8]])
    assert np.array_equal(few.k, some.k[:, [0, 4, 8]])
    assert analysis.sample(some, 100).q.shape == some.q.shape


def test_readable_and_dense_distances() -> None:
    assert axes.round_values(0, 50000)[-3:] == [10000, 20000, 50000]
    assert axes.round_values(1000, 1032) == list(range(1000, 1033, 2))
    assert axes.round_values(7, 7) == [7]
    for first, last in ((0, 50000), (1000, 1010), (5, 5), (0, 2**53 - 1)):
        result = axes.dense(first, last)
        assert result[0] == first
        assert result[-1] == last
        assert result == sorted(set(result))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_command_gives_the_golden_values(capsys) -> None:
    listed = ",".join(map(str, ROFORMER))
    assert main(["decay", "--distance", listed, "--qk", "ones", "-f", "csv"]) == 0
    results = rows(capsys.readouterr().out)
    assert [f"{float(row['bound']):.4f}" for row in results] == list(ROFORMER.values())
    assert {row["first_failing"] for row in results} == {str(MEN_FIRST)}
    assert {row["implementation"] for row in results} == {""}
    assert list(results[0]) == list(reports_decay.COLUMNS)


def test_the_headline_says_what_the_literature_says(capsys) -> None:
    assert main(["decay", "--base", "10000,500000", "--distance", "0-50000", "-f", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for message in (
        "base=10000: from distance 25000 on ones decays to 7.",
        "gaussian keeps 100 % of the RMS score at distance 0",
        "RoFormer's bound is not monotone",
        "first negative at 1707.",
        "base=500000:",
    ):
        assert message in report["headline"]
    distances = [row["distance"] for row in report["records"]]
    assert len(distances) == 4 * 16
    assert distances[:16] == axes.round_values(0, 50000)


def test_distances_are_lists_and_ranges(capsys) -> None:
    words = "3,0-128+64,1-8*2,1000-1008"
    assert main(["decay", "--distance", words, "--qk", "ones", "-f", "csv"]) == 0
    results = [int(row["distance"]) for row in rows(capsys.readouterr().out)]
    assert results == [3, 0, 64, 128, 1, 2, 4, 8, *range(1000, 1009)]


def test_recipes_in_the_command(capsys) -> None:
    some = ["decay", "--distance", "0,5000", "--qk", "ones", "--dtype", "bf16", "--recipe", "uniform,hf"]
    assert main([*some, "-f", "csv"]) == 0
    seen = capsys.readouterr()
    result = rows(seen.out)
    assert [(row["implementation"], row["dtype"]) for row in result[::2]] == [
        ("uniform", "bfloat16"),
        ("hf", "bfloat16"),
    ]
    assert float(result[1]["drift_rms"]) > 10 * float(result[3]["drift_rms"])
    assert "uniform bfloat16: first failing distance" in seen.err
    assert "exactly 1707" in seen.err


def test_captured_vectors_bring_their_head_dim(tmp_path, capsys) -> None:
    generator = np.random.default_rng(1)
    path = tmp_path / "qk.npz"
    np.savez(path, q=generator.standard_normal((4, 10, 64)), k=generator.standard_normal((2, 10, 64)))
    command = ["decay", "--qk", f"{path}", "--qk", "ones", "--distance", "0,9", "--vectors", "5", "-f", "csv"]
    assert main(command) == 0
    result = rows(capsys.readouterr().out)
    assert [(row["head_dim"], row["heads"], row["vectors"]) for row in result[::2]] == [
        ("64", "4", "5"),
        ("64", "1", "1"),
    ]
    assert main([*command, "--head-dim", "32"]) == 2
    assert "give --head-dim 64" in capsys.readouterr().err


def test_files_hold_what_was_asked_for(tmp_path, capsys) -> None:
    table, data = tmp_path / "a.txt", tmp_path / "b.csv"
    assert main(["decay", "--distance", "0-64", "-q", "-o", f"{table}", "-o", f"{data}"]) == 0
    assert table.read_text(encoding="utf-8") == capsys.readouterr().out
    assert len(rows(data.read_text(encoding="utf-8"))) == 2 * len(axes.round_values(0, 64))
    stages = json.loads((tmp_path / "b.csv.meta.json").read_text(encoding="utf-8"))
    assert stages["stages"] == {}


def test_nothing_rotated_is_no_fault(capsys) -> None:
    assert main(["decay", "--rotary-dim", "0", "--distance", "0,5", "--qk", "ones"]) == 0
    assert "nothing is rotated" in capsys.readouterr().out


def test_zero_vectors_have_no_relative_score(tmp_path, capsys) -> None:
    path = tmp_path / "qk.npz"
    np.savez(path, q=np.zeros((1, 2, 8)), k=np.zeros((1, 2, 8)))
    assert main(["decay", "--qk", f"{path}", "--distance", "0-30"]) == 0
    assert "keeps nan" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_is_done(monkeypatch, capsys) -> None:
    real, calls = analysis.decay, []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(analysis, "decay", broken)
    assert main(["decay", "--distance", "0,1", "-f", "csv"]) == 130
    seen = capsys.readouterr()
    assert {row["source"] for row in rows(seen.out)} == {"ones"}
    assert "1 of 2 cases" in seen.err


@pytest.mark.parametrize(
    ("options", "error_line"),
    [
        (["--distance", "50-1"], "does not count upwards"),
        (["--distance", "-5"], "is not a distance from 0"),
        (["--distance", "0-2^60"], "is not a distance from 0"),
        (["--distance", "1.5"], "fraction"),
        (["--distance", ""], "empty element"),
        (["--qk", "normal"], "unknown --qk"),
        (["--vectors", "0"], "--vectors 0"),
        (["--seed", "-1"], "--seed -1"),
        (["--dtype", "fp17"], "unknown number format"),
        (["--recipe", "none-such"], "unknown recipe"),
        (["--columns", "drift"], "unknown column"),
        (["-f", "xml"], "unknown report format"),
        (["-f", "json", "--no-header"], "--no-header"),
        (["--distance", "0-65536+1", "--base", "1e4,2e4,3e4"], "200000 rows"),
    ],
)
def test_bad_input_gets_one_line(options, error_line, tmp_path, capsys) -> None:
    assert main(["decay", *options, "-o", f"{tmp_path / 'x.csv'}"]) == 2
    seen = capsys.readouterr()
    assert error_line in seen.err
    assert seen.err.count("\n") == 1
    assert seen.out == ""
    assert list(tmp_path.iterdir()) == []
