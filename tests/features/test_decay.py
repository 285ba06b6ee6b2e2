"""Decay: the golden values of the literature, every distance by brute force, recipes, the command."""

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


def frequencies(setting: RopeSetting) -> list[mpmath.mpf]:
    """Radians per token, written down anew from 30-digit powers of the base."""
    mpmath.mp.dps = 30
    stored = setting.pairs
    if setting.scaling.kind == "proportional":
        stored = int(setting.scaling.fraction * setting.pairs)
    base = mpmath.mpf(setting.base)
    thetas = [base ** (mpmath.mpf(-2 * i) / setting.rotary_dim) for i in range(stored)]
    return thetas + [mpmath.mpf(0)] * (setting.pairs - stored)


def brute_angles(setting: RopeSetting, last: int) -> np.ndarray:
    """Angles of every distance in long doubles. Shapes: -> (last + 1, p)."""
    thetas = np.array([str(theta) for theta in frequencies(setting)]).astype(np.longdouble)
    return np.minimum(np.arange(last + 1)[:, None] * thetas, np.longdouble(setting.clip))


CASES = [  # what is asked for, smallest and largest distance
    ({}, 0, 9000),
    ({"base": 500.0, "head_dim": 32}, 0, 3000),
    ({"base": 5e5, "head_dim": 64, "rotary_dim": 32}, 100, 2500),
    ({"base": 1e6, "head_dim": 64}, 4000, 5000),
    ({"head_dim": 16, "clip": 40.0}, 7, 4097),
    ({"clip": 3.0}, 0, 4000),
    ({"clip": 100.0}, 0, 4000),
    ({"head_dim": 2}, 0, 2048),
    ({"head_dim": 2, "clip": 3.0}, 0, 2047),
    ({"scaling": "proportional:fraction=0.75"}, 0, 4000),
    ({"scaling": "proportional:fraction=0.625", "head_dim": 16}, 0, 4000),
]


def test_curves_and_finding_are_of_every_distance() -> None:
    """The rows, the first negative sum, the largest rise and the level of ones, by long doubles."""
    wrong = []
    for case, first, last in CASES:
        [ones] = decay([*range(first, last, 41), last], "ones", **case)
        angles = brute_angles(ones.setting, last)
        sums = np.cos(angles).sum(axis=1)
        across, up = (np.cumsum(turn(angles), axis=1) for turn in (np.cos, np.sin))
        bound = np.hypot(across, up).mean(axis=1)
        for row in ones.rows:
            here = bound[row["distance"]], sums[row["distance"]]
            if (row["bound"], row["men_sum"]) != pytest.approx(here, rel=1e-12, abs=1e-12):
                wrong.append((case, row["distance"]))
        (low, least), (top, most) = ones.low, ones.top
        rises = np.maximum.accumulate(bound[first:][::-1])[::-1] - bound[first:]
        still = ones.setting.head_dim / 2 - ones.setting.pairs  # dims without a rotation: two are a pair
        half = math.ceil((first + last) / 2)
        level = np.sqrt(np.mean(((sums[half:] + still) / (sums[0] + still)) ** 2))
        good = {
            "order": first <= low <= top <= last,
            "rise": most - least == pytest.approx(float(rises.max()), abs=1e-12),
            "ends": (least, most) == pytest.approx((bound[low], bound[top]), abs=1e-12),
            "failing": ones.failing == next(iter(np.flatnonzero(sums < 0).tolist()), None),
            "level": (ones.half, ones.levels["ones"]) == (half, pytest.approx(float(level), rel=1e-12)),
        }
        wrong += [(case, name) for name, holds in good.items() if not holds]
    assert not wrong


def test_far_distances_are_those_of_mpmath() -> None:
    [listed] = decay(range(2**22 - 20_000, 2**22, 4000), "ones", base=1e9, head_dim=8)
    [ones] = decay([0, 300_000], "ones", base=1e6, head_dim=16)
    found = [(listed, row["distance"], row["bound"]) for row in listed.rows]
    found += [(ones, *end) for end in (ones.low, ones.top)]
    for one, distance, bound in found:
        sums = np.cumsum([complex(mpmath.expj(distance * theta)) for theta in frequencies(one.setting)])
        assert bound == pytest.approx(np.abs(sums).mean(), rel=1e-12), distance


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_are_those_of_every_query_with_every_key_of_its_head(layout, tmp_path) -> None:
    """All pairs of captured q and k at every distance; 6 of 8 dims are rotated."""
    some, path = qk.make("gaussian", 4, 2, 3, RopeSetting.of(8), seed=5), tmp_path / "qk.npz"
    np.savez(path, q=some.q, k=some.k)
    first, second = (slice(0, 6, 2), slice(1, 6, 2)) if layout == "interleaved" else (slice(3), slice(3, 6))
    unit = np.exp(1j * np.arange(301)[:, None] * 100.0 ** (-np.arange(3) / 3))
    q, k = some.q, some.k.repeat(2, axis=0)
    turned = (q[..., first] + 1j * q[..., second])[:, :, None] * np.conj(k[..., first] + 1j * k[..., second])[
        :, None
    ]
    still = q[..., 6:] @ k[..., 6:].transpose(0, 2, 1)
    exact = (np.einsum("hijp,mp->mhij", turned, unit).real + still).reshape(301, -1) / math.sqrt(8)
    [curves] = decay([0, 7, 300], str(path), rotary_dim=6, layout=layout, base=100.0)
    mean, rms = exact.mean(axis=1), np.sqrt((exact**2).mean(axis=1))
    assert [row["score_mean"] for row in curves.rows] == pytest.approx(mean[[0, 7, 300]], rel=1e-12)
    assert [row["score_rms"] for row in curves.rows] == pytest.approx(rms[[0, 7, 300]], rel=1e-12)
    level = math.sqrt((exact[150:] ** 2).mean()) / rms[0]
    assert curves.levels == {str(path): pytest.approx(level, rel=1e-12)}


def test_drift_that_is_nan_is_null(capsys) -> None:
    case = ["--base", "1e12", "--dtype", "fp16", "--recipe", "uniform", "--qk", "ones"]
    report = ran(capsys, ["decay", *case, "--distance", "65519,65520", "-f", "json"]).json
    assert [row["drift_rms"] is None for row in report["records"]] == [False, True]


def test_wrong_distances_are_refused() -> None:
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
    generator, path = np.random.default_rng(1), tmp_path / "qk.npz"
    np.savez(path, q=generator.standard_normal((4, 10, 64)), k=generator.standard_normal((2, 10, 64)))
    command = ["decay", "--qk", f"{path}", "--qk", "ones", "--distance", "0,9", "--vectors", "5", "-f", "csv"]
    result = ran(capsys, command).rows
    assert [(row["head_dim"], row["heads"], row["vectors"]) for row in result[::2]] == [
        ("64", "4", "5"),
        ("64", "1", "1"),
    ]
    assert "give --head-dim 64" in ran(capsys, [*command, "--head-dim", "32"], 2).err


def test_nothing_rotated_and_zero_vectors_are_no_faults(tmp_path, capsys) -> None:
    assert main(["decay", "--rotary-dim", "0", "--distance", "0,5", "--qk", "ones"]) == 0
    assert "nothing is rotated" in capsys.readouterr().out
    path = tmp_path / "qk.npz"
    np.savez(path, q=np.zeros((1, 2, 8)), k=np.zeros((1, 2, 8)))
    assert f"{path} nan" in ran(capsys, ["decay", "--qk", path, "--distance", "0-30"]).out
