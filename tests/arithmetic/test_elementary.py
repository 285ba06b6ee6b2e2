"""Elementary functions: correctly rounded, and the same bits whatever the mathematical library does."""

from __future__ import annotations

import functools
import math
from decimal import Context, Decimal, localcontext

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import recipes
from ropeaudit.arithmetic import elementary, formats
from ropeaudit.arithmetic.formats import FORMATS, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs import qk
from ropeaudit.rope import frequencies, setting
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.scaling import parse as parse_scaling
from ropeaudit.subjects.emulated import Emulated

NARROW = [fmt for fmt in FORMATS if fmt is not FP64]
FUNCTIONS = ("sin", "cos", "exp", "exp2", "log", "log1p", "power", "pow")


def midpoints(fmt: Format, low: float, high: float, count: int) -> np.ndarray:
    """Return numbers midway between two neighbours of a format, spread between `low` and `high`."""
    wanted = round_to(np.geomspace(low, high, count), fmt).astype(np.float64)
    _, exponent = np.frexp(wanted)
    spacing = np.maximum(np.ldexp(1.0, exponent - fmt.precision), fmt.smallest_subnormal)
    return wanted + spacing / 2


def hard_angles(fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Return angles whose cosine, and angles whose sine, is as near to a midpoint as float64 can put it."""
    for_cos = np.arccos(midpoints(fmt, 0.05, 0.8, 400))
    tiny = max(fmt.smallest_subnormal, 1e-44)
    for_sin = np.arcsin(
        np.concatenate([midpoints(fmt, 0.01, 0.8, 400), midpoints(fmt, tiny, fmt.smallest_normal, 200)])
    )
    turns = 2 * math.pi * np.arange(3)[:, None]
    return (for_cos + turns).ravel(), np.concatenate([for_sin, (for_sin[:400] + turns[1:]).ravel()])


def exactly(function, angle: float, fmt: Format) -> float | None:
    """Return a cosine or sine rounded once to a format, from 200 digits of mpmath."""
    with mpmath.workdps(200), localcontext(Context(prec=200)):
        value = function(mpmath.mpf(float(angle)))
        exponent = max(
            math.floor(mpmath.log(abs(value), 2)) + 1 - fmt.precision, fmt.emin - fmt.precision + 1
        )
        steps = Decimal(str(value * mpmath.mpf(2) ** -exponent))
        if abs(angle) > 2.0**-26 and abs(steps % 1 - Decimal("0.5")) < Decimal(2) ** -60:
            return None  # beyond what double-double tells apart
        return math.ldexp(int(steps.to_integral_value()), exponent)  # ties cannot occur


@pytest.mark.parametrize("fmt", NARROW, ids=str)
def test_cos_and_sin_are_correctly_rounded_beside_midpoints(fmt: Format) -> None:
    for which, (function, angles) in enumerate(zip((mpmath.cos, mpmath.sin), hard_angles(fmt), strict=True)):
        got = elementary.cos_sin(angles[:, None], fmt)[which][:, 0]
        right = [exactly(function, angle, fmt) for angle in angles]
        seen = zip(angles.tolist(), got.tolist(), right, strict=True)
        assert [one for one in seen if one[2] is not None and one[1] != one[2]] == []
        assert sum(one is None for one in right) < 0.05 * len(right)


def test_special_angles() -> None:
    with np.errstate(invalid="ignore"):
        cos, sin = elementary.cos_sin(np.array([[0.0, -0.0, np.inf, np.nan]]), formats.parse("bf16"))
    assert cos[0, :2].tolist() == [1.0, 1.0]
    assert (sin[0, :2].tolist(), np.signbit(sin[0, :2]).tolist()) == ([0.0, 0.0], [False, True])
    assert np.isnan(cos[0, 2:]).all()
    assert np.isnan(sin[0, 2:]).all()
    assert elementary.cos_sin(np.zeros((0, 4)), formats.parse("fp16"))[0].shape == (0, 4)


@given(st.floats(1e-300, 1e300), st.floats(-3, 3))
def test_logarithms_and_powers_against_mpmath(value: float, exponent: float) -> None:
    with mpmath.workdps(60):
        assert elementary.log(value) == float(mpmath.log(mpmath.mpf(value)))
        assert elementary.log_to_base(value, 2.0) == float(mpmath.log(mpmath.mpf(value), 2))
        assert elementary.exp(exponent) == float(mpmath.exp(mpmath.mpf(exponent)))
        if 1e-90 < value < 1e90:
            assert elementary.power(value, exponent) == float(mpmath.mpf(value) ** mpmath.mpf(exponent))


@pytest.fixture
def another_library(monkeypatch: pytest.MonkeyPatch):
    """Replace NumPy's and Python's elementary functions by ones that are off by an ulp, up or down."""

    def replace() -> None:
        generator = np.random.default_rng(7)

        def off(function, *arguments, **options):
            right = function(*arguments, **options)
            moved = np.nextafter(right, generator.choice((-np.inf, np.inf), np.shape(right)))
            exact = (np.abs(right) == 1) | (right == 0)  # cos(0) and sin(0), which every library gets right
            result = np.where(exact, right, moved)
            return result.astype(right.dtype) if isinstance(right, np.ndarray) else float(result)

        for name in FUNCTIONS:
            for library in (np, math):
                if hasattr(library, name):
                    monkeypatch.setattr(library, name, functools.partial(off, getattr(library, name)))

    yield replace
    monkeypatch.undo()


def everything(hard) -> dict[str, bytes]:
    """Return tables, rotated vectors, q and k of all recipes in several dtypes, settings and offsets."""
    for function in (frequencies.frequencies, frequencies.effect):
        function.cache_clear()
    elementary.power.cache_clear()
    elementary.exp.cache_clear()
    yarn = parse_scaling("yarn:factor=4,original=4096")
    settings = [
        setting.RopeSetting(head_dim=64, rotary_dim=64, base=5e5),
        setting.RopeSetting(head_dim=128, rotary_dim=96, base=1e4, scaling=yarn, length=16384),
        setting.RopeSetting(
            head_dim=64, rotary_dim=64, scaling=parse_scaling("dynamic:factor=2,maximum=2048"), length=9000
        ),
    ]
    results = {
        f"{fmt} {which}": elementary.cos_sin(angles[:, None], fmt)[which].tobytes()
        for fmt in NARROW
        for which, angles in enumerate(hard[fmt])
    }
    yarns = [parse_scaling(f"yarn:factor={factor},original=4096") for factor in range(2, 99)]
    results["attention factors"] = repr([attention_factor(yarn) for yarn in yarns]).encode()
    positions = np.arange(96, dtype=np.int64)
    for number, rope in enumerate(settings):
        inputs = qk.make("gaussian", 1, 1, 96, rope, seed=number)
        results[f"q k {number}"] = inputs.q.tobytes() + inputs.k.tobytes()
        for recipe in (each.name for each in recipes.all_recipes() if not each.refused):
            for dtype in map(formats.parse, ("fp64", "fp32", "fp16", "bf16", "e4m3")):
                subject = Emulated(recipes.named(recipe).resolve(dtype), rope)
                for offset in (0, 4097):
                    table = subject.table(positions, offset)
                    rotated = subject.rotate(round_to(inputs.q[0], subject.input), table)
                    parts = (*table, rotated)
                    results[f"{recipe} {dtype} {number} {offset}"] = b"".join(x.tobytes() for x in parts)
    return results


def test_another_mathematical_library_gives_the_same_bits(another_library) -> None:
    hard = {fmt: hard_angles(fmt) for fmt in NARROW}
    before = everything(hard)
    angles = np.linspace(1, 1000, 5000)
    sines = np.sin(angles)
    another_library()
    assert (np.sin(angles) != sines).mean() > 0.3  # it is another one
    after = everything(hard)
    assert [name for name in before if before[name] != after[name]] == []
