"""The judge on grids: exact scores of tokens with positions on several axes, against 50-digit arithmetic.

Positions and frequencies of the presets are written here from the classes that they are of, apart from the
package; x is a float64 number that is nearest to its formula, and exact as such.
"""

from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.audits.cases import Case
from ropeaudit.reference import exact_frequencies, exact_scores
from ropeaudit.rope import axial, grids
from ropeaudit.rope.grids import Grid
from ropeaudit.rope.setting import RopeSetting

SIZES = (3, 4, 6)  # t, h, w
Angle = Callable[[tuple[int, ...]], list[mpf]]  # places of a token -> the angle of every pair


def power(base: int, exponent: Fraction) -> mpf:
    return mpmath.power(base, mpf(exponent.numerator) / exponent.denominator)


def ladder(base: int, dims: int) -> list[mpf]:
    return [power(base, Fraction(-2 * j, dims)) for j in range(dims // 2)]


def flux(at: tuple[int, ...]) -> list[mpf]:
    return [x * theta for x, dims in zip(at, (16, 56, 56), strict=True) for theta in ladder(10000, dims)]


def qwen_image(at: tuple[int, ...]) -> list[mpf]:
    t, h, w = at
    return flux((t, h - 2, w - 3))  # of 4 rows and 6 columns half are below 0


def dinov3(at: tuple[int, ...]) -> list[mpf]:
    centres = [float(Fraction(2 * i + 1, n) - 1) for i, n in zip(at, SIZES[1:], strict=True)]
    return [2 * mp.pi * mpf(x) * theta for x in centres for theta in ladder(100, 32)]


def pixtral(at: tuple[int, ...]) -> list[mpf]:
    every = ladder(10000, 64)
    return [at[0] * theta for theta in every[0::2]] + [at[1] * theta for theta in every[1::2]]


def ltx_video(at: tuple[int, ...]) -> list[mpf]:
    units = Fraction(8, 25) / 20, Fraction(32, 2048), Fraction(32, 2048)
    xs = [mpf(float(2 * i * unit - 1)) for i, unit in zip(at, units, strict=True)]
    speeds = [mp.pi / 2 * power(10000, Fraction(j, 340)) for j in range(341)]
    return ([mpf(0)] + [speed * x for speed in speeds for x in xs])[31 * 32 :]


def cogvideox(at: tuple[int, ...]) -> list[mpf]:
    t, h, w = at  # 4 x 6 tokens keep their ratio in 30 x 45: all of it
    xs = t, mpf(float(Fraction(30 * h, 4))), mpf(float(Fraction(45 * w, 6)))
    return [x * theta for x, dims in zip(xs, (16, 24, 24), strict=True) for theta in ladder(10000, dims)]


def qwen3_vl(at: tuple[int, ...]) -> list[mpf]:
    axes = [(0, 1, 2)[i % 3] if i < 60 else 0 for i in range(64)]
    return [at[axis] * theta for axis, theta in zip(axes, ladder(500000, 128), strict=True)]


ANGLES: dict[str, Angle] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (flux, qwen_image, dinov3, pixtral, ltx_video, cogvideox, qwen3_vl)
}


def setting_of(name: str, **more: str) -> tuple[RopeSetting, Grid]:
    rope = axial.named(name)
    setting = Case(axes=name, grid="x".join(map(str, SIZES[-len(rope.axes) :])), **more).setting(0)
    assert setting.grid is not None
    return setting, setting.grid


def exact_scores_of(
    setting: RopeSetting, q: np.ndarray, k: np.ndarray, precision: exact_scores.Precision
) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Return the scores of all tokens as two arrays to be added, and their certificate."""
    assert setting.grid is not None
    table = exact_scores.distance_table(np.arange(setting.grid.count, dtype=np.float64), setting)
    left = exact_scores.rotated(q, table, setting, precision, setting.scale)
    right = exact_scores.rotated(k, table, setting, precision)
    return *exact_scores.product(left, right), exact_scores.certificate(left, right)


@pytest.mark.parametrize("name", ANGLES)
def test_scores_of_a_grid_hold_their_certificate(name: str) -> None:
    setting, grid = setting_of(name)
    rng = np.random.default_rng(7)
    q, k = rng.standard_normal((2, grid.count, setting.head_dim))
    pairs = [*rng.integers(0, grid.count, (4, 2)).tolist(), [0, grid.count - 1]]
    members = [
        (2 * i, 2 * i + 1) if setting.layout == "interleaved" else (i, i + setting.pairs)
        for i in range(setting.pairs)
    ]
    for precision in ("double", "extended"):
        high, low, error = exact_scores_of(setting, q, k, precision)
        assert error < {"double": 1e-12, "extended": 1e-17}[precision]
        with mp.workdps(50):
            for m, n in pairs:
                at_m, at_n = (tuple(int(i) for i in np.unravel_index(x, grid.sizes)) for x in (m, n))
                exact = mpf(0)
                for (a, b), one, two in zip(members, ANGLES[name](at_m), ANGLES[name](at_n), strict=True):
                    dot = mpf(q[m, a]) * mpf(k[n, a]) + mpf(q[m, b]) * mpf(k[n, b])
                    cross = mpf(q[m, a]) * mpf(k[n, b]) - mpf(q[m, b]) * mpf(k[n, a])
                    cos, sin = mpmath.cos_sin(one - two)
                    exact += dot * cos + cross * sin
                exact *= mpf(setting.scale)
                rest = 0.0 if low is None else low[m, n]
                assert abs(mpf(high[m, n]) + mpf(rest) - exact) <= error


@pytest.mark.parametrize("rope", axial.all_presets(), ids=lambda rope: rope.name)
def test_tables_of_every_preset_are_within_their_error(rope) -> None:
    setting, grid = setting_of(rope.name)
    (cos, cos_low), (sin, sin_low) = exact_scores.distance_table(
        np.arange(grid.count, dtype=np.float64), setting
    )
    worst, x = mpf(0), grid.per_pair(np.arange(grid.count))
    with mp.workdps(50):
        factor = {"1": mpf(1), "2pi": 2 * mp.pi, "pi/2": mp.pi / 2}[rope.factor]
        for place in np.random.default_rng(0).integers(0, cos.size, 60):
            token, pair = divmod(int(place), setting.pairs)
            axis, numerator, denominator = rope.pairs()[pair]
            c, s = mpmath.cos_sin(
                mpf(x[token, pair]) * factor * power(int(rope.base[axis]), Fraction(-numerator, denominator))
            )
            worst = max(worst, abs(mpf(cos[token, pair]) + mpf(cos_low[token, pair]) - c))
            worst = max(worst, abs(mpf(sin[token, pair]) + mpf(sin_low[token, pair]) - s))
    assert worst < dd.CIRCLE_ERROR


def test_frequencies_of_every_preset_are_radians_per_unit_of_its_axis() -> None:
    for rope in axial.all_presets():
        setting, grid = setting_of(rope.name)
        exact = exact_frequencies.frequencies(setting)
        assert len(exact) == setting.pairs == grid.of_pairs().size
        assert float(max(exact)) <= rope.fastest * (1 + 1e-15)
    assert grids.parse(axial.named("flux"), "2x2").sizes == (1, 2, 2)
