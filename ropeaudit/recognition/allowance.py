"""The allowed error of a rotated pair: how far correct code may be from the exact rotation.

Its phase is off by the roundings of frequency and angle, which grow with the position; then cos and sin, the
rotation and the output round. All is relative to its length. u: unit roundoff; x_i = 2i/d, L = ln base.
Letters: s positions, d rotary_dim, p pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recipes import Resolved
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.frequencies import unscaled
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor, effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation

_LIBRARY = 4  # u by which a library's pow, exp, sin, cos or division may miss
_COARSE = dict.fromkeys(("position", "frequency", "angle", "trig"), "model32") | {
    "frequency_form": "recurrence"
}
STEPPED = ("recurrence", "step_power")


@functools.lru_cache(maxsize=16)
def careful(dtype: Format) -> Resolved:
    """Return the coarsest correct recipe: float32 up to cos and sin, then everything in the dtype.

    These are the formats of `hf`, with frequencies by recurrence; in float64 all stages are float64.
    """
    return recipes.named("hf").changed(_COARSE).resolve(dtype)


def allowed(recipe: Resolved, setting: RopeSetting, at: Positions) -> Array:
    """Return the largest error of a rotated pair, over its length. Shapes: (s,) -> (s, p).

    `phase` is that of the angle, `rounding_error` the rest.
    """
    errors: Array = attention_factor(setting.scaling) * np.minimum(2.0, phase(recipe, setting, at))
    return errors + rounding_error(recipe, setting)


def allowed_at(recipe: Resolved, setting: RopeSetting, position: int, pair: int) -> float:
    """Return `allowed` of one pair; for a dim that is not rotated, only its rounding."""
    if pair >= setting.pairs:
        return rounding_error(recipe, setting)
    return float(allowed(recipe, setting, np.array([position]))[0, pair])


def phase(
    recipe: Resolved,
    setting: RopeSetting,
    at: Positions,
    theta: Array | None = None,
) -> Array:
    """Return the largest phase error of each pair. Shapes: (s,) -> (s, p).

    Beside `phase_error`, rounding a position moves a pair: not at all while it is exact.
    """
    theta = frequencies(setting) if theta is None else theta
    exact = places(setting, at)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(round_to(exact, recipe.position).astype(np.float64) - exact)
    return np.asarray(error * np.abs(theta) + phase_error(recipe, setting, at, theta))


def places(setting: RopeSetting, at: Array | Positions) -> Array:
    """Return the position of each pair; on a grid that of its axis. Shapes: (s,) -> (s, 1) or (s, p)."""
    if setting.grid is None:
        return at.astype(np.float64)[:, None]
    return setting.grid.per_pair(at.astype(np.int64))


def phase_error(
    recipe: Resolved,
    setting: RopeSetting,
    at: Array | Positions,
    theta: Array | None = None,
) -> Array:
    """Return the phase error that frequencies and angles may cause. Shapes: (s,) -> (s, p).

    The angle rounds as a product, as a sum where the offset is added separately, and as it is stored. theta:
    as in `frequency_error`.
    """
    theta = frequencies(setting) if theta is None else np.abs(theta)
    relative = frequency_error(setting, recipe, theta) + 2.0**-50
    relative = relative + 2 * recipe.angle[0].unit_roundoff + recipe.angle[1].unit_roundoff
    return np.asarray(np.abs(places(setting, at)) * (theta * relative))


def frequency_error(
    setting: RopeSetting, recipe: Resolved | None = None, theta: Array | None = None
) -> Array:
    """Return the largest relative error of each frequency. Shapes: -> (p,).

    For one formula, in u: x_i rounds, and the logarithm or the slope of an exponential, each to x_i L at most
    (four of them); the power, exponential or division is off by that of its library; a recurrence multiplies
    i times by a step that is off by 2 and rounds each time; a scaling is a handful of operations more. The
    same is allowed to stored frequencies. recipe: `careful` in float32 by default. theta: the frequencies,
    where they are known (p,).
    """
    recipe = recipe or careful(FP32)
    theta = frequencies(setting) if theta is None else np.abs(theta)
    u, i = recipe.frequency[0].unit_roundoff, np.arange(setting.pairs)
    log = math.log(effective_base(setting)) * 2 * i / max(setting.rotary_dim, 1)
    steps = 3 * i if recipe.recipe.frequency_form in STEPPED else 0
    relative: Array = (_LIBRARY + 4 * log + steps) * u + recipe.frequency[1].unit_roundoff
    if setting.scaling.kind != "default":
        size = np.ones_like(theta)  # of what a scaling computes with, over the frequency
        if setting.scaling.rules.blends:  # it adds plain ones
            plain = unscaled(effective_base(setting), setting.rotary_dim, "inverse_power", FP64)
            low, high = setting.scaling.low or 1.0, setting.scaling.high or 1.0
            steep = high / (high - low) if high > low else 1.0
            size = np.maximum(1.0, plain * steep / theta)
        relative = relative + 8 * u * size
    return relative


def rounding_error(recipe: Resolved, setting: RopeSetting) -> float:
    """Return the error behind the angle: cos and sin, the factor on them, the rotation, the output.

    A complex product is off by at most sqrt(5) u (Brent, Percival, Zimmermann, Math. Comp. 76, 2007).
    """
    factor = attention_factor(setting.scaling)
    growth = (1 + table_error(recipe, setting)) * (1 + math.sqrt(5) * recipe.rotation.unit_roundoff)
    return factor * 1.01 * (growth * (1 + recipe.output.unit_roundoff) - 1 + 2.0**-50)


def table_error(recipe: Resolved, setting: RopeSetting) -> float:
    """Return the error allowed for cos and sin as a point, angle aside, over their factor."""
    error = (_LIBRARY + 2 * (attention_factor(setting.scaling) != 1)) * recipe.trig.unit_roundoff
    return math.sqrt(2) * (error + (recipe.table.unit_roundoff if recipe.table else 0.0))


@functools.lru_cache(maxsize=512)
def frequencies(setting: RopeSetting) -> Array:
    """Return the frequencies in float64, scaled, radians per token. Shapes: -> (p,)."""
    return np.asarray(np.abs(exact_rotation.exact(setting).angles(np.array([1], dtype=np.int64))[0]))


_IN_CACHE = 2**15  # pairs that are compared at once
_HELD = 2**12  # tokens whose exact rotation is computed at once


def excess(
    x: FloatArray,
    y: FloatArray,
    at: Positions,
    setting: RopeSetting,
    rule: Resolved,
) -> Array:
    """Return the error of each pair over the allowed error of a recipe.

    The last r "pairs" are dims that are not rotated, two by two. A pair that may overflow counts as 0.
    Shapes: x and rotated y (b, h, s, d), at (b, s) -> (b, h, s, p + r).
    """
    over = np.empty((*x.shape[:3], setting.head_dim // 2))
    step = max(1, _IN_CACHE // (x.shape[0] * x.shape[1] * max(1, setting.pairs)))
    rows = at[:1] if (at == at[:1]).all() else at
    whole = step * max(1, _HELD // step)
    rest = setting.head_dim - setting.rotary_dim
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, at.shape[1], step):
            if start % whole == 0:
                held = _exact_and_limits(rule, setting, rows[:, start : start + whole].tobytes(), len(rows))
            some = np.s_[:, :, start : start + step]
            cos, sin, limits = (one[:, :, start % whole :][:, :, :step] for one in held)
            (x1, x2), (y1, y2) = _members(x[some], setting), _members(y[some], setting)
            y1 -= x1 * cos - x2 * sin
            y2 -= x2 * cos + x1 * sin
            over[some][..., : setting.pairs] = _over_limits((y1, y2), (x1, x2), limits, rule.dtype)
            if rest:
                given, passed = (_members(one[some][..., -rest:], RopeSetting.of(rest)) for one in (x, y))
                off = passed[0] - given[0], passed[1] - given[1]
                over[some][..., -rest // 2 :] = _over_limits(
                    off, given, rounding_error(rule, setting), rule.dtype
                )
    return over


@functools.lru_cache(maxsize=4)
def _exact_and_limits(rule: Resolved, setting: RopeSetting, at: bytes, rows: int) -> list[Array]:
    """Return exact cos and sin, and the allowed errors. Shapes: at (b, s) -> (b, 1, s, p) each."""
    positions = np.frombuffer(at, np.int64).reshape(rows, -1)
    runs = positions if positions.shape[1] > 1 else positions.reshape(1, -1)
    each_run = [exact_rotation.rotations(setting, run, rule.dtype) for run in runs]
    turns = each_run[0] if len(each_run) == 1 else np.concatenate(each_run)
    each = turns.real, turns.imag, allowed(rule, setting, positions.reshape(-1))
    return [np.ascontiguousarray(one).reshape(rows, 1, positions.shape[1], setting.pairs) for one in each]


def _members(x: FloatArray, setting: RopeSetting) -> tuple[Array, Array]:
    """Return copies of both members of pairs in float64. Shapes: (..., d) -> (..., p) twice."""
    first, second = split_pairs(x, setting)
    return first.astype(np.float64), second.astype(np.float64)


def _over_limits(
    error: tuple[Array, Array],
    size: tuple[Array, Array],
    limits: Any,
    dtype: Format,
) -> Array:
    """Return the length of errors over the allowed one for pairs of a size; overwrites the arguments."""
    for a, b in (error, size):
        if dtype is FP64:  # squares of smaller formats neither over- nor underflow
            np.hypot(a, b, out=a)
        else:
            a *= a
            a += np.multiply(b, b, out=b)
            np.sqrt(a, out=a)
    over, length = error[0], size[0]
    large = length > dtype.largest / 4
    length *= limits
    over /= np.add(length, 4 * dtype.smallest_subnormal, out=length)
    if not np.isfinite(over.max(initial=0)):
        over[~np.isfinite(over)] = np.inf
    if large.any():
        over[large] = 0.0
    return over


_DEVIATIONS = 3  # of a mean error that is one of chance
_STORED = 0.9  # of the numbers that come back are numbers of a format that they were rounded to
_FINEST_FIRST = (FP32, parse("fp16"), parse("bf16"))


def narrower_format(
    setting: RopeSetting,
    dtype: Format,
    given: tuple[FloatArray, ...],
    rotated: tuple[FloatArray, ...],
    at: Positions,
    holds: Callable[[Format], bool] = lambda fmt: True,
) -> Diagnosis | None:
    """Return a diagnosis of the narrower format whose roundings explain vectors; None if none does.

    at: positions, also of each batch element. holds: a further condition on the format.
    Shapes: given and rotated q (b, h, s, d), k (b, g, s, d), at (s,) or (b, s).
    """
    rows = np.broadcast_to(at, (len(given[0]), at.shape[-1]))
    sides = [one for pair in zip(given, rotated, strict=True) for one in zip(*pair, rows, strict=True)]
    for fmt in _FINEST_FIRST:
        finer = fmt.unit_roundoff <= dtype.unit_roundoff
        turned = [x[..., : setting.rotary_dim] for x in rotated]  # the other dims may be passed on
        stored = np.concatenate([(round_to(x, fmt) == x).reshape(-1) for x in turned]).mean()
        numbers = not finer and stored >= _STORED
        if numbers and all(_only_rounded(fmt, *side, setting) for side in sides) and holds(fmt):
            return Diagnosis(
                "narrow-output", {"format": str(fmt)} | ({"held": str(fmt)} if stored == 1 else {})
            )
    return None


def _only_rounded(
    fmt: Format,
    x: FloatArray,
    y: FloatArray,
    at: Positions,
    setting: RopeSetting,
) -> bool:
    """Return whether the errors are those of correct code in a format: small, and in all directions.

    The mean error, in directions of the exact vectors, is compared with that of an independent error a pair:
    roundings of cos or sin may be shared; a factor's or a base's is larger. Shapes: x, y (h, s, d), at (s,).
    """
    if (excess(x[None], y[None], at[None], setting, careful(fmt)) > 1).any():
        return False
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    exact = z * exact_rotation.rotations(setting, at, FP32)
    along, error = np.vdot(exact, w - exact), np.linalg.norm(w - exact)
    return bool(abs(along) <= _DEVIATIONS * error * np.linalg.norm(exact) / np.sqrt(setting.pairs))
