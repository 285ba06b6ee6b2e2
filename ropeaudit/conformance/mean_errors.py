"""Check that errors below the allowed one are those of rounding, by their means and RMS.

Errors of rounding to nearest cancel out: a wrong length, phase or delay that all pairs share may be below the
allowed error of each pair, and shows in their means. The RMS is known too: the allowed error of a pair is a
worst case, and errors near it in all pairs are not from rounding.
Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import PAIR, Finding, of_worst_pair
from ropeaudit.recognition import allowance, faults, known_recipes, prediction
from ropeaudit.recognition.diagnosis import Diagnosis, Value, Where
from ropeaudit.recognition.faults import Complex
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup
from ropeaudit.subjects import Positions, exact_rotation

_TOKENS = 1024  # of a call
_FEWEST = 2**12  # pairs of a head: of fewer, the roundings of a table that all heads share do not cancel out
# Means over some 10^5 pairs, in u of the dtype: at most 0.03 of code that rounds cos and sin to it, few of
# which stand still; 0.5 of vectors that are 0.2 % too long in bfloat16, 0.7 of numbers that are cut off.
_UNITS = 0.25
_MEANS = ("length", "phase", "late")
# RMS errors of all pairs of a head, and of one pair, over those of code that rounds every step to nearest.
# Code that rounds its results alone has 0.6 of them, and 0.65 in its worst pair.
_HEAD, _PAIR = 1.15, 1.5
_CHANCE = 3  # five standard errors of an RMS, times the root of the number of errors: 0.6 by rounding
_LEFT = 0.5  # of the error of the worst pair, by what explains it
_CUT_OFF = 0.95  # share of numbers: the others are one more where code rounds before, too
_EXACT = dict.fromkeys(("position", "frequency", "angle"), "fp64")


def beyond_rounding(code: CodeUnderTest) -> Finding | None:
    """Return a finding if errors of q or k are not from rounding; else None.

    For code whose pairs are all within the allowed error; a pair that exceeds it in these calls is reported.
    Float64 is not judged: means are computed in it.
    Raises: ForeignError.
    """
    if code.dtype is FP64 or too_few(code):
        return None
    length = min(_TOKENS, code.up_to)
    q, k = (x.astype(code.dtype.carrier)[None] for x in code.vectors(HEADS, length))
    rotator, last = code.rotator(), code.up_to - length
    for offset in dict.fromkeys((0, last // 2, last)):
        at = np.arange(length, dtype=np.int64) + offset
        block = CalledBlock(at, (q, k), rotator.rotate_both(q, k, at))
        if not (worst := code.judge(rotator, [block])).excess <= 1:
            code.shared.wrong_rotation = True
            return of_worst_pair("rotation", f"{HEADS} heads, {length} positions from {offset} on", worst)
        if found := _large_mean(code, block) or _large_rms(code, block):
            code.shared.cause = found.diagnosis
            return found
    return None


def too_few(code: CodeUnderTest) -> bool:
    """Return whether there are too few pairs for means to be significant."""
    return min(_TOKENS, code.up_to) * code.setting.pairs < _FEWEST


def _large_mean(code: CodeUnderTest, block: CalledBlock) -> Finding | None:
    """Return a finding if the mean error of a head is larger than rounding to nearest leaves."""
    both = (_means(code, x[0], y[0], block.at) for x, y in zip(block.given, block.rotated, strict=True))
    means, most = (np.stack(some) for some in zip(*both, strict=True))  # (side, h, 3), (side, 1, 3)
    over = np.nan_to_num(np.abs(means) / most, nan=0.0)  # nan is for others to find
    if not over.max() > 1:
        return None
    side, head, which = (int(i) for i in np.unravel_index(int(over.argmax()), over.shape))
    values = {name: float(f"{mean:.2g}") for name, mean in zip(_MEANS, means[side, head], strict=True)}
    found = Diagnosis("bias", values, Where(sides=_sides(over)), certainty="measured")
    exact = np.abs(exact_rotation.rotated(block.given[side][0, head], block.at, code.setting_at(block.at)))
    came = np.abs(block.rotated[side][0, head].astype(np.float64))
    spacing = np.ldexp(code.dtype.unit_roundoff, np.frexp(exact)[1])
    if ((came <= exact) & (exact - came < spacing)).mean() >= _CUT_OFF:
        found = Diagnosis("truncated-output", {"dtype": str(code.dtype)}, found.where)
    text = f"every pair is within its allowance, and their mean error is no rounding: {'qk'[side]}"
    sizes = abs(float(means[side, head, which])), float(most[side, 0, which]), PAIR
    return Finding("rotation", "fail", text, *sizes, _where(block, side, head), found)


def _means(code: CodeUnderTest, x: FloatArray, y: FloatArray, at: Positions) -> tuple[Array, Array]:
    """Return the mean errors `_MEANS` of each head, and the largest that rounding leaves.

    The phase of a pair is fitted by a constant and a delay in tokens times its frequency. The phase error of
    float32 frequencies and angles is allowed, and half of its square as a change of length.
    Shapes: x and rotated y (h, s, d) -> (h, 3), (1, 3).
    """
    setting = code.setting_at(at)
    rounding = _UNITS * code.dtype.unit_roundoff
    exact, came = _exact_and_returned(code, x, y, at)
    # what turns by less than a rounding stands still: so it does where the exact pairs are rounded once
    once = round_to(exact.real, code.dtype) + 1j * round_to(exact.imag, code.dtype)
    fit = np.linalg.pinv(np.stack([np.ones(setting.pairs), allowance.frequencies(setting)], axis=1))  # (2, p)
    sizes, means = (np.abs(exact) ** 2).sum(axis=1), list[Array]()  # (h, p)
    for right in (exact, once):
        with np.errstate(invalid="ignore", over="ignore"):
            moments = ((came - right) * exact.conj()).sum(axis=1)  # (h, p)
        phase, turned = ((moments.imag / sizes) @ fit.T).T  # (h,) each
        lengths = moments.real.sum(axis=1) / sizes.sum(axis=1)
        means.append(np.stack([lengths, phase, -turned], axis=1))
    turn = allowance.phase(code.rule, setting, at)
    most = rounding + np.abs(fit) @ turn.mean(axis=0)
    least = np.where(np.abs(means[0]) < np.abs(means[1]), *means)
    return least, np.array([[rounding + (turn**2).mean() / 2, *most]])


def _large_rms(code: CodeUnderTest, block: CalledBlock) -> Finding | None:
    """Return a finding if the RMS error of a head or pair is larger than rounding each step leaves."""
    at, both = block.at, list(zip(block.given, block.rotated, strict=True))
    expected = _expected(code, block)  # (p,)
    over = (
        np.stack([_rms(*_exact_and_returned(code, x[0], y[0], at)) for x, y in both]) / expected
    )  # (2, h, p)
    over = np.nan_to_num(over, nan=0.0)  # nan is for others to find
    whole, chance = np.sqrt((over**2).mean(axis=2)), _CHANCE / np.sqrt(at.size)
    most_whole, most_pair = _HEAD + chance / np.sqrt(expected.size), _PAIR + chance
    beyond = np.maximum(whole / most_whole, over.max(axis=2) / most_pair)  # (2, h)
    if not beyond.max() > 1:
        return None
    side, head = (int(i) for i in np.unravel_index(int(beyond.argmax()), beyond.shape))
    pair = None if whole[side, head] > most_whole else int(over[side, head].argmax())
    times, most = (whole[side, head], most_whole) if pair is None else (over[side, head, pair], most_pair)
    x, y = (one[0, head] for one in both[side])
    known = _nearest_fault(code, x, y, at, expected)
    values: dict[str, Value] = {"times": float(f"{times:.3g}"), "dtype": str(code.dtype)}
    told = Diagnosis("precision-loss", values, Where(sides=_sides(beyond), pair=pair), certainty="measured")
    text = f"every pair is within its allowance, and their RMS error is above that of rounding: {'qk'[side]}"
    unit = float(expected.mean() if pair is None else expected[pair])
    place = _where(block, side, head, "all pairs" if pair is None else f"pair {pair}")
    sizes = float(times) * unit, float(most) * unit, f"RMS, {PAIR}"
    return Finding("rotation", "fail", text, *sizes, place, known or told)


def _expected(code: CodeUnderTest, block: CalledBlock) -> Array:
    """Return the RMS error of pairs of correct code. Shapes: -> (p,).

    It is that of one head of q rotated by the claimed recipe, or by hf with exact angles, and the phase error
    of float32 frequencies and angles.
    """
    setting, at, x = code.setting_at(block.at), block.at, block.given[0][0, :1]
    recipe = code.claimed or recipes.named("hf").changed(_EXACT).resolve(code.dtype)
    rounded = known_recipes.rotated(RecipeGroup((), recipe), x, at, setting)
    rounding = np.sqrt((_rms(*_exact_and_returned(code, x, rounded, at)) ** 2).mean())
    phase = np.sqrt((allowance.phase(code.rule, setting, at) ** 2).mean(axis=0))
    return np.asarray(np.hypot(rounding, phase))


def _nearest_fault(
    code: CodeUnderTest, x: FloatArray, y: FloatArray, at: Positions, most: Array
) -> Diagnosis | None:
    """Diagnose the errors of a head by the nearest fault. Shapes: x and y (s, d), most (p,)."""
    setting = code.setting_at(at)
    came, left = exact_rotation.complex_pairs(y, setting)[None], dict[float, Diagnosis]()
    before = (_rms(*_exact_and_returned(code, x[None], y[None], at)) / most).max()
    for fault in (*faults.of_coarse_tables(), *faults.of_roundings(code.dtype)):
        expected = prediction.predicted(fault, setting, x, at, code.dtype)[:, : setting.pairs]
        worst = float((_rms(expected[None], came) / most).max())
        if worst <= _LEFT * before:
            left.setdefault(worst, fault.diagnosis)
    return left[min(left)] if left else None


def _rms(exact: Complex, came: Complex) -> Array:
    """Return the RMS error of pairs over their length. Shapes: (h, s, p) -> (h, p)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.sqrt((np.abs(came - exact) ** 2).sum(axis=1) / (np.abs(exact) ** 2).sum(axis=1)))


def _exact_and_returned(
    code: CodeUnderTest, x: FloatArray, y: FloatArray, at: Positions
) -> tuple[Complex, Complex]:
    """Return pairs rotated exactly, and as returned. Shapes: (h, s, d) -> (h, s, p) twice."""
    setting = code.setting_at(at)
    given, came = (exact_rotation.complex_pairs(one.astype(np.float64), setting) for one in (x, y))
    return given * exact_rotation.rotations(setting, at, code.dtype), came


def _sides(over: Array) -> tuple[str, ...]:
    off = tuple(name for name, some in zip("qk", over, strict=True) if some.max() > 1)
    return () if len(off) == 2 else off


def _where(
    block: CalledBlock,
    side: int,
    head: int,
    pairs: str = "all pairs",
) -> str:
    return f"{'qk'[side]}, head {head}, the mean of {pairs} at positions {block.at[0]} to {block.at[-1]}"
