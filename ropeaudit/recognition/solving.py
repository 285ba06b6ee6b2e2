"""What explains rotated vectors, found by solving for it: frequencies, a base, a factor, a position.

Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.faults import Fault, off_by
from ropeaudit.recognition.variants import of_base, variants
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import LARGEST_BASE, RopeSetting
from ropeaudit.subjects import Positions, exact_rotation

_COARSE = 0.15  # error of a step from position to position: 16-bit formats stay well below it
_STILL = 0.005  # the same of the mean of many steps, beside the roundings behind the angle
_FAINT = 2.0**-10  # of a factor: what is as good as 0 is none
_SPREAD = 0.1  # of the factors of vectors that all have one, over what it differs from 1
_LONGEST = 128  # positions of a step
_FARTHEST = 2**18  # position that others are tried for
_FITTED = 12  # settings that fit what is shown, and are tried
_ASKED = 5  # wrong positions that are looked for
_RULED = 3  # of which so many at least show a rule
_PARTS = 64  # of a size, that are tried
_TRIED = 3  # positions that come nearest


def settings(
    at: Positions, x: FloatArray, y: FloatArray, setting: RopeSetting, dtype: Format
) -> Iterator[Fault]:
    """Yield the settings whose frequencies vectors show from position to position, the simplest first.

    Shapes: at (s,), x and rotated y (h, s, d).
    """
    shown = _frequencies(at, x, y, setting)
    if shown is None:
        return
    theta, uncertain = shown
    exact = np.abs(allowance.frequencies(setting))
    fitting = [
        one
        for one in variants(setting, exact, np.where(theta > 0, theta, exact))
        if one.setting is not None and (np.abs(one.theta - theta) <= uncertain + 1e-6 * theta).all()
    ]
    for one in sorted(fitting, key=lambda one: one.cost)[:_FITTED]:
        if one.diagnosis is not None and one.setting is not None:
            yield Fault(one.diagnosis, functools.partial(_instead, one.setting), fitted=True)


def _instead(setting: RopeSetting, asked: RopeSetting) -> RopeSetting:
    """Return the frequencies of a setting in the layout that is asked for."""
    return replace(setting, layout=asked.layout, rotary_dim=asked.rotary_dim)


def _frequencies(
    at: Positions, x: FloatArray, y: FloatArray, setting: RopeSetting
) -> tuple[Array, Array] | None:
    """Return by how much pairs turn from position to position, and how uncertain that is; None if unseen.

    Steps of growing length are unwrapped by the shorter ones. Shapes: -> (p,) twice.
    """
    if setting.pairs < 4 or at.size < 8 or (np.diff(at) != 1).any():
        return None
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    with np.errstate(invalid="ignore", over="ignore"):
        turns = w * np.conj(z) / (np.abs(z) ** 2 + 1e-30)
        turns = turns / np.maximum(np.abs(turns), 1e-30)
    if not np.isfinite(turns).all():
        return None
    theta, lag, spread = np.zeros(setting.pairs), 1, np.zeros(setting.pairs)
    while lag < min(at.size, _LONGEST):
        steps = turns[:, lag:] * np.conj(turns[:, :-lag])
        mean = steps.mean(axis=(0, 1))
        if (np.abs(mean) < 1 - _COARSE).any():  # they do not turn by one angle
            return None
        theta = theta + np.angle(mean * np.exp(-1j * lag * theta)) / lag
        spread = np.sqrt(np.maximum(0.0, 2 - 2 * np.abs(mean))) / lag
        lag *= 4
    return theta, 2 * spread


def base(at: Positions, x: FloatArray, y: FloatArray, setting: RopeSetting, dtype: Format) -> Iterator[Fault]:
    """Yield the base whose powers all frequencies are, in ever more digits; nothing where they are not.

    It is fitted to steps from position to position, then to the way from position 0.
    Shapes: at (s,), x and rotated y (h, s, d).
    """
    d = setting.rotary_dim
    if setting.scaling.kind != "default" or setting.pairs < 4 or (np.diff(at) != 1).any() or at.size < 8:
        return
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    rotations, power = w * np.conj(z) / (np.abs(z) ** 2 + 1e-30), 2 * np.arange(setting.pairs) / d
    first = allowance.allowed(allowance.careful(dtype), setting, at)[:, 0]  # the same with every base
    if not (np.abs(rotations[..., 0] - np.exp(1j * at)) <= first).all():
        return
    log, lag = np.log(setting.base), 1
    while lag < min(at.size, _LONGEST):
        steps = rotations[:, lag:] * np.conj(rotations[:, :-lag])
        guess = np.exp(-power * log) if lag > 1 else np.zeros_like(power)
        theta = guess + np.angle(steps.mean(axis=(0, 1)) * np.exp(-1j * lag * guess)) / lag
        usable = (power > 0) & (theta * lag > 0.05) & ((theta < 3) if lag == 1 else (theta > 0))
        if usable.any():
            log = float(np.median(-np.log(theta[usable]) / power[usable]))
        off = np.abs(steps - np.exp(1j * lag * np.exp(-power * log)))[..., np.exp(-power * log) * lag < 3]
        if not (off <= _COARSE).all():
            return
        last, lag = lag, lag * 4
    log = _refined(log, power, steps.mean(axis=(0, 1)), last)
    if at[0] > last:
        turned = (rotations * np.exp(-1j * (at - at[0])[:, None] * np.exp(-power * log))).mean(axis=(0, 1))
        noise = allowance.rounding_error(allowance.careful(dtype), setting) + _STILL
        log = _from_0(log, power, turned, int(at[0]), noise / last)
    for digits in range(2, 11):
        found = float(f"{np.exp(log):.{digits}g}")
        if 1 < found < LARGEST_BASE and found != setting.base:
            told = of_base(setting, found).diagnosis
            if told is not None:
                yield Fault(told, functools.partial(_with_base, found), fitted=True)


def _with_base(base: float, asked: RopeSetting) -> RopeSetting:
    return replace(asked, base=base)


def moves(found: Diagnosis, at: Positions, setting: RopeSetting, dtype: Format) -> bool:
    """Return whether another base moves pairs at positions by more than right code may."""
    other = replace(setting, base=float(str(found.values["base"]))) if "base" in found.values else setting
    first, second = (exact_rotation.rotations(one, at, dtype) for one in (setting, other))
    return bool((np.abs(first - second) > 2 * allowance.allowed(allowance.careful(dtype), setting, at)).any())


def factor(
    at: Positions, x: FloatArray, y: FloatArray, setting: RopeSetting, dtype: Format
) -> Diagnosis | None:
    """Return by what all rotated vectors are multiplied; None where no number explains them.

    Shapes: at (s,), x and rotated y (s, d).
    """
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    exact = z * exact_rotation.rotations(setting, at, dtype)
    size = float((np.abs(exact) ** 2).sum())
    if not np.isfinite(w).all() or not size:
        return None
    times = float((np.conj(exact) * w).sum().real) / size
    allowed = (
        allowance.allowed(allowance.careful(dtype), setting, at) * np.abs(z) + 4 * dtype.smallest_subnormal
    )
    if times <= _FAINT or (np.abs(w - times * exact) > max(1.0, times) * allowed).any():
        return None
    if not (np.abs(w - exact) > allowed).any():  # these are as long as they should be
        return None
    asked = attention_factor(setting.scaling)
    near = 4 * allowance.rounding_error(allowance.careful(dtype), setting)
    for seen in (1.0, asked**2):
        if asked != 1 and abs(times * asked - seen) <= near * seen:
            return Diagnosis("attention-factor", {"seen": seen, "asked": asked})
    rounded = [float(f"{times:.{digits}g}") for digits in (4, 6, 9)]
    return Diagnosis("scaled-vectors", {"times": next((one for one in rounded if one != 1), rounded[-1])})


def common_factor(
    rows: Positions, x: FloatArray, y: FloatArray, setting: RopeSetting, dtype: Format
) -> Diagnosis | None:
    """Return by what all vectors are multiplied where some are within what is allowed all the same.

    Each vector's own factor must be that of all to a tenth of what it differs from 1: otherwise some are
    right. None where no number explains them. Shapes: rows (b, s), x and y (b, h, s, d).
    """
    at = np.repeat(rows, x.shape[1], axis=0).ravel()
    z, w = (exact_rotation.complex_pairs(vectors.reshape(at.size, -1), setting) for vectors in (x, y))
    exact = z * exact_rotation.rotations(setting, at, dtype)
    shape = (x.shape[0] * x.shape[1], -1)
    sizes = (np.abs(exact) ** 2).reshape(shape).sum(axis=1)
    if not np.isfinite(w).all() or not sizes.all():
        return None
    times = (np.conj(exact) * w).real.reshape(shape).sum(axis=1) / sizes
    if np.ptp(times) > _SPREAD * np.abs(times - 1).min():
        return None
    return factor(at, x.reshape(at.size, -1), y.reshape(at.size, -1), setting, dtype)


def _from_0(log: float, power: Array, turned: Array, at: int, error: float) -> float:
    """Return ln base by the way from position 0 to `at`: by slow pairs first, which have lost no rotation.

    error: of ln base so far. Shapes: (p,) twice.
    """
    for _ in range(6):
        theta = np.exp(-power * log)
        slope = at * theta * power
        usable = (slope > 0) & (slope * error < 1)
        if usable.any():
            off = np.angle(turned * np.exp(-1j * at * theta))[usable]
            log -= float((slope[usable] * off).sum() / (slope[usable] ** 2).sum())
            error = min(error, 4 * _STILL / float(np.sqrt((slope[usable] ** 2).sum())))
    return log


def _refined(log: float, power: Array, mean: Array, lag: int) -> float:
    """Return ln base after one step of least squares over the phases of all pairs. Shapes: (p,) twice."""
    theta = np.exp(-power * log)
    slope, off = -lag * theta * power, np.angle(mean * np.exp(-1j * lag * theta))
    return float(log + (slope * off).sum() / (slope**2).sum())


def amplitude(x: FloatArray, y: FloatArray, setting: RopeSetting, dtype: Format) -> Iterator[Fault]:
    """Yield the factor by which vectors are longer than they should be, whatever they are rotated by.

    Shapes: x and rotated y (s, d).
    """
    rotated = exact_rotation.complex_pairs(x, setting), exact_rotation.complex_pairs(y, setting)
    factors = {}  # of the pairs, and of whole vectors
    both: list[tuple[Any, Any, float]] = [(*rotated, attention_factor(setting.scaling)), (x, y, 1.0)]
    for z, w, part in both:
        sizes = (np.abs(z) ** 2).sum(axis=1)
        if np.isfinite(w).all() and sizes.all():
            times = np.sqrt((np.abs(w) ** 2).sum(axis=1) / sizes) / part
            factors[float(np.median(times))] = float(np.ptp(times))
    near = 4 * allowance.rounding_error(allowance.careful(dtype), setting)
    for factor, spread in factors.items():
        if factor > _FAINT and abs(factor - 1) > near and spread <= near * factor:
            for digits in (3, 4, 6, 9):
                seen = float(f"{factor:.{digits}g}")
                told = Diagnosis("scaled-vectors", {"times": seen})
                yield Fault(told, turn=functools.partial(_scaled, seen), times=seen, fitted=True)


def _scaled(
    times: float, pairs: NDArray[np.complex128], turns: NDArray[np.complex128]
) -> NDArray[np.complex128]:
    return times * pairs * turns


def positions(
    at: Positions,
    x: FloatArray,
    y: FloatArray,
    off: NDArray[np.bool_],
    setting: RopeSetting,
    dtype: Format,
) -> dict[int, int]:
    """Return as which position some of the wrong ones are rotated; nothing where one is as none.

    Shapes: at, off (s,), x, y (s, d).
    """
    here, seen = np.flatnonzero(off), dict[int, int]()
    chosen = np.linspace(0, max(0, here.size - 1), _ASKED if here.size else 0).round().astype(int)
    for i in dict.fromkeys(int(here[part]) for part in chosen):
        if (best := _position(int(at[i]), x[i], y[i], at.size, setting, dtype)) is None:
            return {}
        seen[int(at[i])] = best
    return seen


def rules(seen: Mapping[int, int], first: int) -> Iterator[Fault]:
    """Yield the rules by which positions may be those that they are rotated as. first: of the call."""
    moved = {at: best for at, best in seen.items() if best != at}
    if len(seen) < _RULED or not moved:
        return
    low, high = min(moved.values()), max(moved.values())
    if low == high >= 0:
        told = Diagnosis("table-ends", {"last": low})
        yield Fault(told, seen=lambda rows, head: np.minimum(rows, low), fitted=True)
    steps = {best - at for at, best in moved.items()}
    size = math.gcd(*steps)
    for code, start in (("wrap", 0), ("restart", first)):
        for part in range(1, size // max(1, high - start) + 1) if low >= start else ():
            if size % part == 0 and size // part > high - start and part <= _PARTS:
                told = Diagnosis(code, {"size": size // part})
                seen_as = functools.partial(_wrapped, size // part, restarts=code == "restart")
                yield Fault(told, seen=seen_as, fitted=True)
    if len(steps) == 1 and len(moved) == len(seen):
        yield replace(off_by(steps.pop()), fitted=True)


def _wrapped(size: int, rows: Positions, head: int, *, restarts: bool) -> Positions:
    start = rows[..., :1] if restarts else 0
    wrapped: Positions = start + (rows - start) % size
    return wrapped


def _position(
    at: int, x: FloatArray, y: FloatArray, size: int, setting: RopeSetting, dtype: Format
) -> int | None:
    """Return as which position a vector is rotated: its own where that may be. Shapes: x, y (d,)."""
    rule = allowance.careful(dtype)
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    if not np.isfinite(w).all() or setting.pairs < 4 or abs(at) > _FARTHEST:
        return None
    theta, ratio = allowance.frequencies(setting), w * np.conj(z) / (np.abs(z) ** 2 + 1e-30)
    reach = 2 * (abs(at) + size) + 256
    candidates = np.arange(-reach, reach)
    score, tried = np.zeros(candidates.size), np.arange(0, setting.pairs, max(1, setting.pairs // 8))
    for i in tried:
        score += (ratio[i] * np.exp(-1j * candidates * theta[i])).real
    for best in (at, *candidates[np.argsort(-score)[:_TRIED]]):
        allowed = allowance.allowed(rule, setting, np.array([best, at])).max(axis=0)
        rotated = z * exact_rotation.rotations(setting, np.array([best]), dtype)[0]
        if (np.abs(w - rotated) <= allowed * np.abs(z) + 4 * dtype.smallest_subnormal).all():
            return int(best)
    return None
