"""Decay: the golden values of the literature, the search, recipes beside the exact curves, the command."""

import math

import mpmath
import numpy as np
import pytest
from command_line import ran

from ropeaudit import decay
from ropeaudit.errors import UsageError
from ropeaudit.features.decay import analysis
from ropeaudit.inputs import qk
from ropeaudit.main import main
from ropeaudit.reference import exact_scores
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


def frequencies(setting: RopeSetting) -> np.ndarray:
    """Radians per token, written down anew from 30-digit powers of the base."""
    mpmath.mp.dps = 30
    stored = setting.pairs
    if setting.scaling.kind == "proportional":
        stored = int(setting.scaling.fraction * setting.pairs)
    base = mpmath.mpf(setting.base)
    thetas = [base ** (mpmath.mpf(-2 * i) / setting.rotary_dim) for i in range(stored)]
    return np.array([*map(str, thetas), *["0"] * (setting.pairs - stored)]).astype(np.longdouble)


def brute_angles(setting: RopeSetting, last: int) -> np.ndarray:
    """Angles of every distance in long doubles. Shapes: -> (last + 1, p)."""
    return np.minimum(np.arange(last + 1)[:, None] * frequencies(setting), np.longdouble(setting.clip))


def brute_bound(angles: np.ndarray) -> np.ndarray:
    return np.hypot(np.cumsum(np.cos(angles), axis=1), np.cumsum(np.sin(angles), axis=1)).mean(axis=1)


SETTINGS = [
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
]


def test_every_distance_is_that_of_long_doubles() -> None:
    """Both curves, and where the sum is negative."""
    wrong = []
    for setting in SETTINGS:
        last = 20000 if setting is SETTINGS[0] else 4000
        angles = brute_angles(setting, last)
        sums, bound = np.cos(angles).sum(axis=1), brute_bound(angles[::41])
        own_bound, own_sums = analysis.bound_and_sum(setting, range(last + 1))
        good = (
            np.allclose(own_sums, sums.astype(float), rtol=0, atol=1e-12),
            np.allclose(own_bound[::41], bound.astype(float), rtol=1e-12, atol=0),
            np.array_equal(own_sums < 0, sums < 0),
        )
        wrong += [] if all(good) else [(str(setting), good)]
    assert not wrong


HEADLINES = [
    ({"base": 500.0, "head_dim": 32}, 0, 3000),
    ({"base": 1e4, "head_dim": 128}, 0, 3000),
    ({"base": 5e5, "head_dim": 64, "rotary_dim": 32}, 100, 2500),
    ({"base": 1e4, "head_dim": 16, "clip": 40.0}, 7, 4097),
    ({"base": 1e4, "head_dim": 2}, 0, 2048),
]


def test_the_finding_is_of_every_distance() -> None:
    """The largest rise and the level of ones, by float64 and long double cosines of all distances."""
    for case, first, last in HEADLINES:
        [ones] = decay([first, last], "ones", **case)
        angles = brute_angles(ones.setting, last)
        bound, sums = brute_bound(angles), np.cos(angles).sum(axis=1)
        rise = ones.top[1] - ones.low[1]
        rises = [float(bound[i:].max() - value) for i, value in enumerate(bound[first:], first)]
        assert rise == pytest.approx(max(rises), abs=1e-12), case
        assert rise == pytest.approx(float(bound[ones.top[0]] - bound[ones.low[0]]), abs=1e-12), case
        assert first <= ones.low[0] <= ones.top[0] <= last, case
        still = ones.setting.head_dim / 2 - ones.setting.pairs  # dims without a rotation: two are a pair
        half = math.ceil((first + last) / 2)
        level = math.sqrt(float(np.mean(((sums[half:] + still) / (sums[0] + still)) ** 2)))
        assert (ones.half, ones.levels) == (half, {"ones": pytest.approx(level, rel=1e-12)}), case
        failing = np.flatnonzero(sums < 0)
        assert ones.failing == (int(failing[0]) if failing.size else None), case


def test_the_level_of_gaussian_scores_is_that_of_every_pair() -> None:
    [gauss] = decay([0, 300], "gaussian", head_dim=16, vectors=5, seed=3)
    some = qk.make("gaussian", 1, 1, 5, RopeSetting.of(16), seed=3)
    rotation = np.exp(1j * brute_angles(gauss.setting, 300).astype(float))
    q, k = (x[0, :, :8] + 1j * x[0, :, 8:] for x in (some.q, some.k))
    every = np.real(np.einsum("ip,mp,jp->mij", q, rotation, np.conj(k))) / 4
    rms = np.sqrt((every**2).mean(axis=(1, 2)))
    assert gauss.levels["gaussian"] == pytest.approx(math.sqrt((rms[150:] ** 2).mean()) / rms[0], rel=1e-12)
    assert [row["score_rms"] for row in gauss.rows] == pytest.approx([rms[0], rms[300]], rel=1e-12)


def test_far_sums_agree_with_double_double() -> None:
    setting = RopeSetting.of(base=1e9)
    far = [2**22 - 4000 * step for step in range(20)]
    (cos, _), _ = exact_scores.distance_table(np.array(far, float), setting)
    np.testing.assert_allclose(analysis.bound_and_sum(setting, far)[1], cos.sum(axis=1), rtol=0, atol=1e-12)


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
    mean, rms = analysis.Scores(setting, some).at([7])[:, 0]
    assert mean == pytest.approx(exact.mean(), rel=1e-12)
    assert rms == pytest.approx(math.sqrt((exact**2).mean()), rel=1e-12)


def test_drift_that_is_nan_is_null(capsys) -> None:
    case = ["--base", "1e12", "--dtype", "fp16", "--recipe", "uniform", "--qk", "ones"]
    report = ran(capsys, ["decay", *case, "--distance", "65519,65520", "-f", "json"]).json
    assert [row["drift_rms"] is None for row in report["records"]] == [False, True]


def test_wrong_head_dim_and_distances_are_refused() -> None:
    for distances in ([], [-1], [2**24 + 1]):
        with pytest.raises(UsageError, match="distance"):
            list(decay(distances, "ones", head_dim=8))


def test_the_command_gives_the_golden_values(capsys) -> None:
    listed = ",".join(map(str, ROFORMER))
    results = ran(capsys, ["decay", "--distance", listed, "--qk", "ones", "-f", "csv"]).rows
    assert [f"{float(row['bound']):.4f}" for row in results] == list(ROFORMER.values())
    assert {row["first_failing"] for row in results} == {str(MEN_FIRST)}
    assert {row["implementation"] for row in results} == {""}
    assert list(results[0]) == list(analysis.COLUMNS)


def test_captured_vectors_bring_their_head_dim(tmp_path, capsys) -> None:
    generator = np.random.default_rng(1)
    path = tmp_path / "qk.npz"
    np.savez(path, q=generator.standard_normal((4, 10, 64)), k=generator.standard_normal((2, 10, 64)))
    command = ["decay", "--qk", f"{path}", "--qk", "ones", "--distance", "0,9", "--vectors", "5", "-f", "csv"]
    result = ran(capsys, command).rows
    assert [(row["head_dim"], row["heads"], row["vectors"]) for row in result[::2]] == [
        ("64", "4", "5"),
        ("64", "1", "1"),
    ]
    assert "give --head-dim 64" in ran(capsys, [*command, "--head-dim", "32"], 2).err


def test_nothing_rotated_is_no_fault(capsys) -> None:
    assert main(["decay", "--rotary-dim", "0", "--distance", "0,5", "--qk", "ones"]) == 0
    assert "nothing is rotated" in capsys.readouterr().out


def test_zero_vectors_have_no_relative_score(tmp_path, capsys) -> None:
    path = tmp_path / "qk.npz"
    np.savez(path, q=np.zeros((1, 2, 8)), k=np.zeros((1, 2, 8)))
    assert f"{path} nan" in ran(capsys, ["decay", "--qk", path, "--distance", "0-30"]).out
